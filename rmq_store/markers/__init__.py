"""The files by which a broker says what state its store is in: lock, abort and checkpoint.

`config` has the settings. `recovery` decides from these files how to repair a store.
"""
