"""Compiles the loops of rmq_store/loops: a hook of the build, and a program that compiles in place.

A wheel gets loops that are compiled for it alone; an editable install gets them beside their sources.
Without a C compiler the package is built all the same, as plain Python, and its loops run interpreted.

    python hatch_build.py [--stamp FILE] [-- FLAG...]

compiles in place what changed. It writes the file if the loops are compiled. The flags are for the compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
PACKAGE = "rmq_store.loops"
LOOPS = ROOT.joinpath(*PACKAGE.split("."))
NOT_COMPILED = {"__init__", "bits"}
SHARED = "_shared"
"""A module of Cython's own code, about memoryviews, that the others would else each have a copy of."""

INTERPRETED_VARIABLE = "RMQSTORE_INTERPRETED"
"""Builds plain Python although there is a compiler."""
COMPILED_VARIABLE = "RMQSTORE_COMPILED"
"""Fails a build that cannot compile the loops."""

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": True,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": True,
    # The hints are to switch off the checks above.
    "show_performance_hints": False,
}
FLAGS = ("-O3", "-g0", "-Wno-unused-function", "-Wno-sign-compare")

# With the limited API one wheel serves all versions of CPython from 3.11 on: the first whose limited API
# has buffers. The loops are as fast; a call of one takes a quarter of a microsecond more.
LIMITED_API, LIMITED_TAG = "0x030B0000", "cp311-abi3"
IS_LIMITED = (
    sys.implementation.name == "cpython"
    and sys.version_info >= (3, 11)
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)


class NoCompilerError(Exception):
    """No C compiler works here; the text says why."""


# --- what is compiled --------------------------------------------------------------------------------


def loop_names() -> list[str]:
    """The modules to compile."""
    return sorted(path.stem for path in LOOPS.glob("*.py") if path.stem not in NOT_COMPILED)


def stamp(name: str, flags: Sequence[str] = ()) -> bytes:
    """What a compiled module says of all that it was compiled from."""
    seen = hashlib.sha256(repr((version("cython"), IS_LIMITED, sys.platform, *flags)).encode())
    for path in (Path(__file__), *sorted(LOOPS.glob("*.pxd")), LOOPS / f"{name}.py"):
        if path.exists():
            seen.update(path.read_bytes())
    return f"rmqstore loops: {name} {seen.hexdigest()}".encode()


def compiled_in_place() -> dict[str, list[Path]]:
    """The compiled files beside the sources that this Python imports, by module; the first one wins."""
    found: dict[str, list[Path]] = {}
    for suffix in EXTENSION_SUFFIXES:
        for path in sorted(LOOPS.glob(f"*{suffix}")):
            name = path.name.removesuffix(suffix)
            if "." not in name:
                found.setdefault(name, []).append(path)
    return found


def not_current(flags: Sequence[str] = ()) -> list[str]:
    """The modules whose compiled file in place is missing or made from other sources."""
    files = compiled_in_place()
    return [
        name
        for name in [SHARED, *loop_names()]
        if name not in files or stamp(name, flags) not in files[name][0].read_bytes()
    ]


# --- compile -----------------------------------------------------------------------------------------


def compile_in_place(flags: Sequence[str] = ()) -> None:
    """Compile what changed, beside the sources; remove other compiled files, which would hide them.

    Without a compiler those of the right sources stay.
    """
    wanted = not_current(flags)
    kept = set(loop_names()) | {SHARED}
    for name, paths in compiled_in_place().items():
        current = name in kept and name not in wanted
        for path in paths[1:] if current else paths:
            path.unlink()
    if not wanted:
        return
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="loops-") as folder:
        for path in compile_into(Path(folder), wanted, flags):
            path.replace(LOOPS / path.name)  # at once: a process may have the old one mapped


def compile_into(folder: Path, names: Sequence[str], flags: Sequence[str] = ()) -> list[Path]:
    """Compile modules into a folder; returns the compiled files.

    Raises NoCompilerError, or what Cython or the compiler says of our sources (`compile_errors`).
    """
    _need_compiler(folder)
    modules = {
        f"{PACKAGE}.{name}": LOOPS.relative_to(ROOT) / f"{name}{'.c' if name == SHARED else '.py'}"
        for name in names
    }
    return _compile(modules, folder, flags)


def compile_alone(name: str, source: Path, folder: Path) -> Path:
    """Compile one module of Cython that may use bits.pxd, for tests; returns the compiled file."""
    _need_compiler(folder)
    (path,) = _compile({name: source}, folder, ())
    return path


