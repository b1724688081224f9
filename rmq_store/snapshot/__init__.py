"""What a store holds at one moment: the range of the log, and of each queue its offsets.

QueueView answers questions about queue offsets in it. Reading messages lives in `reading`.
"""
