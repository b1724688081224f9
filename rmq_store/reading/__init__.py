"""Read messages of a snapshot: queue slices, log ranges, single messages, getMessage.

`query` decides which slices answer a question.
"""
