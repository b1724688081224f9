"""Reading as a stream: `spark.readStream.format("rmqstore")`.

`offsets` is what Spark's checkpoint keeps, `micro_batch_ends` finds where a micro-batch ends, and
`stream_reader` is what Spark calls. `rmq_store.scan` reads the rows, as in a batch.
"""
