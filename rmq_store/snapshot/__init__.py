"""The state of a store at one moment: the range of the log, and the offsets of each queue.

QueueView answers questions about queue offsets in it, Opening says what opening the store saw to be
missing. `reading` reads messages.
"""
