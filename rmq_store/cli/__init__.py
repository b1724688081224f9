"""The `rmqstore` command: the command line for a store, without Spark and without a broker.

Options, printing and exit codes live here; the answers come from the packages below.
"""
