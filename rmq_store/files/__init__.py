"""Where bytes come from and go to: chains of segment files, mapped to read or opened to write.

Small files written whole, files cut, folders synced. What the bytes mean lives in `format` and above.
"""
