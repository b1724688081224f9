"""What operators do to stores: info, rebuild, salvage, retention, reset of consumer offsets.

Examining a store lives in `verify`, repairing one in place in `recovery`.
"""
