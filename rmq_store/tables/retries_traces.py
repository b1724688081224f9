"""Tables `deadLetters`, `retries` and `traces`: what became of messages at their consumers."""

from __future__ import annotations

from rmq_store.system_topics.retries import dead_letters, retries
from rmq_store.system_topics.traces import traces
from rmq_store.tables.table import BROKER, FLAG, INT, LONG, TEXT, TIMESTAMP, Table, TableColumn

_ORIGIN = (
    TableColumn("originTopic", TEXT, "the topic that it came from"),
    TableColumn("originQueueId", INT, "the queue there; null if its record is not in this log"),
    TableColumn("originQueueOffset", LONG, "its queue offset there"),
    TableColumn("originCommitLogOffset", LONG, "the place of its record in the CommitLog"),
    TableColumn("originMsgId", TEXT, "offsetMsgId of the message that was sent back first"),
)
_MESSAGE = (
    TableColumn("tags", TEXT, "property TAGS"),
    TableColumn("keys", TEXT, "property KEYS"),
    TableColumn("uniqKey", TEXT, "property UNIQ_KEY"),
    TableColumn("msgId", TEXT, "offsetMsgId of the stored record"),
    TableColumn("storeSize", INT, "size of the stored record, bytes"),
    TableColumn("queueId", INT, "its queue in the group's topic"),
    TableColumn("queueOffset", LONG, "its queue offset there"),
    TableColumn("commitLogOffset", LONG, "its place in the CommitLog"),
)

DEAD_LETTERS = Table(
    "deadLetters",
    "every message that a consumer group gave up",
    (
        BROKER,
        TableColumn("consumerGroup", TEXT, "the group"),
        *_ORIGIN,
        TableColumn("reconsumeTimes", INT, "how often the group sent it back"),
        TableColumn("maxAttempts", INT, "property MAX_RECONSUME_TIMES: how often it may be"),
        TableColumn("firstTimestamp", TIMESTAMP, "when its producer created it"),
        TableColumn("lastTimestamp", TIMESTAMP, "when the group gave it up"),
        *_MESSAGE,
    ),
    lambda store, ranges: dead_letters(store),
    dead_letters,
)

RETRIES = Table(
    "retries",
    "every message that a consumer group sent back to be consumed again",
    (
        BROKER,
        TableColumn(
            "consumerGroup", TEXT, "the group; group_topic where nothing separates the two"
        ),
        *_ORIGIN,
        TableColumn("retries", INT, "its records in the group's retry topic"),
        TableColumn("reconsumeTimes", INT, "how often the group sent it back, by the last record"),
        TableColumn("firstTimestamp", TIMESTAMP, "when its first retry was stored"),
        TableColumn("lastTimestamp", TIMESTAMP, "when its last retry was stored"),
        TableColumn("deadLetterTimestamp", TIMESTAMP, "when the group gave it up, if it did"),
        *_MESSAGE,
    ),
    lambda store, ranges: retries(store),
    retries,
)

TRACES = Table(
    "traces",
    "what producers and consumers reported of each message, with msgTraceEnable",
    (
        BROKER,
        TableColumn(
            "traceType", TEXT, "Pub (sent), SubBefore, SubAfter (consumed) or EndTransaction"
        ),
        TableColumn("timestamp", TIMESTAMP, "when, by the client's clock"),
        TableColumn("groupName", TEXT, "the producer's or consumer's group"),
        TableColumn("topic", TEXT, "the topic; null in SubBefore and SubAfter"),
        TableColumn("msgId", TEXT, "the message: UNIQ_KEY"),
        TableColumn("offsetMsgId", TEXT, "offsetMsgId of the stored message"),
        TableColumn("tags", TEXT, "property TAGS"),
        TableColumn("keys", TEXT, "property KEYS"),
        TableColumn("success", FLAG, "whether it was sent, or consumed"),
        TableColumn(
            "outcome",
            TEXT,
            "SUCCESS, FAILED, TIME_OUT, EXCEPTION, RETURNNULL, or the state of a transaction",
        ),
        TableColumn("costMs", LONG, "how long sending took, or consuming a batch on average"),
        TableColumn("retryTimes", LONG, "how often it was sent back before"),
        TableColumn("requestId", TEXT, "joins SubBefore with SubAfter"),
        TableColumn("messageType", TEXT, "the client's MessageType"),
        TableColumn("bodyLength", LONG, "size of the body, bytes"),
        TableColumn("storeHost", TEXT, "the broker that stored it"),
        TableColumn("clientHost", TEXT, "the client; from 4.7 on"),
        TableColumn("regionId", TEXT, "the region"),
        TableColumn("contextCode", LONG, "ConsumeReturnType, by number"),
        TableColumn("transactionId", TEXT, "the transaction"),
        TableColumn("transactionState", TEXT, "COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW"),
        TableColumn("fromTransactionCheck", FLAG, "whether the broker had asked"),
        TableColumn("queueId", INT, "the queue of the trace message"),
        TableColumn("queueOffset", LONG, "its queue offset"),
        TableColumn("storeTimestamp", TIMESTAMP, "when the broker stored it"),
        TableColumn("unreadable", TEXT, "the text of what is not such a report; else null"),
    ),
    lambda store, ranges: traces(store),
    traces,
)
