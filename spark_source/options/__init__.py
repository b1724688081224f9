"""Options of the Spark source: names and meanings, text to typed values, checks between options.

`planning` works out what the options select in a store.
"""
