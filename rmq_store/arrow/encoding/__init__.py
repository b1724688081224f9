"""Messages to the bytes of records: a batch of columns at a time, or one message readably.

Checks what a broker would refuse. Where the bytes go is decided in `writing`.
"""
