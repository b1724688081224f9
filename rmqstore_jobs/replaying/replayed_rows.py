"""What a replay does with each row: compare time and keys, give it a new place, note its origin."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import BY_NAME
from rmq_store.index.items_of_messages import rows_with_key
from rmq_store.questions.dead_letters import origin_topics
from rmq_store.search.queue_selection import stored_in_time
from rmq_store.system_topics.open_state import kind_of
from rmqstore_jobs.replaying.origin_properties import PROPERTY_FORMS, with_origin
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, times_of

READ = "read"
OTHER_TIME = "stored at another time"
OTHER_KEY = "other keys"

# Properties from earlier retries. A message that is sent again must not have them.
_OF_RETRIES = (
    "RETRY_TOPIC",
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
    "ORIGIN_MESSAGE_ID",
    "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME",
    "DELAY",
    "REAL_TOPIC",
    "REAL_QID",
)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowRules:
    """Which rows a replay takes, and how it changes them. Times are milliseconds, half-open."""

    spec: ReplaySpec
    since: int | None
    until: int | None

    @classmethod
    def of(cls, spec: ReplaySpec) -> RowRules:
        """The rules of a spec. Raises InvalidArgumentError for a time that is not fixed yet."""
        return cls(spec, *times_of(spec))

    def apply(self, batch: pa.RecordBatch, counts: Counter[str]) -> pa.RecordBatch:
        """The rows to replay, changed. Counts the rows, and those left out by the reason."""
        in_time = stored_in_time(batch, self.since, self.until)
        has_key = self._has_key(batch)
        counts[READ] += batch.num_rows
        counts[OTHER_TIME] += int((~in_time).sum())
        counts[OTHER_KEY] += int((in_time & ~has_key).sum())
        taken = in_time & has_key
        return self._changed(batch if taken.all() else batch.filter(pa.array(taken)))

    def _has_key(self, batch: pa.RecordBatch) -> Mask:
        if not self.spec.keys:
            return np.ones(batch.num_rows, np.bool_)
        return rows_with_key(batch["keys"], batch["uniqKey"], self.spec.keys)

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        name, properties = with_origin(batch, _OF_RETRIES if self.spec.dead_to_origin else ())
        columns = {
            name: properties,
            "topic": self._new_topics(batch),
            "queueId": self._new_queues(batch),
        }
        if self.spec.dead_to_origin:
            columns["reconsumeTimes"] = pa.array(np.zeros(batch.num_rows, np.int32))
        fields = [BY_NAME[name].field if f.name in PROPERTY_FORMS else f for f in batch.schema]
        arrays = [columns[f.name] if f.name in columns else batch[f.name] for f in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _new_topics(self, batch: pa.RecordBatch) -> pa.Array:
        topics = batch["topic"]
        if self.spec.dead_to_origin:
            # AbstractSendMessageProcessor#consumerSendMsgBack writes RETRY_TOPIC; 5.x brokers also
            # write DLQ_ORIGIN_TOPIC.
            known = (
                pc.map_lookup(batch["properties"], name, "first")
                for name in ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
            )
            return origin_topics(topics, pc.coalesce(*known, topics))
        if not self.spec.topic_map:
            return topics
        old, new = map(pa.array, (list(self.spec.topic_map), list(self.spec.topic_map.values())))
        return pc.coalesce(new.take(pc.index_in(topics, old)), topics)

    def _new_queues(self, batch: pa.RecordBatch) -> pa.Array:
        if not self.spec.queue_map:
            return batch["queueId"]
        old = batch["queueId"].to_numpy()
        changed = old.copy()
        topics = batch["topic"].dictionary_encode()
        names = topics.dictionary.to_pylist()
        # The broker looks for its own records in certain queues.
        users = np.array([kind_of(name) is None for name in names])[topics.indices.to_numpy()]
        # A rule for one topic takes precedence over a rule for all topics, so it comes last.
        ordered = sorted(self.spec.queue_map.items(), key=lambda rule: rule[0][0] is not None)
        for (topic, queue_id), new in ordered:
            rows = old == queue_id
            if topic is None:
                rows &= users
            else:
                rows &= pc.equal(batch["topic"], topic).to_numpy(zero_copy_only=False)
            changed[rows] = new
        return pa.array(changed)
