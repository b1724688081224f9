"""The byte layout of the three formats, and values made of it: pure functions, no files.

Constants, hashes, one record at a time, properties, queues as values, differences between releases.
Whole columns of records are decoded in `commitlog` and `arrow`.
"""
