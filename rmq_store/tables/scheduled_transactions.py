"""Tables `scheduled` and `transactions`: what the broker has still to deliver, and to decide."""

from __future__ import annotations

from rmq_store.system_topics.delayed_messages import delayed_messages
from rmq_store.system_topics.transactions import transactions
from rmq_store.tables.table import INT, LONG, TEXT, TIMESTAMP, Table, columns

SCHEDULED = Table(
    "scheduled",
    "every message that the broker is to deliver later, by delay level or by timer",
    columns(
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
    lambda store, ranges: delayed_messages(store),
    delayed_messages,
)

TRANSACTIONS = Table(
    "transactions",
    "what became of each transaction of which a half message is left",
    columns(
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
    lambda store, ranges: transactions(store),
    transactions,
)
