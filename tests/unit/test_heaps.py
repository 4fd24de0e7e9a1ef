"""Heaps of a service in the C library, counted by itself."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from cingulum.cli import app
from cingulum.cli.serving import Serving
from cingulum.service import heaps

# Threads that hold memory at the same time, and how many heaps that made.
COUNT = """
import ctypes, sys, tempfile, threading
from cingulum.service import heaps

if sys.argv[1] == "few":
    assert heaps.keep_few()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(6)

def hold():
    together.wait()
    for _ in range(1000):
        libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=hold) for _ in range(6)]
[one.start() for one in threads]
[one.join() for one in threads]
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    assert libc.malloc_info(0, stream) == 0
    libc.fclose(stream)
    print(file.read().count(b"<heap "))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps are glibc's")
def test_a_service_has_two_heaps_however_many_threads_it_has():
    def count(how):
        words = [sys.executable, "-c", COUNT, how]
        unset = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        return int(subprocess.run(words, capture_output=True, text=True, check=True, env=unset).stdout)

    assert count("few") <= 2 < count("as ever")


def test_what_a_site_has_set_stays(monkeypatch):
    asked = []

    class Libc:
        def __init__(self, name):
            self.mallopt = lambda option, value: asked.append((option, value)) or 1

    for _, name, _ in heaps._OPTIONS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(heaps.ctypes, "CDLL", Libc)
    assert heaps.keep_few() and len(asked) == 3
    asked.clear()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert heaps.keep_few()
    assert [option for option, _ in asked] == [heaps._MMAP_THRESHOLD, heaps._TRIM_THRESHOLD]


def test_elsewhere_nothing_is_set(monkeypatch):
    monkeypatch.setattr(heaps.ctypes, "CDLL", lambda name: object())
    assert not heaps.keep_few()


def test_serve_keeps_few_before_it_answers(monkeypatch, tmp_path):
    done = []
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path))
    monkeypatch.setattr(heaps, "keep_few", lambda: done.append("heaps"))
    monkeypatch.setattr(Serving, "at_socket", lambda self, path, host: done.append("serves"))
    assert app.run(["serve", "--socket", str(tmp_path / "s")]) == 0
    assert done == ["heaps", "serves"]
