"""Records to Arrow batches: the columns, properties as columns, inner batches taken apart.

The way back, batches to records, lives in `encoding`. Which records to read is decided in `reading`.
"""
