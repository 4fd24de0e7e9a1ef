"""Memory of reading threads: kept, grown, of each thread its own, and on huge pages where asked for."""

from __future__ import annotations

import mmap
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from trainer.data.shards import thread_memory
from trainer.data.shards.thread_memory import HUGE_PAGE, aligned, on_huge_pages, scratch


def huge_bytes_at(address: int) -> int:
    """Bytes on huge pages of the mapping that holds an address."""
    mapping = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            mapping = range(*(int(part, 16) for part in found.groups()))
        elif line.startswith("AnonHugePages:") and mapping is not None and address in mapping:
            return int(line.split()[1]) << 10
    raise AssertionError("no such mapping")


@pytest.mark.parametrize("huge_pages", [False, True])
def test_memory_is_kept_and_grows(monkeypatch, huge_pages):
    monkeypatch.setattr(thread_memory, "_kept", threading.local())
    first = scratch("a", 3 << 20, huge_pages=huge_pages)
    assert (first.dtype, first.size) == (np.uint8, 3 << 20)
    assert scratch("a", 1000, huge_pages=huge_pages).ctypes.data == first.ctypes.data
    larger = scratch("a", 9 << 20, huge_pages=huge_pages)
    larger[...] = 7
    assert larger.size == 9 << 20
    assert scratch("a", 3 << 20, huge_pages=huge_pages).ctypes.data == larger.ctypes.data
    assert scratch("b", 1000).ctypes.data != larger.ctypes.data
    first[...] = 1  # still there
    assert (larger == 7).all()


def test_each_thread_has_its_own():
    found = {}
    threads = [
        threading.Thread(target=lambda name=name: found.update({name: scratch("own", 5000)})) for name in "ab"
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert not np.shares_memory(found["a"], found["b"])


@pytest.mark.parametrize("nbytes", [0, 1, HUGE_PAGE, HUGE_PAGE + 1])
def test_huge_pages_are_whole_and_begin_where_one_does(nbytes):
    memory = on_huge_pages(nbytes)
    assert memory.size % HUGE_PAGE == 0 and 0 <= memory.size - nbytes < HUGE_PAGE
    assert memory.ctypes.data % HUGE_PAGE == 0 or not memory.size
    assert not memory.any()


def gives_huge_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.is_file() and "[never]" not in setting.read_text()


@pytest.mark.skipif(not gives_huge_pages(), reason="this system gives no huge pages")
def test_the_system_gives_huge_pages():
    memory = on_huge_pages(3 << 20)
    memory[...] = 1
    assert huge_bytes_at(memory.ctypes.data) == 4 << 20


def test_a_forked_child_shares_no_page_of_it():
    """What a disk writes into the one of both at that moment might go to the other: see open(2), Notes."""
    memory = on_huge_pages(5)
    memory[...] = 3
    child = os.fork()
    if child == 0:
        os._exit(1 if memory.any() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (memory == 3).all()


def test_a_kernel_without_huge_pages_gives_the_usual_ones(monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, *advice):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    memory = on_huge_pages(5)
    memory[...] = 3
    assert (memory == 3).all()


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 11, 13)])
def test_arrays_begin_where_tensorflow_takes_them_over(shape):
    array = aligned(shape, np.float32)
    assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.float32, True)
    assert array.ctypes.data % 64 == 0
