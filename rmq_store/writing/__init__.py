"""A store opened to write: records appended, dispatched to queues and index, flushed.

Recovery before the first write lives in `recovery`, the bytes of a record in `arrow.encoding`.
"""
