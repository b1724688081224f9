"""For tests of applications: stores made of a few messages, checks of stores, a real broker.

pytest loads `plugin` by itself. Nothing else in the product imports this room.
"""
