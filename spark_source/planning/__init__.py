"""Make a plan from options: the stores, their pinned snapshots, ranges, filters, Spark partitions.

`reader` reads a partition.
"""
