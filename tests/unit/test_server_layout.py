"""Which server holds what: every element once, shares equal by bytes, messages in backward order."""

from __future__ import annotations

import numpy as np
import pytest
from wording import fails_with

from trainer.config import parse
from trainer.config.strategy import ServerConfig
from trainer.errors import ConfigError
from trainer.ranks.members import Members
from trainer.strategies.servers.layout import ServerPiece, bundles, bytes_per_server, layout, message_bytes

SIZES = (1000, 8, 30000, 64, 7, 512, 10)


@pytest.mark.parametrize("servers", [1, 2, 3, 4])
@pytest.mark.parametrize("whole", [False, True])
def test_every_element_is_held_once(servers, whole):
    held = [np.zeros(size, int) for size in SIZES]
    for piece in layout(SIZES, servers, piece_bytes=4096, whole=whole):
        held[piece.variable][piece.start : piece.stop] += 1
        assert 0 <= piece.server < servers
        assert piece.size * 4 <= 4096 or whole
    assert all((part == 1).all() for part in held)


@pytest.mark.parametrize("servers", [2, 3, 4])
def test_shares_differ_by_less_than_a_sixteenth(servers):
    shares = bytes_per_server(layout(SIZES, servers, piece_bytes=1 << 20), servers)
    assert sum(shares) == 4 * sum(SIZES)
    assert max(shares) - min(shares) <= 4 * sum(SIZES) / servers / 16


def test_the_largest_goes_to_the_server_that_has_least():
    assert layout((4, 10, 6), 2, piece_bytes=100, whole=True) == (
        ServerPiece(0, 0, 4, 1),
        ServerPiece(1, 0, 10, 0),
        ServerPiece(2, 0, 6, 1),
    )


def test_bytes_count_the_width_of_each_type():
    pieces = layout((4, 4), 1, piece_bytes=100, widths=(4, 2))
    assert bytes_per_server(pieces, 1, (4, 2)) == (24,)


def test_messages_are_of_one_server_and_one_type_and_small():
    kinds = ("float32",) * 4 + ("float64",) * 3
    widths = (4,) * 4 + (8,) * 3
    pieces = layout(SIZES, 2, piece_bytes=4096, widths=widths)
    made = bundles(pieces, piece_bytes=4096, widths=widths, kinds=kinds)
    assert sorted((p.variable, p.start) for b in made for p in b.pieces) == [
        (p.variable, p.start) for p in pieces
    ]
    for bundle in made:
        assert {p.server for p in bundle.pieces} == {bundle.server}
        assert len({kinds[p.variable] for p in bundle.pieces}) == 1
        assert sum(p.size * widths[p.variable] for p in bundle.pieces) <= 4096


def test_messages_leave_in_the_order_of_the_backward_pass():
    made = bundles(layout(SIZES, 2, piece_bytes=4096), piece_bytes=4096)
    completed = [(b.pieces[-1].variable, b.pieces[-1].start) for b in made]
    assert completed == sorted(completed, reverse=True)
    assert [b.number for b in made] == list(range(len(made)))
    for bundle in made:
        assert list(bundle.pieces) == sorted(bundle.pieces, key=lambda p: (-p.variable, -p.start))


@pytest.mark.parametrize(
    ("servers", "held", "found"),
    [
        (4, 2**23, 2**17),  # a sixteenth of what each holds
        (8, 2**20, 2**16),
        (1, 2**30, 2**20),
    ],
)
def test_a_message_that_nobody_chose_is_a_sixteenth_of_a_share_within_bounds(servers, held, found):
    assert message_bytes(ServerConfig(count=servers), held, one_host=False) == found
    assert message_bytes(ServerConfig(count=servers), held, one_host=True) == 2**20
    for one_host in (True, False):
        assert message_bytes(ServerConfig(count=servers, piece_mb=4), held, one_host=one_host) == 2**22


def test_the_last_processes_serve_and_a_worker_must_be_left():
    assert Members(2, "separate").roles(5) == ((0, 1, 2), (3, 4))
    assert Members(2, "colocated").roles(3) == ((0, 1, 2), (0, 1))
    with fails_with(ConfigError):
        Members(2, "separate").roles(2)
    with fails_with(ConfigError):
        Members(3, "colocated").roles(2)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.strategy.staleness=3", "staleness is for mode=async"),
        ("train.strategy.count=0", "must be at least 1"),
        ("train.strategy.placement=beside", "train.strategy.placement"),
        ("train.strategy.compression=float16", "it is one of data"),
    ],
)
def test_what_servers_cannot_do_is_refused_with_the_key(override, said):
    with pytest.raises(ConfigError, match=said):
        parse("name: a\ndata: {shards: x}\ntrain: {strategy: parameter-server}", [override])
