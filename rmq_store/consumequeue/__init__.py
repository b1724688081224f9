"""ConsumeQueue and BatchConsumeQueue: entries, files, folders, the extension, and the writer.

`dispatch` derives entries from records. `snapshot` looks up offsets and times.
"""
