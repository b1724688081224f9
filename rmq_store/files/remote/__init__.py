"""Stores in an object store: their listing, and ranges of their files fetched on demand.

Local files are one folder up, in `files`.
"""
