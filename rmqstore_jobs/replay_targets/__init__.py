"""Where a replay writes: another store, Parquet, a running broker; or nowhere (dry run)."""
