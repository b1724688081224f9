"""Answers about a store that commands, the report and jobs print.

Work that Spark or processes may share (verify, export, replay) is a question: a plan, the work on one
share of the store, a merge. `answer_by_shares` runs it in this process or in several; jobs have an engine
that runs it on Spark. The other answers are functions.
"""
