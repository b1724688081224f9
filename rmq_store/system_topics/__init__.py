"""What the messages of the broker's own topics stand for: delays, timers, transactions, retries, traces.

Each module reads some topics, and the files that say how far the broker is with them. The columns are in
`tables`.
"""
