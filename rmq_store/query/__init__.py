"""Find the places that answer a question: find, trace, keys, and log slices.

`reading` reads these places; `tables` and `questions` have tables and sums about a store.
"""
