"""IndexFile: geometry, files, hash chains, keys of messages, key look-up, and the writer.

Looking for messages by key across index and log lives in `query`.
"""
