"""Options of the Spark source: names and meanings, text to typed values, checks between options.

What the options select of a store is worked out in `planning`.
"""
