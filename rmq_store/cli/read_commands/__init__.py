"""Commands that change nothing: info, tables, usage, cat, find, tail, trace, verify."""
