"""Compiles the loops of rmq_store/loops in place; a hook of the build, and a program for `make`.

Without a C compiler the package is built all the same, and its loops run interpreted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
LOOPS = ROOT / "rmq_store" / "loops"
NOT_COMPILED = {"__init__", "bits"}
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": True,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": True,
}


def compile_loops(*, force: bool = False) -> list[Path]:
    """Compile what changed; returns the compiled modules. Raises what the compiler raises."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    sources = sorted(path for path in LOOPS.glob("*.py") if path.stem not in NOT_COMPILED)
    extensions = [
        Extension(
            f"rmq_store.loops.{path.stem}",
            [str(path.relative_to(ROOT))],
            extra_compile_args=["-O3", "-Wno-unused-function", "-Wno-sign-compare"],
        )
        for path in sources
    ]
    modules = cythonize(
        extensions,
        build_dir="build/loops",
        compiler_directives=DIRECTIVES,
        force=force,
        quiet=True,
    )
    command = Distribution({"name": "rmqstore", "ext_modules": modules}).get_command_obj(
        "build_ext"
    )
    command.inplace, command.force, command.build_temp = True, force, "build/loops"
    command.ensure_finalized()
    command.run()
    return [Path(command.get_ext_fullpath(extension.name)) for extension in extensions]


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled loops to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of a wheel are collected."""
        compile_loops()


if __name__ == "__main__":
    compile_loops(force="--force" in sys.argv)
