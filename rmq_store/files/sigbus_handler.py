"""Keeps this process alive when somebody cuts a file that it has mapped.

A page of a mapping that is no longer in its file cannot be read: the system sends SIGBUS, which ends the
process. Reading by position instead has no such fault, but copies every byte: a tenth of the time of a
read with all columns, and more than half of the time of a read of few columns. So files stay mapped, and
a handler puts zeros in place of the pages that are gone, as the JVM does for the broker's own mappings.
The fault is remembered: whoever reads a mapping asks afterwards, before the bytes lead to a result.

The fault is synchronous: the handler runs in the thread that reads the page, inside of a loop of numpy,
Arrow or a checksum. No state of Python is half changed there, so the handler may run Python. For an
address that is not ours, and where ctypes or the system are not as expected, the default stays.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from rmq_store.files.segments import SegmentFile

_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_MAP_FIXED = 0x10  # Linux on all processors
_SA_SIGINFO = 4
_lock = threading.Lock()
_mapped: dict[int, GuardedMapping] = {}
_faulted: list[GuardedMapping] = []  # kept, for whoever asks after the mapping is gone
_installed: list[Any] = []  # what the C library refers to


class _SigInfo(ctypes.Structure):
    """The begin of siginfo_t on 64-bit Linux."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_SigInfo), ctypes.c_void_p)


class _SigAction(ctypes.Structure):
    """struct sigaction of the C library on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class GuardedMapping:
    """One mapping: its file, its addresses, and the first position in it that could not be read."""

    def __init__(self, mapped: mmap.mmap, segment: SegmentFile) -> None:
        view = np.frombuffer(mapped, dtype=np.uint8)
        self.segment = segment
        self.start, self.length = int(view.ctypes.data), len(mapped)
        self.fault: int | None = None


class ReadFaults:
    """All faults of this process. `count` only grows, so that no fault is a comparison of numbers."""

    count = 0


def guard_mapping(mapped: mmap.mmap, segment: SegmentFile) -> GuardedMapping:
    """Guard a mapping of a file until it is unmapped. Its `GuardedMapping` lives as long."""
    guarded = GuardedMapping(mapped, segment)
    with _lock:
        if not _installed:
            _installed.append(None)
            # Where no memory may be made executable, there is no handler.
            with suppress(MemoryError, OSError, AttributeError, SystemError):
                _install()
        _mapped[guarded.start] = guarded
    weakref.finalize(mapped, _forget, guarded)
    return guarded


def _forget(guarded: GuardedMapping) -> None:
    # Another mapping may have got the same address since.
    if _mapped.get(guarded.start) is guarded:
        del _mapped[guarded.start]


def _install() -> None:
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return
    library = ctypes.CDLL(None, use_errno=False)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    )  # fmt: skip
    before = _SigAction()

    def on_fault(number: int, info: Any, context: int) -> None:
        try:
            if _replace(library, int(info.contents.address or 0)):
                return
        except BaseException:  # an exception would come back to the same fault for ever
            os.write(2, b"rmqstore: the handler of SIGBUS failed\n")
        library.sigaction(signal.SIGBUS, ctypes.byref(before), None)  # then it faults once more

    handler = _Handler(on_fault)
    # On the stack of the thread: the other one that faulthandler sets up is too small for Python.
    action = _SigAction(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO)
    library.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))
    _installed.extend((library, handler, action, before))


def _replace(library: Any, address: int) -> bool:
    """Put zeros in place of a mapping from the page of `address` to its end; False if it is not ours."""
    page = address - address % mmap.PAGESIZE
    for guarded in list(_mapped.values()):
        if guarded.start <= address < guarded.start + guarded.length:
            length = -(-(guarded.start + guarded.length - page) // mmap.PAGESIZE) * mmap.PAGESIZE
            if library.mmap(page, length, mmap.PROT_READ, _ANONYMOUS | _MAP_FIXED, -1, 0) != page:
                return False
            start = max(0, page - guarded.start)
            guarded.fault = start if guarded.fault is None else min(start, guarded.fault)
            _faulted.append(guarded)
            ReadFaults.count += 1
            return True
    return False
