"""The Spark side: `spark.read.format("rmqstore")`. Needs pyspark; `rmq_store` does not."""
