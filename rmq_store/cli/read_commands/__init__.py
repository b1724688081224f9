"""Commands that only read: info, tables, usage, cat, find, tail, trace, verify."""
