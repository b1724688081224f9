"""IndexFile: geometry, files, hash chains, keys of messages, key lookup, and the writer.

`search` searches messages by key across index and log.
"""
