"""The hot loops: plain loops over records, one source that runs compiled and interpreted.

Each module is Cython in pure Python mode: compiled where the package was built with a C compiler,
else run by Python as it stands, with the same results and some hundred times slower. `bits` holds the
few functions that are C when compiled; all bytes are read and written through them, within bounds.
Loops take buffers and numbers, and fill buffers that the caller made. Arrow and numpy stay outside.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

INTERPRETED_VARIABLE = "RMQSTORE_INTERPRETED"
"""An environment variable; if it is set, the loops run interpreted although they are compiled."""


def _interpret() -> None:
    """Load the sources of all loops in place of what they were compiled to."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        name = f"{__name__}.{path.stem}"
        spec = spec_from_file_location(name, path, loader=SourceFileLoader(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


if os.environ.get(INTERPRETED_VARIABLE):
    _interpret()
