"""The functions of bits, compiled and interpreted: each declaration of bits.pxd with a twin in bits.py.

No Python can call the compiled ones, so that a module around them is compiled here.
"""

from __future__ import annotations

import importlib.util
import inspect
import random
import re
import sys
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

import hatch_build
from rmq_store.format.hashes import CRC32_IN_C
from rmq_store.loops import bits
from rmq_store.testing.live_broker.needs import missing_here

DECLARED = re.compile(
    r"^cdef inline (?P<result>[\w ]+?) (?P<name>\w+)\((?P<taken>[^)]*)\)(?P<rest>[^:]*):$", re.M
)
BYTES = {"Bytes", "Room"}
CASES = 1500


@dataclass(frozen=True)
class Declared:
    """A function of bits.pxd: its name, and the type and the name of each argument."""

    name: str
    taken: tuple[tuple[str, str], ...]


def declared() -> list[Declared]:
    text = (hatch_build.LOOPS / "bits.pxd").read_text()
    found = []
    for match in DECLARED.finditer(text):
        taken = [part.strip().rsplit(" ", 1) for part in match["taken"].split(",")]
        one = Declared(match["name"], tuple((kind, name) for kind, name in taken))
        if one.name in vars(bits):
            found.append(one)
    return found


FUNCTIONS = declared()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module with a Python function around each compiled one."""
    folder = tmp_path_factory.mktemp("bits")
    source = ["from rmq_store.loops cimport bits", "from rmq_store.loops.bits cimport *"]
    source.append("from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t")
    for one in FUNCTIONS:
        taken = ", ".join(f"{kind} {name}" for kind, name in one.taken)
        given = ", ".join(name for _, name in one.taken)
        source.append(f"def {one.name}({taken}):\n    return bits.{one.name}({given})")
    (folder / "around_bits.pyx").write_text("\n".join(source) + "\n")
    try:
        path = hatch_build.compile_alone("around_bits", folder / "around_bits.pyx", folder)
    except hatch_build.NoCompilerError as error:
        missing_here(str(error))
    spec = importlib.util.spec_from_file_location("around_bits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["around_bits"] = module
    spec.loader.exec_module(module)
    return module


def test_every_function_has_a_twin() -> None:
    in_python = {
        name
        for name, value in vars(bits).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert in_python == {one.name for one in FUNCTIONS}


@pytest.mark.parametrize("one", FUNCTIONS, ids=lambda one: one.name)
def test_compiled_equals_interpreted(one: Declared, compiled: ModuleType) -> None:
    chosen = random.Random(zlib.crc32(one.name.encode()))
    errors = 0
    for _ in range(CASES):
        given = [argument(kind, name, chosen) for kind, name in one.taken]
        rest, own = ([copied(value) for value in given] for _ in range(2))
        expected = outcome(getattr(bits, one.name), rest)
        assert outcome(getattr(compiled, one.name), own) == expected, given
        errors += expected is IndexError
        if expected is not IndexError:
            assert written(one, own) == written(one, rest), given
    assert errors < CASES, "no case is inside of its buffer"


def argument(kind: str, name: str, chosen: random.Random) -> Any:
    """A value for an argument: mostly sound, at times outside of what any buffer has."""
    if kind in BYTES:
        few = chosen.choice([b"\0\1", bytes(range(256)), b"ab\0"])
        return bytes(chosen.choices(few, k=chosen.choice([0, 1, 7, 8, 9, 20, 45, 90, 700])))
    if kind == "LongRoom":
        return array("q", bytes(8 * chosen.choice([0, 1, 3, 90, 700])))
    if kind == "IntRoom":
        return array("i", bytes(4 * chosen.choice([0, 1, 3, 90, 700])))
    if name == "function":
        return CRC32_IN_C
    if name == "byte":
        return chosen.choice([0, 1, 2, 97, 128, 255])
    if kind in ("Py_ssize_t", "Place") or name in ("at", "size", "stop", "to", "place"):
        large = [sys.maxsize, sys.maxsize - 7, -sys.maxsize - 1, -1]
        return chosen.choice(
            [
                *(chosen.randrange(12) for _ in range(2)),
                chosen.randrange(-9, 99),
                chosen.randrange(300),
            ]
            if chosen.random() < 0.95
            else large
        )
    limit = {"int": 31, "int32_t": 31, "uint32_t": 32, "uint64_t": 64}.get(kind, 63)
    value = chosen.getrandbits(limit) >> chosen.randrange(limit)
    return value if kind.startswith("uint") or chosen.random() < 0.5 else -value


def copied(value: Any) -> Any:
    return (
        value[:]
        if isinstance(value, array)
        else bytearray(value)
        if isinstance(value, bytes)
        else value
    )


def outcome(function: Callable[..., Any], given: list[Any]) -> Any:
    try:
        found = function(*[memoryview(v) if isinstance(v, bytearray | array) else v for v in given])
        if isinstance(found, memoryview):
            return bytes(found) or 0
    except IndexError:
        return IndexError
    return found or 0  # None, False and 0 are the same: nothing returned is 0 in C


def written(one: Declared, given: list[Any]) -> list[Any]:
    """What rooms hold; a copy may leave anything in the 64 bytes behind its end."""
    rooms: list[Any] = []
    by_name = {name: value for (_, name), value in zip(one.taken, given, strict=True)}
    for kind, name in one.taken:
        if kind == "Room":
            room = bytearray(by_name[name])
            if "to" in by_name and "size" in by_name:
                end = by_name["to"] + by_name["size"]
                del room[end : end + 64]
            rooms.append(room)
        if kind in ("LongRoom", "IntRoom"):
            rooms.append(by_name[name])
    return rooms
