"""The CommitLog: records as columns of headers; walking, CRC checks and appending.

`walk` covers a range and names every gap. `arrow` turns bodies and properties into columns.
"""
