"""Search a store: messages by key, text, tag or time, and the slices of the log that hold them.

`reading` reads these slices; `tables` and `questions` have tables and sums about a store.
"""
