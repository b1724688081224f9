"""Tables `scheduled`, `transactions`, `deadLetters`, `retries` and `traces`: what the broker has still to
deliver and to decide, and what became of messages at their consumers."""

from __future__ import annotations

from rmq_store.system_topics.delayed_messages import delayed_messages
from rmq_store.system_topics.pop import popped
from rmq_store.system_topics.retries import dead_letters, retries
from rmq_store.system_topics.traces import traces
from rmq_store.system_topics.transactions import transactions
from rmq_store.tables.table import FLAG, INT, LONG, TEXT, TIMESTAMP, Table, table_columns

SCHEDULED = Table(
    "scheduled",
    "every message that the broker is to deliver later, by delay level or by timer",
    table_columns(
        ("kind", TEXT, "level (a delay level) or timer"),
        (
            "state",
            TEXT,
            "waiting; overdue (due before the newest record of the log); delivered (its copy is there, and "
            "the broker's files do not say so yet: it may be delivered twice); cancelled (an order to delete "
            "it waits for the same time, and no copy is in the log); lost (the timer log does not lead to "
            "it)",
        ),
        ("topic", TEXT, "the topic that it is for (REAL_TOPIC)"),
        ("queueId", INT, "the queue that it is for (REAL_QID)"),
        ("dueTimestamp", TIMESTAMP, "when it is due"),
        ("overdueMs", LONG, "store time of the newest record minus dueTimestamp, if overdue"),
        ("delayLevel", INT, "the delay level, from 1; null for a timer"),
        ("bornTimestamp", TIMESTAMP, "when the producer created it"),
        ("storeTimestamp", TIMESTAMP, "when the broker stored it to be delivered later"),
        ("tags", TEXT, "property TAGS"),
        ("keys", TEXT, "property KEYS"),
        ("uniqKey", TEXT, "property UNIQ_KEY"),
        ("msgId", TEXT, "offsetMsgId of the stored record"),
        ("reconsumeTimes", INT, "how often a consumer sent it back; above 0 it is a retry"),
        ("storeSize", INT, "size of the stored record, bytes"),
        ("heldIn", TEXT, "the broker's topic that holds it"),
        ("heldQueueId", INT, "the queue of that topic"),
        ("heldQueueOffset", LONG, "its queue offset there"),
        ("commitLogOffset", LONG, "its place in the CommitLog"),
        ("deliveredTimestamp", TIMESTAMP, "when its copy was stored, if it was delivered"),
        ("deliveredQueueOffset", LONG, "the queue offset of the copy"),
    ),
    rows_past_damage=delayed_messages,
)

TRANSACTIONS = Table(
    "transactions",
    "what became of each transaction of which a half message is left",
    table_columns(
        ("transactionId", TEXT, "property __transactionId__, else UNIQ_KEY"),
        (
            "state",
            TEXT,
            "open, committed, rolledBack, givenUp (asked too often, and moved to "
            "TRANS_CHECK_MAX_TIME_TOPIC), ended (committed or rolled back: a file between others of its "
            "queue is missing, or it has no UNIQ_KEY), or unknown (op messages cannot be read)",
        ),
        ("producerGroup", TEXT, "property PGROUP"),
        ("topic", TEXT, "the topic that it is for (REAL_TOPIC)"),
        ("queueId", INT, "the queue that it is for (REAL_QID)"),
        ("sinceTimestamp", TIMESTAMP, "when its first half message that is left was stored"),
        ("openMs", LONG, "store time of the newest record minus that, if it is open"),
        ("checks", INT, "how often the broker has asked the producer"),
        ("lastCheckTimestamp", TIMESTAMP, "when it asked last"),
        ("halfMessages", INT, "half messages that are left: one more is stored at each check"),
        ("bornTimestamp", TIMESTAMP, "when the producer created it"),
        ("tags", TEXT, "property TAGS"),
        ("keys", TEXT, "property KEYS"),
        ("uniqKey", TEXT, "property UNIQ_KEY"),
        ("msgId", TEXT, "offsetMsgId of the last half message"),
        ("halfQueueOffset", LONG, "its queue offset in the half topic"),
        ("halfCommitLogOffset", LONG, "its place in the CommitLog"),
        ("committedTimestamp", TIMESTAMP, "when the committed message was stored"),
        ("committedQueueId", INT, "the queue that has it"),
        ("committedQueueOffset", LONG, "its queue offset there"),
    ),
    rows_past_damage=transactions,
)


