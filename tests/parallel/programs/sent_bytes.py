"""Bytes that this process has sent over its TCP connections; MPI must use TCP (OMPI_MCA_btl=tcp,self)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from trainer.ranks.world import World

TCP_INFO_BYTES_SENT = slice(200, 208)  # struct tcp_info, tcpi_bytes_sent


def by_connection(world: World) -> dict[str, int]:
    """Bytes sent, by file descriptor; a collective.

    Waits for every rank first: what a rank has handed to its kernel is sent once the others have received it.
    """
    world.any(False)
    sent = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            is_socket = str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
        if not is_socket:
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as connection:
            if connection.family == socket.AF_INET and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent[entry.name] = int.from_bytes(info[TCP_INFO_BYTES_SENT], "little")
    return sent


def since(before: dict[str, int], after: dict[str, int]) -> list[int]:
    """What was sent between two counts, by connection, most first."""
    return sorted((after[key] - before.get(key, 0) for key in after), reverse=True)
