"""Questions about a store that a command and a Spark job answer alike.

Each is written once: a plan, the work on one share of the store, a merge. `engine` runs it in this
process; jobs bring the engine that runs it on Spark. Printing lives in `cli` and `jobs`.
"""
