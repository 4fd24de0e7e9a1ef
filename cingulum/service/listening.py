"""Where the service listens, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from cingulum.service.guard import GuardedApp
from cingulum.service.patience import Patient
from trainer.errors import InputError

# Bytes of a socket's path that Linux takes (man 7 unix), with the one that ends it.
_LONGEST_PATH = 108
_END_S = 3
# Process, user and group at the other end of a socket.
_PEER = struct.Struct("3i")


@contextmanager
def at_socket(path: Path, *, mode: int = 0o600) -> Iterator[socket.socket]:
    """Listen at a path that only the user can open, or who `mode` lets; it is removed afterwards.

    Raises:
        InputError: another service listens there, or it cannot be made.
    """
    if len(os.fsencode(path)) >= _LONGEST_PATH:
        raise InputError(
            f"{path}: is too long for a socket ({_LONGEST_PATH - 1} bytes).",
            cure="Give a shorter one with --socket.",
        )
    if path.exists() and not path.is_socket():
        raise InputError(f"{path}: is there, and is not a socket.", cure="Give another path.", path=path)
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    listener = socket.socket(socket.AF_UNIX)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise InputError(
                    f"{path}: another service listens there.",
                    cure="Use that one, or give another --socket.",
                    path=path,
                ) from None
            raise InputError(
                f"{path}: its file system has no locks ({error.strerror}).",
                cure="Give a --socket on a disk of this host.",
                path=path,
            ) from None
        path.unlink(missing_ok=True)  # of one that was killed: the lock is ours
        before = os.umask(0o777 & ~mode)
        try:
            listener.bind(os.fspath(path))
            listener.listen()
        finally:
            os.umask(before)
        yield listener
    finally:
        listener.close()
        os.close(lock)


@contextmanager
def at_port(port: int) -> Iterator[socket.socket]:
    """Listen at a port of 127.0.0.1; 0: any that is free.

    Raises:
        InputError: the port is taken, or only root may have it.
    """
    with socket.socket(socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "is in use" if error.errno == errno.EADDRINUSE else "is for root alone"
            raise InputError(
                f"Port {port} of 127.0.0.1 {why}.", cure="Give another one; --port 0 takes one that is free."
            ) from None
        yield listener


def server(guard: GuardedApp, http: type[asyncio.Protocol] = Patient) -> uvicorn.Server:
    """Return what answers, by `run`, until Ctrl-C or SIGTERM; whoever follows something is let go then.

    `http` may refuse connections, as that of `of_user` does.
    """
    config = uvicorn.Config(
        guard,
        http=http,
        log_config=None,  # uvicorn's own would close the handlers of the whole process
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=_END_S,
    )
    return _Server(config, guard)


def of_user(uid: int) -> type[asyncio.Protocol]:
    """Return a protocol that drops every connection but those of a user's processes, as the kernel knows them
    (man 7 unix, SO_PEERCRED).
    """

    class OfUser(Patient):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            peer = transport.get_extra_info("socket")
            kept = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(kept)[1] != uid:
                transport.abort()

    return OfUser


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, guard: GuardedApp) -> None:
        super().__init__(config)
        self._ending = guard.app.state.ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Here and not where the signal comes in: that may be another thread, which must not wake who waits.
        self._ending.set()
        for listener in sockets or ():
            if listener.family == socket.AF_UNIX:  # before SIGTERM ends the process
                with contextlib.suppress(OSError):
                    Path(listener.getsockname()).unlink()
        await super().shutdown(sockets)
