"""The dashboard of a broker that is down: pages about a store in a browser, on loopback, read only.

The answers are those of the rooms below, the look is that of the report. Needs the extra `browse`.
"""
