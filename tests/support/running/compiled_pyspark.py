"""Compile the archives from which Spark's Python workers import pyspark: `python -m ...`.

They hold sources alone, and Python keeps no compiled form of what it imports from an archive. So
each of the five kinds of process that a query starts spends half of its start on compiling.
"""

from __future__ import annotations

import compileall
import re
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode
from zipfile import ZipFile

import pyspark

ARCHIVES = Path(pyspark.__file__).parent / "python" / "lib"


def compile_archive(archive: Path) -> None:
    """Add the compiled form of every module to an archive. Done again, it changes nothing."""
    with ZipFile(archive) as old:
        if any(name.endswith(".pyc") for name in old.namelist()):
            return
        with tempfile.TemporaryDirectory() as folder:
            old.extractall(folder)
            # Unchecked: unpacking has changed the times of the sources.
            compileall.compile_dir(
                folder,
                quiet=2,
                legacy=True,
                rx=re.compile(r"/tests/"),
                stripdir=folder,
                invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
            )
            # Beside the archive, which it becomes at once and whole.
            new = archive.with_suffix(".new")
            with ZipFile(new, "w") as compiled:
                for path in sorted(Path(folder).rglob("*")):
                    compiled.write(path, path.relative_to(folder))
    new.replace(archive)


if __name__ == "__main__":
    if ARCHIVES.is_relative_to(sys.prefix):  # never change a Spark that is not of this environment
        for found in ARCHIVES.glob("*.zip"):
            compile_archive(found)
