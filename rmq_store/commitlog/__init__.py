"""The CommitLog: records as columns of headers, walked, checked by CRC and appended.

`scan` walks a range and names every gap. Bodies and properties become columns in `arrow`.
"""
