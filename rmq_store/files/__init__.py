"""Local files: chains of segment files, mapped for reading or open for writing.

Also small files written whole, truncation, synced folders, and the journal of a target. `format`
and the packages above it define what the bytes mean.
"""
