"""The state of a store at one moment: the range of the log, and the offsets of each queue.

QueueView answers questions about queue offsets in it, Health says what is missing in it. `reading`
reads messages.
"""
