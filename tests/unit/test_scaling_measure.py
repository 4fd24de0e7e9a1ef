"""What is predicted for a cell, and what of it is refused before anything starts."""

from __future__ import annotations

import pytest
from wording import fails_with

from cingulum.bench.scaling import measure
from jobs.testbed.layout import bytes_per_second
from trainer.bench.scaling.cells import Cell, predict
from trainer.config.strategy import RingConfig, ServerConfig
from trainer.errors import ConfigError, JobError, WorldError
from trainer.strategies import data_plan
from trainer.strategies.servers import layout

TABLE = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       5       1    0    0    0     0          0         0        6       1    0    0    0     0       0          0
  eth0: 1234567    8656    0    0    0     0          0         0   765432    4326    0    0    0     0       0          0
"""  # noqa: E501


def test_the_kernels_counters_are_read_by_their_columns():
    assert measure.interface_bytes(TABLE) == (765432, 1234567)
    assert measure.interface_bytes(TABLE, "lo") == (6, 5)
    with fails_with(WorldError):
        measure.interface_bytes(TABLE, "eth1")


@pytest.mark.parametrize(
    ("rate", "expected"), [("200mbit", 25e6), ("1gbit", 125e6), ("1.5kbit", 187.5), ("8bit", 1)]
)
def test_a_rate_in_bytes(rate, expected):
    assert bytes_per_second(rate) == expected


def test_no_rate():
    with pytest.raises(JobError):
        bytes_per_second("fast")


def predicted(cell, sizes, compute_s):
    """What is predicted of so many bytes of variables, by names of hosts."""
    elements = [size // 4 for size in sizes]
    if cell.servers:
        server = ServerConfig(name=cell.strategy, count=cell.servers, **cell.options)
        moves = layout.exchange_of(server, elements, cell.ranks, one_host=False)
    else:
        moves = data_plan.exchange(RingConfig(name=cell.strategy, **cell.options), elements, cell.ranks)
    rate = bytes_per_second(cell.bandwidth) if cell.bandwidth else None
    hosts = [f"n{number}" for number in range(1, cell.machines + 1)]
    return measure._named(hosts, predict(cell, moves.rounds, compute_s, rate))


def test_a_ring_is_predicted_from_its_bytes_and_its_computing():
    cell = Cell("tiny", ranks=4, hosts=4, bandwidth="8mbit")
    found = predicted(cell, [1_000_000, 448_000], 0.25)
    payload, sent = 1.5 * 1_448_000, 1500 * (1514 + 33)
    assert found["payload"]["n3"] == pytest.approx({"sent": payload, "received": payload})
    assert found["interfaces"]["n3"] == pytest.approx({"sent": sent, "received": sent})
    assert found["seconds"] == pytest.approx(sent / 1e6)
    assert found["step_s"] == pytest.approx(sent / 1e6 + 0.25)


def test_half_the_bytes_with_16_bits_on_the_wire():
    cell = Cell("tiny", ranks=2, hosts=2, options={"compression": "float16"})
    found = predicted(cell, [1_000_000], 0.25)
    assert found["interfaces"]["n1"]["sent"] == pytest.approx(500_000)
    assert "seconds" not in found  # the link has no rate


def served(**options):
    return Cell(
        "tiny",
        strategy="parameter-server",
        options={"piece_mb": 0.125, **options},
        ranks=2,
        servers=2,
        hosts=2,
        bandwidth="8mbit",
    )


def test_servers_are_predicted_from_their_shares_and_the_size_of_a_piece():
    found = predicted(served(), [2**20, 2**20], 0.0)
    assert found["payload"] == {host: {"sent": 2**21, "received": 2**21} for host in ("n1", "n2", "n3", "n4")}
    # Of each share of 1 MiB, an eighth has the link for itself on its way in, and one on its way out.
    assert found["seconds"] == pytest.approx(found["interfaces"]["n3"]["sent"] / 1e6 * (1 + 1 / 8), rel=1e-2)


def test_colocated_servers_use_both_directions_in_either_half():
    found = predicted(served(placement="colocated"), [2**20, 2**20], 0.0)
    assert found["payload"] == {host: {"sent": 2**21, "received": 2**21} for host in ("n1", "n2")}
    assert found["seconds"] == pytest.approx(found["interfaces"]["n1"]["sent"] / 1e6, rel=1e-3)


def test_nothing_crosses_an_interface_on_this_host():
    assert predicted(Cell("tiny", ranks=2), [1000], 0.25) == {}


@pytest.mark.parametrize(
    "cell",
    [
        Cell("tiny", epochs=1),
        Cell("tiny", options={"algorithm": "spiral"}),
        Cell("tiny", options={"bucket": 1}),
        Cell("tiny", strategy="parameter-server"),
        Cell("tiny", strategy="parameter-server", servers=1, options={"mode": "async"}),
    ],
)
def test_a_cell_that_cannot_be_measured_is_refused(cell):
    with pytest.raises(ConfigError):
        measure.measure(cell, None, print)
