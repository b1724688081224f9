"""Writing: `df.write.format("rmqstore")` and `df.writeStream.format("rmqstore")`.

Tasks check rows (`rows_to_append`) and put them, mostly as encoded records (`staged_records`), into
files beside the target. The driver appends them in one process (`commit`). All that concerns the
target alone, as what was killed, is in `target`. Spark calls `batch_writer` and `stream_writer`.
"""
