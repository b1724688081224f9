"""Local files: chains of segment files, mapped for reading or open for writing.

Also small files written whole, truncation, and synced folders. `format` and the packages above it
define what the bytes mean.
"""
