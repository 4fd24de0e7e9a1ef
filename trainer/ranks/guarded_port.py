"""A listening port that only processes of one run pass: each side proves that it knows the run's secret.

Before that nothing is parsed, and the secret itself never travels. Frames have fixed lengths (HMAC is
HMAC-SHA256, RFC 2104, of a label, both nonces and the number):

    server -> caller   nonce (32 bytes)
    caller -> server   nonce (32), number of the process (4, big-endian), HMAC (32)
    server -> caller   HMAC (32), with another label

A nonce is drawn for each connection, so that nothing recorded is of use later. What follows is neither
encrypted nor authenticated: this keeps strangers out, not somebody who can change packets on the way.

All callers are dealt with by one thread that waits for none of them: one that says nothing, or too little, is
dropped after `PATIENCE_S`, and at once where there are more than `MOST` of such.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.transient import TransientErrors

PATIENCE_S = 3.0
MOST = 256
SECRET_BYTES = 32
_NONCE = 32
_NUMBER = 4
_MAC = 32
_ANSWER = _NONCE + _NUMBER + _MAC
_CALLER, _SERVER = b"cingulum caller\0", b"cingulum server\0"
_AGAIN_S = 0.1


class NotOurs(ConnectionError):
    """Whoever answers at that address does not know the secret of this run."""


@dataclass
class _Caller:
    """One connection that has not proved anything yet."""

    connection: socket.socket
    nonce: bytes
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class GuardedPort:
    """Listens from its making to `close`, in a thread of its own.

    Args:
        address: of this host to listen on; "" for all interfaces.
        secret: of this run, `SECRET_BYTES` long.
        entered: called from the thread with the connection (blocking, with a time limit) and the number of a
            process that has proved itself; owns the connection. Must return quickly; an OSError that it
            raises ends this connection only.
        name: of the thread.

    Attributes:
        port: its number.
    """

    def __init__(
        self, address: str, secret: bytes, entered: Callable[[socket.socket, int], None], *, name: str
    ) -> None:
        self._secret, self._entered = secret, entered
        self._closed = threading.Event()
        self._listening = socket.create_server((address, 0), backlog=MOST)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._callers: dict[int, _Caller] = {}
        self._errors = TransientErrors(f"port {self.port} ({name}): callers could not be let in")
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def close(self) -> None:
        """Let nobody in any longer; may be called from `entered` and more than once."""
        self._closed.set()
        # Closing it would not wake the thread, which closes it itself.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        try:
            while not self._closed.is_set():
                with self._errors.survived():
                    self._turn()
                self._closed.wait(_AGAIN_S if self._errors.in_a_row else 0)
        finally:
            for number in list(self._callers):
                self._drop(number)
            self._selector.close()
            self._listening.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._until_next_deadline()):
            if key.fileobj is self._listening:
                self._accept()
            else:
                self._hear(key.fd)
        now = time.monotonic()
        for number in [fd for fd, caller in self._callers.items() if caller.deadline <= now]:
            self._drop(number)

    def _until_next_deadline(self) -> float | None:
        if not self._callers:
            return None
        # The same patience for all: the first in the dictionary came first.
        return max(0.0, next(iter(self._callers.values())).deadline - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:  # the caller has gone
            return
        except OSError as error:  # closed, or too many open files: the next one is let in
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._callers:
                self._drop(next(iter(self._callers)))
            self._closed.wait(_AGAIN_S)
            return
        nonce = secrets.token_bytes(_NONCE)
        try:
            connection.setblocking(False)
            connection.sendall(nonce)  # the buffer of a new connection holds it
        except OSError:
            connection.close()
            return
        if len(self._callers) >= MOST:
            self._drop(next(iter(self._callers)))
        try:
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:  # too many are watched
            connection.close()
            raise
        caller = _Caller(connection, nonce, time.monotonic() + PATIENCE_S)
        self._callers[connection.fileno()] = caller

    def _hear(self, number: int) -> None:
        caller = self._callers.get(number)
        if caller is None:  # dropped since `select` named it
            return
        try:
            got = caller.connection.recv(_ANSWER - len(caller.received))
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            self._drop(number)
            return
        caller.received += got
        if len(caller.received) == _ANSWER:
            self._judge(number, caller)

    def _judge(self, number: int, caller: _Caller) -> None:
        payload, theirs = bytes(caller.received[:-_MAC]), bytes(caller.received[-_MAC:])
        if not hmac.compare_digest(theirs, _mac(self._secret, _CALLER, caller.nonce + payload)):
            self._drop(number)
            return
        try:
            caller.connection.sendall(_mac(self._secret, _SERVER, caller.nonce + payload))
            caller.connection.settimeout(PATIENCE_S)
        except OSError:
            self._drop(number)
            return
        self._forget(number)
        try:
            self._entered(caller.connection, int.from_bytes(payload[_NONCE:], "big"))
        except OSError:
            caller.connection.close()

    def _forget(self, number: int) -> _Caller:
        caller = self._callers.pop(number)
        self._selector.unregister(caller.connection)
        return caller

    def _drop(self, number: int) -> None:
        self._forget(number).connection.close()


def enter(address: tuple[str, int], secret: bytes, number: int, *, within_s: float) -> socket.socket:
    """Connect to another process's `GuardedPort` and return the connection, blocking, once both are proved.

    Args:
        address: host and port.
        secret: of this run.
        number: of this process.
        within_s: for everything.

    Raises:
        NotOurs: what listens there does not know the secret.
        TimeoutError: no answer in time.
        OSError: nobody listens there, or the connection was closed.
    """
    deadline = time.monotonic() + within_s
    connection = socket.create_connection(address, timeout=within_s)
    try:
        theirs = _receive(connection, _NONCE, deadline)
        said = secrets.token_bytes(_NONCE) + number.to_bytes(_NUMBER, "big")
        connection.sendall(said + _mac(secret, _CALLER, theirs + said))
        proof = _receive(connection, _MAC, deadline)
        if not hmac.compare_digest(proof, _mac(secret, _SERVER, theirs + said)):
            raise NotOurs("another program listens there, or a process of another run")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = b""
    while len(received) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left)
        got = connection.recv(count - len(received))
        if not got:
            raise ConnectionResetError("the connection was closed")
        received += got
    return received


def _mac(secret: bytes, label: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, label + said, "sha256")
