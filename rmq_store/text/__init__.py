"""Convert values to text and back: JSON lines, camelCase keys, byte counts, times, progress bars.

How a command prints its answer lives in `cli`.
"""
