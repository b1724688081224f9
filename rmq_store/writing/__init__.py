"""A store open for writing: appends records, dispatches them to queues and index, and flushes.

`recovery` repairs a store before the first write. `arrow.encoding` builds the bytes of a record;
`encoded_records` keeps them until they get a place.
"""
