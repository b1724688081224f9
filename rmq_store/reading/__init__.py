"""Read messages of a snapshot: queue slices, log ranges, single messages, getMessage.

`search` decides which slices answer a question.
"""
