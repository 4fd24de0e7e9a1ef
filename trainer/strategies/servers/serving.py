"""Who serves: a process of its own, or a thread beside a worker."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Iterator

from trainer.errors import CingulumError
from trainer.ranks import world as worlds
from trainer.ranks.mpi_world import Everyone
from trainer.ranks.stopping import StopRequest
from trainer.ranks.world import World
from trainer.strategies.servers.client import order_without_answer
from trainer.strategies.servers.server import Server

_GOODBYE_S = 10.0


def serve(world: World) -> int:
    """Serve until worker 0 ends the servers; for a process with `world.is_server`.

    Ctrl-C, SIGUSR2 and SIGTERM are left to the workers, which end the servers when they have saved.

    Returns:
        the workers' exit code.
    """
    with StopRequest() as stop, stop.by_interrupt(answers=False):
        return _serve(world)


class ServingSession:
    """The servers' lifetime on a worker; see `serving`. `exit_code` is what servers end with."""

    exit_code = 0


@contextlib.contextmanager
def serving(world: World) -> Iterator[ServingSession]:
    """Return a context in which a worker has servers: its own thread where it is colocated with one.

    At the end, worker 0 ends all servers. An error that ends the whole world ends the servers with it.
    """
    links = world.links
    session = ServingSession()
    thread = None
    if links is not None and links.server is not None:
        thread = threading.Thread(target=_serve, args=(world,), name="server", daemon=True)
        thread.start()
    try:
        yield session
    except CingulumError as error:
        session.exit_code = error.exit_code
        raise
    except BaseException:
        session.exit_code = 1
        raise
    finally:
        if links is not None:
            if world.is_main:
                order_without_answer(links, {"do": "end", "exit_code": session.exit_code}, _GOODBYE_S)
            if thread is not None:
                thread.join(_GOODBYE_S)


def everyone(world: World) -> World:
    """Return the processes to health-check: workers, and separate servers, which join; a collective."""
    links = world.links
    if links is None or set(links.servers) <= set(links.workers):
        return world
    if world.is_main:
        order_without_answer(links, {"do": "roll call"}, _GOODBYE_S)
    return Everyone(links)


def _serve(world: World) -> int:
    links = world.links
    if links is None or links.server is None:
        raise RuntimeError("this process is no server")
    try:
        return Server(links).run()
    except BaseException:
        name = links.name_of_server(links.server)
        text = traceback.format_exc().rstrip()
        sys.stderr.write("".join(f"[{name}] {line}\n" for line in text.splitlines()))
        worlds.current().abort(1)
