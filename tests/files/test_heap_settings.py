"""Freed memory is kept: seen by the pages that a process has to ask for."""

from __future__ import annotations

import pytest

from rmq_store.heap_settings import keep_freed_memory
from tests.support.running.child import python

BATCHES = """
import resource, sys
import numpy as np
from rmq_store.heap_settings import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
    assert keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    columns = [np.ones(1 << 20, dtype=np.uint8) for _ in range(8)]
    del columns
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    return int(python(BATCHES, how))


@pytest.mark.skipif(not keep_freed_memory(), reason="not the C library of GNU")
def test_batches_do_not_ask_for_their_pages_again() -> None:
    pages_of_a_batch = 8 * (1 << 20) // 4096
    assert faults("keep") < 4 * pages_of_a_batch
    assert faults("as it is") > 20 * pages_of_a_batch


SETTLED = """
import gc
from rmq_store.heap_settings import settle_worker
before = gc.get_freeze_count()
settle_worker()
frozen = gc.get_freeze_count()
settle_worker()
print(before, frozen > 1000, gc.get_freeze_count() == frozen)
"""


def test_a_worker_leaves_its_modules_out_of_collections_once() -> None:
    assert python(SETTLED).split() == ["0", "True", "True"]
