"""A file that is cut under its mapping reads as zeros, and the next question is an error."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.running.child import python, run_python

BEGIN = """
import mmap, os, sys, threading
import numpy as np
import pyarrow as pa
from rmq_store.errors import DataLossError
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.sigbus_handler import ReadFaults
folder = sys.argv[1]
path = f"{folder}/{0:020d}"
SIZE = 1 << 22
with open(path, "wb") as file:
    file.write(b"\\x07" * SIZE)
chain = SegmentChain([folder], file_size=SIZE)
"""


def run(code: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return run_python(*flags, "-c", BEGIN + code, str(folder))


USES = {
    "numpy": "int(window.sum())",
    "a copy": "window.copy()",
    "bytes": "bytes(window.data)",
    "arrow": "pa.py_buffer(window).to_pybytes()",
    "a checksum": "__import__('zlib').crc32(window)",
    "a gather": "window[np.arange(0, len(window), 4097)]",
    "a thread": "(t := threading.Thread(target=lambda: window.sum()), t.start(), t.join())",
}


@pytest.mark.parametrize(
    ("use", "flags"), [*((use, ()) for use in USES), ("numpy", ("-X", "faulthandler"))]
)
def test_a_cut_is_an_error_after_the_bytes_were_used(
    use: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    code = f"""
entered = chain.window(0, SIZE)
window = entered.bytes
assert window[0] == 7
os.truncate(path, 1 << 20)
{USES[use]}
# Some processors copy the last bytes first: that is a fault of its own.
assert ReadFaults.count and window[(1 << 20) - 1] == 7 and window[1 << 20] == 0
leave = lambda: entered.__exit__(None, None, None)
for ask in (leave, leave, lambda: chain.window(0, 10)):
    try:
        ask()
    except DataLossError as error:
        print(error.path == path, error.offset)
"""
    done = run(code, tmp_path, *flags)
    assert (done.stdout, done.returncode) == ("True 1048576\n" * 3, 0), done.stderr


def test_a_fault_concerns_only_those_who_mapped_the_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    code = f"""
with open({str(other / ("0" * 20))!r}, "wb") as file:
    file.write(b"\\x07" * SIZE)
other = SegmentChain([{str(other)!r}], file_size=SIZE)
entered, unharmed = chain.window(0, SIZE), other.window(0, SIZE)
window = entered.bytes
chain.close()  # the view is still there
os.truncate(path, 0)
window.sum()
with unharmed:
    assert unharmed.bytes[SIZE - 1] == 7
try:
    with entered:
        pass
except DataLossError as error:
    print("cut at", error.offset)
del window, entered
with open(path, "wb") as file:
    file.write(b"\\x08" * SIZE)
again = SegmentChain([folder], file_size=SIZE)
with again.window(0, SIZE) as window:
    assert window.bytes[SIZE - 1] == 8
"""
    assert python(BEGIN + code, str(tmp_path)) == "cut at 0\n"


def test_another_mapping_of_the_process_ends_it_as_before(tmp_path: Path) -> None:
    code = """
chain.window(0, SIZE)  # the handler is there now
with open(f"{folder}/foreign", "wb") as file:
    file.write(bytes(1 << 20))
with open(f"{folder}/foreign", "rb") as file:
    foreign = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
os.truncate(f"{folder}/foreign", 0)
foreign[0]
"""
    done = run(code, tmp_path)
    assert done.returncode == -signal.SIGBUS
