"""A port of 127.0.0.1 that leads to a socket, as `ssh -L PORT:SOCKET` makes one: browsers open no sockets."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def at_port(path: Path) -> Iterator[str]:
    """Forward to the socket while the block runs; yields the address. Who listens there may come and go."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as inner, contextlib.suppress(OSError):
                inner.connect(str(path))
                back = threading.Thread(target=_pass, args=(inner, self.request), daemon=True)
                back.start()
                _pass(self.request, inner)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(30)


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
