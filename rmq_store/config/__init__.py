"""What lies beside the three formats: broker.conf, config/*.json, checkpoint, abort and lock.

Also finds the store in a folder. What the settings mean for a log or a queue lives with those.
"""