_ORIGIN = (
    ("originTopic", TEXT, "the topic that it came from"),
    ("originQueueId", INT, "the queue there; null if its record is not in this log"),
    ("originQueueOffset", LONG, "its queue offset there"),
    ("originCommitLogOffset", LONG, "the place of its record in the CommitLog"),
    ("originMsgId", TEXT, "offsetMsgId of the message that was sent back first"),
)
_MESSAGE = (
    ("tags", TEXT, "property TAGS"),
    ("keys", TEXT, "property KEYS"),
    ("uniqKey", TEXT, "property UNIQ_KEY"),
    ("msgId", TEXT, "offsetMsgId of the stored record"),
    ("storeSize", INT, "size of the stored record, bytes"),
    ("queueId", INT, "its queue in the group's topic"),
    ("queueOffset", LONG, "its queue offset there"),
    ("commitLogOffset", LONG, "its place in the CommitLog"),
)

DEAD_LETTERS = Table(
    "deadLetters",
    "every message that a consumer group gave up",
    table_columns(
        ("consumerGroup", TEXT, "the group"),
        *_ORIGIN,
        ("reconsumeTimes", INT, "how often the group sent it back"),
        ("maxAttempts", INT, "property MAX_RECONSUME_TIMES: how often it may be"),
        ("firstTimestamp", TIMESTAMP, "when its producer created it"),
        ("lastTimestamp", TIMESTAMP, "when the group gave it up"),
        *_MESSAGE,
    ),
    rows_past_damage=dead_letters,
)

RETRIES = Table(
    "retries",
    "every message that a consumer group sent back to be consumed again",
    table_columns(
        ("consumerGroup", TEXT, "the group; group_topic where nothing separates the two"),
        *_ORIGIN,
        ("retries", INT, "its records in the group's retry topic"),
        ("reconsumeTimes", INT, "how often the group sent it back, by the last record"),
        ("firstTimestamp", TIMESTAMP, "when its first retry was stored"),
        ("lastTimestamp", TIMESTAMP, "when its last retry was stored"),
        ("deadLetterTimestamp", TIMESTAMP, "when the group gave it up, if it did"),
        *_MESSAGE,
    ),
    rows_past_damage=retries,
)

POP = Table(
    "pop",
    "every message that a group popped, as far as the check points are in the log",
    table_columns(
        ("consumerGroup", TEXT, "the group"),
        ("topic", TEXT, "topic of the queue; of a message that was given before, its retry topic"),
        ("queueId", INT, "number of the queue"),
        ("queueOffset", LONG, "queue offset of the message"),
        (
            "state",
            TEXT,
            "acknowledged; invisible (given and not acknowledged, and no other consumer gets it yet); due "
            "(the time for that ended before the newest record of the log, so that the broker gives it "
            "again); or retried (a copy of it is in the retry or dead-letter topic)",
        ),
        ("givenTimestamp", TIMESTAMP, "when the group was given it"),
        ("invisibleUntil", TIMESTAMP, "until when no other consumer gets it"),
        ("timesGiven", INT, "how often it was given"),
        (
            "acknowledgedTimestamp",
            TIMESTAMP,
            "when it was acknowledged; null in queues popped in order",
        ),
    ),
    rows_past_damage=popped,
)

TRACES = Table(
    "traces",
    "what producers and consumers reported of each message, with msgTraceEnable",
    table_columns(
        ("traceType", TEXT, "Pub (sent), SubBefore, SubAfter (consumed) or EndTransaction"),
        ("timestamp", TIMESTAMP, "when, by the client's clock"),
        (
            "groupName",
            TEXT,
            "the producer's or consumer's group; of a SubAfter without one, that of its SubBefore",
        ),
        ("topic", TEXT, "the topic; null in SubBefore and SubAfter"),
        ("msgId", TEXT, "the message: UNIQ_KEY"),
        ("offsetMsgId", TEXT, "offsetMsgId of the stored message"),
        ("tags", TEXT, "property TAGS"),
        ("keys", TEXT, "property KEYS"),
        ("success", FLAG, "whether it was sent, or consumed"),
        (
            "outcome",
            TEXT,
            "SUCCESS, FAILED, TIME_OUT, EXCEPTION, RETURNNULL, or the state of a transaction",
        ),
        ("costMs", LONG, "how long sending took, or consuming a batch on average"),
        ("retryTimes", LONG, "how often it was sent back before"),
        ("requestId", TEXT, "joins SubBefore with SubAfter"),
        ("messageType", TEXT, "the client's MessageType"),
        ("bodyLength", LONG, "size of the body, bytes"),
        ("storeHost", TEXT, "the broker that stored it"),
        ("clientHost", TEXT, "the client; from 4.7 on"),
        ("regionId", TEXT, "the region"),
        ("contextCode", LONG, "ConsumeReturnType, by number"),
        ("transactionId", TEXT, "the transaction"),
        ("transactionState", TEXT, "COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW"),
        ("fromTransactionCheck", FLAG, "whether the broker had asked"),
        ("queueId", INT, "the queue of the trace message"),
        ("queueOffset", LONG, "its queue offset"),
        ("storeTimestamp", TIMESTAMP, "when the broker stored it"),
        ("unreadable", TEXT, "the text of what is not such a report; else null"),
    ),
    rows_past_damage=traces,
)
