"""Which server holds which part of the network, and in which messages it travels. Pure.

Variables are known by their position in `model.trainable_variables`, parts of them by positions in the
flattened variable. Every process computes the same layout from the same sizes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import ServerConfig
from trainer.planning import communication
from trainer.planning.exchange import Exchange

# A variable is cut at least so fine that a server's share is made of so many pieces: with fewer, the servers'
# shares would differ much.
_PIECES_PER_SHARE = 16
# A message whose size nobody chose is a sixteenth of a share, too, within these bounds: a large one leaves
# when the last of its gradients is computed, small ones cost more to handle. On one host there is no link to
# keep busy, and the largest is taken. Figures: decision 22.
_SMALLEST_MESSAGE, _LARGEST_MESSAGE = 2**16, 2**20


@dataclass(frozen=True)
class ServerPiece:
    """Elements `start` to `stop` of a flattened variable, and the server that holds them."""

    variable: int
    start: int
    stop: int
    server: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


@dataclass(frozen=True)
class Bundle:
    """Pieces of one server and of one type that travel in one message, one after the other.

    Attributes:
        number: from 0, in the order in which the backward pass completes the bundles' gradients.
        server: that holds all of them.
        pieces: in the order of the backward pass.
    """

    number: int
    server: int
    pieces: tuple[ServerPiece, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(piece.size for piece in self.pieces)


def message_bytes(server: ServerConfig, held: int, *, one_host: bool) -> int:
    """Return the most bytes of a message.

    Args:
        server: the `train.strategy` section.
        held: bytes of all weights.
        one_host: workers and servers share a host.
    """
    if server.piece_mb is not None:
        return max(1, int(server.piece_mb * 2**20))
    if one_host:
        return _LARGEST_MESSAGE
    return min(max(_SMALLEST_MESSAGE, held // (server.count * _PIECES_PER_SHARE)), _LARGEST_MESSAGE)


def layout(
    sizes: Sequence[int],
    servers: int,
    *,
    piece_bytes: int,
    whole: bool = False,
    widths: Sequence[int] | None = None,
) -> tuple[ServerPiece, ...]:
    """Cut large variables and divide the pieces among servers, the largest first, by bytes.

    Args:
        sizes: elements of each variable.
        servers: how many there are.
        piece_bytes: most bytes of a piece. Where there are several servers, variables are cut finer if that
            is needed for equal shares.
        whole: keep every variable in one piece, however large.
        widths: bytes per element of each variable; default: 4.

    Returns:
        Pieces by variable and start; each element of each variable is in exactly one.
    """
    widths = widths or [4] * len(sizes)
    limit = piece_bytes
    if servers > 1:
        total = sum(size * width for size, width in zip(sizes, widths, strict=True))
        limit = min(limit, total // (servers * _PIECES_PER_SHARE))
    cut = [
        (variable, start, stop)
        for variable, (size, width) in enumerate(zip(sizes, widths, strict=True))
        for start, stop in (_cut(size, max(1, limit // width)) if not whole else [(0, size)])
    ]
    largest_first = sorted(cut, key=lambda part: (-(part[2] - part[1]) * widths[part[0]], part))
    shares = [(0, server) for server in range(servers)]
    pieces = []
    for variable, start, stop in largest_first:
        held, server = heapq.heappop(shares)
        heapq.heappush(shares, (held + (stop - start) * widths[variable], server))
        pieces.append(ServerPiece(variable, start, stop, server))
    return tuple(sorted(pieces, key=lambda piece: (piece.variable, piece.start)))


def bundles(
    pieces: Sequence[ServerPiece],
    *,
    piece_bytes: int,
    widths: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> tuple[Bundle, ...]:
    """Put the pieces of each server into messages, last variables first: their gradients exist first.

    Args:
        pieces: of `layout`.
        piece_bytes: most bytes of a message, unless a single piece is larger.
        widths: bytes per element of each variable; default: 4.
        kinds: type of each variable; a bundle holds one type only. Default: all the same.
    """

    def kind(piece: ServerPiece) -> str:
        return kinds[piece.variable] if kinds else ""

    filled: list[list[ServerPiece]] = []
    open_bundles: dict[tuple[int, str], tuple[list[ServerPiece], int]] = {}
    for piece in sorted(pieces, key=lambda p: (-p.variable, -p.start)):
        size = piece.size * (widths[piece.variable] if widths else 4)
        members, held = open_bundles.get((piece.server, kind(piece)), ([], 0))
        if not members or held + size > piece_bytes:
            members, held = [], 0
            filled.append(members)
        members.append(piece)
        open_bundles[piece.server, kind(piece)] = members, held + size
    # A bundle is complete with its last piece, that of the earliest layer.
    filled.sort(key=lambda members: (-members[-1].variable, -members[-1].start))
    return tuple(Bundle(i, members[0].server, tuple(members)) for i, members in enumerate(filled))


def bytes_per_server(
    pieces: Sequence[ServerPiece], servers: int, widths: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the bytes of weights that each server holds."""
    held = [0] * servers
    for piece in pieces:
        held[piece.server] += piece.size * (widths[piece.variable] if widths else 4)
    return tuple(held)


def exchange(held: Sequence[int], workers: int, *, colocated: bool, piece: int, messages: int) -> Exchange:
    """Return what one synchronous update moves: gradients to the servers, weights back.

    Args:
        held: bytes of weights that each server holds.
        workers: how many there are.
        colocated: whether servers are in the first workers' processes.
        piece: bytes of a piece.
        messages: gradients that a worker sends per update.
    """
    return Exchange(
        rounds=communication.servers(held, workers, colocated=colocated, piece=piece),
        processes=workers if colocated else workers + len(held),
        # Servers answer side by side.
        parts=max(1, messages // len(held)),
        counted=2 * sum(held),
        allreduce="ring",
    )


def exchange_of(server: ServerConfig, sizes: Sequence[int], workers: int, *, one_host: bool) -> Exchange:
    """Return `exchange` of float32 variables of `sizes` elements, which servers may cut."""
    piece = message_bytes(server, 4 * sum(sizes), one_host=one_host)
    pieces = layout(sizes, server.count, piece_bytes=piece)
    return exchange(
        bytes_per_server(pieces, server.count),
        workers,
        colocated=server.placement == "colocated",
        piece=piece,
        messages=len(bundles(pieces, piece_bytes=piece)),
    )


def _cut(size: int, limit: int) -> list[tuple[int, int]]:
    """Ranges of nearly equal length, at most `limit`, that make up `size`; one empty range for none."""
    parts = max(1, -(-size // limit))
    ends = [size * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(ends))
