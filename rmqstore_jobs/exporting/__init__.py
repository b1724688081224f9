"""The targets of an export, Parquet and Delta, and the manifest of what a target has."""