def _need_compiler(folder: Path) -> None:
    probe = folder / "probe.c"
    probe.write_text("#include <Python.h>\nPyObject *PyInit_probe(void) { return 0; }\n")
    try:
        _build([_extension("probe", probe, ())], folder)
    except compile_errors() as error:
        raise NoCompilerError(f"the C compiler {compiler()!r} does not work") from error


def _compile(modules: Mapping[str, Path], folder: Path, flags: Sequence[str]) -> list[Path]:
    from Cython.Build import cythonize

    before = Path.cwd()
    os.chdir(ROOT)  # Cython names the generated files, and finds bits.pxd, by relative paths
    try:
        extensions = cythonize(
            [_extension(name, source, flags) for name, source in modules.items()],
            build_dir=str(folder),
            compiler_directives=DIRECTIVES,
            shared_utility_qualified_name=f"{PACKAGE}.{SHARED}",
            force=True,
            quiet=True,
        )
        for name, extension in zip(modules, extensions, strict=True):
            with open(extension.sources[0], "a") as file:
                text = stamp(name.rpartition(".")[2], flags).decode()
                file.write(f'\n__attribute__((used)) static const char rmq_stamp[] = "{text}";\n')
        return _build(extensions, folder)
    finally:
        os.chdir(before)


def _extension(name: str, source: Path, flags: Sequence[str]) -> Any:
    from setuptools import Extension

    return Extension(
        name,
        [str(source)],
        extra_compile_args=[*FLAGS, *flags],
        extra_link_args=list(flags),
        define_macros=[("Py_LIMITED_API", LIMITED_API)] if IS_LIMITED else [],
        py_limited_api=IS_LIMITED,
    )


def _build(extensions: list[Any], folder: Path) -> list[Path]:
    from setuptools import Distribution

    command = Distribution({"name": "rmqstore", "ext_modules": extensions}).get_command_obj(
        "build_ext"
    )
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    return [Path(command.get_ext_fullpath(extension.name)) for extension in extensions]


# --- the hook, and the program -----------------------------------------------------------------------


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds compiled loops to a wheel, or compiles in place for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of a wheel are collected."""
        try:
            if os.environ.get(INTERPRETED_VARIABLE):
                raise NoCompilerError(f"{INTERPRETED_VARIABLE} is set")
            if version == "editable":
                compile_in_place()
            else:
                self._compile_for_wheel(build_data)
        except NoCompilerError as error:
            if os.environ.get(COMPILED_VARIABLE):
                raise
            self.app.display_warning(plain_python(str(error)))
        except compile_errors():
            if os.environ.get(COMPILED_VARIABLE):
                raise
            self.app.display_warning(plain_python(f"{compiler()!r} cannot compile them"))

    def _compile_for_wheel(self, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        files = compile_into(Path(self._folder.name), [SHARED, *loop_names()])
        inside = LOOPS.relative_to(ROOT).as_posix()
        build_data["force_include"].update({str(path): f"{inside}/{path.name}" for path in files})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if IS_LIMITED:
            platform = self._tag_of_this_python().rsplit("-", 1)[1]
            build_data["tag"] = f"{LIMITED_TAG}-{platform}"

    def _tag_of_this_python(self) -> str:
        tag: str = self.build_config.builder.get_best_matching_tag()
        return tag

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel, now that the wheel has it."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def compile_errors() -> tuple[type[Exception], ...]:
    """What a C compiler that fails or is missing raises."""
    from setuptools.errors import BaseError, CCompilerError, CompileError, LinkError

    return (BaseError, CCompilerError, CompileError, LinkError, OSError)


def compiler() -> str:
    """The command of the C compiler."""
    return os.environ.get("CC") or str(sysconfig.get_config_var("CC"))


def plain_python(reason: str) -> str:
    """The line for a build without compiled loops."""
    return f"rmqstore is built as plain Python, and will be slow: its loops are not compiled ({reason})"


def main() -> None:
    """Compile in place. A machine without a compiler is no error; sources that do not compile are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stamp", type=Path)
    parser.add_argument("flags", nargs="*")
    asked = parser.parse_args()
    try:
        compile_in_place(asked.flags)
    except NoCompilerError as error:
        if os.environ.get(COMPILED_VARIABLE):
            raise
        print(plain_python(str(error)), file=sys.stderr)
        return
    if asked.stamp is not None:
        asked.stamp.parent.mkdir(parents=True, exist_ok=True)
        asked.stamp.touch()


if __name__ == "__main__":
    main()
