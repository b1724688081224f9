"""Records as Arrow batches: message columns, property columns, and unpacked inner batches.

`encoding` converts batches back to records. `reading` decides which records to read.
"""
