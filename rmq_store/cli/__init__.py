"""The `rmqstore` command: a store's questions answered in a shell, without Spark and a broker.

Options, printing and exit codes live here; the answers come from the rooms below.
"""
