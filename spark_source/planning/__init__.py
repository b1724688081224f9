"""From options to a plan: the stores, their pinned snapshots, ranges, filters, Spark partitions.

Reading a partition lives in `reader`.
"""
