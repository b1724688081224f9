"""Writing: `df.write.format("rmqstore")` and `df.writeStream.format("rmqstore")`.

Tasks check rows (`rows_to_append`) and put them, mostly as encoded records, into files beside the target
(`staging`). The driver appends them in one process (`commit`). What concerns the target alone, its lock
and how a write that was killed is undone, is in `target`: a replay follows the same rules. Spark calls
`writers`.
"""
