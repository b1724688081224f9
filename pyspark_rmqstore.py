"""Spark lists the top-level modules named `pyspark_*` and registers the `DefaultSource` of each.

That is all this module is for: with it on the path, `spark.read.format("rmqstore")` needs no call
to register.
"""

from spark_source.source import RmqStoreSource as DefaultSource

__all__ = ["DefaultSource"]
