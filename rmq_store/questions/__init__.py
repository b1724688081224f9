"""Questions about a store that a command and a Spark job answer in the same way.

Each question is written once: a plan, the work on one share of the store, a merge.
`answer_by_shares` runs it in this process; jobs have an engine that runs it on Spark. `cli` and
`jobs` print the answers.
"""
