"""The most memory that a process took, counted while it trains and not in between."""

from __future__ import annotations

import mmap

import pytest

from trainer.telemetry import peak_memory
from trainer.telemetry.peak_memory import PeakMemory

MIB = 2**20


def hold(mib):
    """Take memory of its own from the system, and give it back: `malloc` may have some left."""
    with mmap.mmap(-1, mib * MIB) as taken:
        for _ in range(mib):
            taken.write(b"1" * MIB)


def test_what_is_there_only_for_a_while_counts_and_what_comes_afterwards_does_not():
    counted = PeakMemory(peak_memory.resident())
    hold(200)
    assert counted.most is None
    counted.begin()
    hold(40)
    counted.end()
    assert 35 * MIB < counted.most < 60 * MIB
    seen = counted.most
    hold(200)
    counted.end()
    assert counted.most == seen
    counted.begin()
    counted.end()
    assert counted.most == seen


@pytest.mark.parametrize("before", [None, 0])
def test_a_system_that_does_not_tell_gives_nothing(monkeypatch, tmp_path, before):
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "none")
    counted = PeakMemory(before)
    counted.begin()
    counted.end()
    assert counted.most is None and peak_memory.resident() is None
