"""Writing: `df.write.format("rmqstore")` and `df.writeStream.format("rmqstore")`.

Tasks check rows (`rows_to_append`) and put them, mostly as encoded records (`staged_records`), into
files beside the target (`staging`). The driver appends them in one process (`commit`), with a `ledger`
beside the target by which a write that was killed is undone or finished (`unfinished_write`,
`interrupted_append`). Spark calls `batch_writer` and `stream_writer`.
"""
