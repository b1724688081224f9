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
        ("kind", TEXT, "level (delay level) or timer"),
        (
            "state",
            TEXT,
            "waiting; overdue (due before the newest record of the log); delivered (its copy is "
            "there, but the broker does not know yet: it may come twice); cancelled (an order to "
            "delete it waits); lost (the timer log does not lead to it)",
        ),
        ("topic", TEXT, "its topic (REAL_TOPIC)"),
        ("queueId", INT, "its queue (REAL_QID)"),
        ("dueTimestamp", TIMESTAMP, "when due"),
        ("overdueMs", LONG, "store time of the newest record minus dueTimestamp"),
        ("delayLevel", INT, "from 1; null for a timer"),
        ("bornTimestamp", TIMESTAMP, "when the producer created it"),
        ("storeTimestamp", TIMESTAMP, "when the broker stored it"),
        ("tags", TEXT, "property TAGS"),
        ("keys", TEXT, "property KEYS"),
        ("uniqKey", TEXT, "property UNIQ_KEY"),
        ("msgId", TEXT, "its offsetMsgId"),
        ("reconsumeTimes", INT, "how often a consumer sent it back"),
        ("storeSize", INT, "bytes of its record"),
        ("heldIn", TEXT, "the broker's topic with it"),
        ("heldQueueId", INT, "its queue there"),
        ("heldQueueOffset", LONG, "its queue offset there"),
        ("commitLogOffset", LONG, "its log offset"),
        ("deliveredTimestamp", TIMESTAMP, "when its copy was stored"),
        ("deliveredQueueOffset", LONG, "queue offset of the copy"),
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
            "open, committed, rolledBack, givenUp (in TRANS_CHECK_MAX_TIME_TOPIC, or not in the database of "
            "transRocksDBEnable), ended (committed or rolled back), or unknown (op messages cannot be read)",
        ),
        ("producerGroup", TEXT, "property PGROUP"),
        ("topic", TEXT, "its topic (REAL_TOPIC)"),
        ("queueId", INT, "its queue (REAL_QID)"),
        ("sinceTimestamp", TIMESTAMP, "when its first remaining half message was stored"),
        ("openMs", LONG, "store time of the newest record minus that"),
        ("checks", INT, "how often the broker asked the producer"),
        ("lastCheckTimestamp", TIMESTAMP, "when it asked last"),
        ("halfMessages", INT, "half messages that remain"),
        ("bornTimestamp", TIMESTAMP, "when the producer created it"),
        ("tags", TEXT, "property TAGS"),
        ("keys", TEXT, "property KEYS"),
        ("uniqKey", TEXT, "property UNIQ_KEY"),
        ("msgId", TEXT, "offsetMsgId of the last half message"),
        ("halfQueueOffset", LONG, "its queue offset"),
        ("halfCommitLogOffset", LONG, "its log offset"),
        ("committedTimestamp", TIMESTAMP, "when the committed message was stored"),
        ("committedQueueId", INT, "its queue"),
        ("committedQueueOffset", LONG, "its queue offset"),
    ),
    rows_past_damage=transactions,
)


_ORIGIN = (
    ("originTopic", TEXT, "where it came from"),
    ("originQueueId", INT, "its queue there; null if not in this log"),
    ("originQueueOffset", LONG, "its queue offset there"),
    ("originCommitLogOffset", LONG, "its log offset there"),
    ("originMsgId", TEXT, "offsetMsgId of the message first sent back"),
)
_MESSAGE = (
    ("tags", TEXT, "property TAGS"),
    ("keys", TEXT, "property KEYS"),
    ("uniqKey", TEXT, "property UNIQ_KEY"),
    ("msgId", TEXT, "its offsetMsgId"),
    ("storeSize", INT, "bytes of its record"),
    ("queueId", INT, "its queue in the group's topic"),
    ("queueOffset", LONG, "its queue offset there"),
    ("commitLogOffset", LONG, "its log offset"),
)

DEAD_LETTERS = Table(
    "deadLetters",
    "every message that a consumer group gave up",
    table_columns(
        ("consumerGroup", TEXT, "the group"),
        *_ORIGIN,
        ("reconsumeTimes", INT, "how often the group sent it back"),
        ("maxAttempts", INT, "how often at most (MAX_RECONSUME_TIMES)"),
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
        ("reconsumeTimes", INT, "how often the group sent it back"),
        ("firstTimestamp", TIMESTAMP, "when its first retry was stored"),
        ("lastTimestamp", TIMESTAMP, "when its last retry was stored"),
        ("deadLetterTimestamp", TIMESTAMP, "when the group gave it up"),
        *_MESSAGE,
    ),
    rows_past_damage=retries,
)

POP = Table(
    "pop",
    "every message that a group popped, as far as the check points are in the log",
    table_columns(
        ("consumerGroup", TEXT, "the group"),
        ("topic", TEXT, "its topic; the retry topic if given before"),
        ("queueId", INT, "its queue"),
        ("queueOffset", LONG, "its queue offset"),
        (
            "state",
            TEXT,
            "acknowledged; invisible (to other consumers); due (invisibleUntil is before the "
            "newest record of the log: the broker gives it again); retried (a copy is in the "
            "retry or dead-letter topic)",
        ),
        ("givenTimestamp", TIMESTAMP, "when the group got it"),
        ("invisibleUntil", TIMESTAMP, "until when no other consumer gets it"),
        ("timesGiven", INT, "how often it was given"),
        ("acknowledgedTimestamp", TIMESTAMP, "when acknowledged; null in queues popped in order"),
    ),
    rows_past_damage=popped,
)

TRACES = Table(
    "traces",
    "what producers and consumers reported of each message, with msgTraceEnable",
    table_columns(
        ("traceType", TEXT, "Pub (sent), SubBefore, SubAfter (consumed) or EndTransaction"),
        ("timestamp", TIMESTAMP, "when, by the client's clock"),
        ("groupName", TEXT, "group of the producer or consumer"),
        ("topic", TEXT, "the topic; null in SubBefore and SubAfter"),
        ("msgId", TEXT, "its UNIQ_KEY: the uniqKey of other tables"),
        ("offsetMsgId", TEXT, "its offsetMsgId"),
        ("tags", TEXT, "property TAGS"),
        ("keys", TEXT, "property KEYS"),
        ("success", FLAG, "whether sent or consumed"),
        (
            "outcome",
            TEXT,
            "SUCCESS, FAILED, TIME_OUT, EXCEPTION, RETURNNULL, or the state of a transaction",
        ),
        ("costMs", LONG, "time to send, or to consume a batch on average"),
        ("retryTimes", LONG, "how often sent back before"),
        ("requestId", TEXT, "joins SubBefore with SubAfter"),
        ("messageType", TEXT, "the client's MessageType"),
        ("bodyLength", LONG, "bytes of the body"),
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
        ("unreadable", TEXT, "the text, if it is no such report"),
    ),
    rows_past_damage=traces,
)
