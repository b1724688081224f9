"""Messages out of a snapshot: slices of queues, ranges of the log, single messages, getMessage.

Which slices answer a question is decided in `query`.
"""
