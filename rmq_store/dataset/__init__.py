"""Messages of stores as a dataset of Arrow: columns and filters of DuckDB, Polars and others decide what
is read. How a range of a queue is read is in `reading`, how keys are looked up in `search`.
"""
