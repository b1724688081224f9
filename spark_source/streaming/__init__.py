"""Reading as a stream: `spark.readStream.format("rmqstore")`.

`micro_batch_ends` finds where a micro-batch ends, with the offsets that Spark keeps, and
`stream_reader` is what Spark calls. `rmq_store.scan` reads the rows, as in a batch.
"""
