"""The target of a write: its options and its lock, the staged files and the journal beside it, and
how a write that was killed is undone.

Knows no rows and no Spark: a replay uses the same rules for its target. What becomes of rows is in
the folder above.
"""
