"""ConsumeQueue and BatchConsumeQueue: entries, files, folders, the extension, and the writer.

`dispatch` derives entries from records. Looking up offsets and times in a snapshot lives there.
"""
