"""Bytes that a ring and a parameter server send over shaped links are those that were predicted."""

from __future__ import annotations

import pytest

from cingulum.bench.scaling.measure import measure
from trainer.bench.scaling.cells import Cell

SERVER = {"strategy": "parameter-server", "servers": 1, "options": {"piece_mb": 0.06}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [{"ranks": 3, "hosts": 3}, {"ranks": 2, "hosts": 2, **SERVER}], ids=["ring", "server"]
)
def test_bytes_on_every_interface_are_as_predicted(cluster, layout):
    cell = Cell("tiny", size=16, width=40, batch=1, scaling="weak", bandwidth="50mbit", steps=2, **layout)
    told = []
    row = measure(cell, cluster, told.append)
    assert row.error is None
    assert "predicted" in told[0] and "measured" in told[1]
    assert sorted(row.interfaces) == ["n1", "n2", "n3"]
    for host, counted in row.interfaces.items():
        assert counted == pytest.approx(row.predicted["interfaces"][host], rel=0.03)
    # A link cannot carry them faster than it was shaped to; how much slower is this machine's business.
    assert row.step_s["median"] > 0.9 * row.predicted["seconds"]
