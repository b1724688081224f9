"""The functions of pyarrow.compute, which is loaded when one of them is first used.

That takes a tenth of the time of a command that reads little, and most of these need none of them.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    return getattr(pyarrow.compute, name)
