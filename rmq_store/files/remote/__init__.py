"""Stores in an object store: which files there are, and ranges of them fetched as they are read.

Local files live one folder up.
"""
