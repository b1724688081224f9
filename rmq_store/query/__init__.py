"""From a question to the places that answer it: find, trace, keys, and the cut into slices.

Reading the places lives in `reading`; tables and sums about a store in `tables` and `questions`.
"""
