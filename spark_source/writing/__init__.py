"""Writing into a target: the lock that one process at a time holds on it."""
