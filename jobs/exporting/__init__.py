"""Where an export writes: Parquet or Delta, step by step, and the manifest of what is there."""
