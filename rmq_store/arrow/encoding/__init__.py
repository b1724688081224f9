"""Messages to the bytes of records: a batch of columns at a time, or one message readably.

Checks for everything that a broker would refuse. `writing` decides where the bytes go.
"""
