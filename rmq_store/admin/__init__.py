"""Operations on stores: info, rebuild, salvage, retention, reset of consumer offsets.

`verify` checks a store, `recovery` repairs one in place.
"""
