"""The byte layout of CommitLog, ConsumeQueue and IndexFile, and values built on it.

Pure functions without I/O: constants, hashes, one record at a time, properties, queue values, and
the differences between releases. `commitlog` and `arrow` decode whole columns of records.
"""
