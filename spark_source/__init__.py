"""The Spark data source: `spark.read.format("rmqstore")`. Needs pyspark; `rmq_store` does not."""
