"""SQL about stores, by DuckDB: messages and tables as views. What a query reads is decided in `dataset`;
how answers are printed is in `cli`.
"""
