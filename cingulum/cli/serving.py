"""What `cingulum serve` serves, and where: at a socket of the user's own, or at a port."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from cingulum.cli.submission_check import ServiceChecks
from cingulum.service import listening
from cingulum.service import tokens as of_service
from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket, BehindProxy, Callers, WithTokens
from cingulum.service.jobs_now import JobsNow
from cingulum.service.patience import Patient
from cingulum.service.runs_now import RunsNow
from cingulum.service.tokens import TokenFile
from cingulum.service.webhook import Webhook
from jobs.store import submitter
from jobs.store.store import Store
from trainer.errors import typed


@dataclass(frozen=True)
class Serving:
    """A service that has not begun to listen.

    Attributes:
        store: of all jobs.
        runs: folders of run folders.
        checks: what submitting needs of the command line.
        tokens: that the user keeps.
        webhook: that is told of changes; None: none is.
        as_json: whether programs read where it listens.
    """

    store: Store
    runs: list[Path]
    checks: ServiceChecks
    tokens: TokenFile
    webhook: Webhook | None
    as_json: bool

    def at_socket(self, path: Path, host: str) -> None:
        """Serve at a socket that only the user can open, until Ctrl-C."""
        path = path.expanduser().absolute()
        with listening.at_socket(path) as listener:
            say(
                {"socket": str(path), "store": str(self.store)},
                f"{self._what}, for you alone, at {path}\n"
                f"  on your computer: ssh -N -L {typed(f'8642:{path}')} {host}\n"
                "  then open http://127.0.0.1:8642/ there. Ctrl-C ends it; jobs go on.",
                as_json=self.as_json,
            )
            self._serve(listener, AtSocket(submitter.user()))

    def at_port(self, port: int) -> None:
        """Serve at a port of 127.0.0.1 for who has a token, until Ctrl-C."""
        once, secret = of_service.new("of-this-start", "admin", days=3650)
        with listening.at_port(port) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            say(
                {"address": address, "token": secret, "store": str(self.store)},
                f"{self._what}\n"
                f"  {address}#{secret}\n"
                "  Keep this address to yourself: it may do all that you may. Ctrl-C ends it; jobs go on.",
                as_json=self.as_json,
            )
            self._serve(listener, WithTokens(submitter.user(), self.tokens, once))

    def behind_proxy(self, path: Path, origin: str, root: str, uid: int) -> None:
        """Serve at a socket that a proxy alone can use, whose word counts for who asks, until Ctrl-C."""
        path = path.expanduser().absolute()
        with listening.at_socket(path, mode=0o666) as listener:
            say(
                {"socket": str(path), "origin": origin, "root": root, "store": str(self.store)},
                f"{self._what}, at {origin}{root}/ for who is signed in there as {submitter.user()}\n"
                f"  at {path} for processes of user {uid} alone. Ctrl-C ends it; jobs go on.",
                as_json=self.as_json,
            )
            callers = BehindProxy(submitter.user())
            self._serve(listener, callers, origin, root, http=listening.of_user(uid))

    @property
    def _what(self) -> str:
        folders = ", ".join(str(folder.absolute()) for folder in self.runs)
        return f"your jobs in {self.store} and the runs in {folders}"

    def _serve(
        self,
        listener: socket.socket,
        callers: Callers,
        origin: str | None = None,
        root: str = "",
        http: type[asyncio.Protocol] = Patient,
    ) -> None:
        now = JobsNow(self.store)
        runs = RunsNow(self.runs, now.facts)
        app = create_app(now, callers, runs, self.checks, self.tokens, self.webhook, origin, root)
        listening.server(app, http).run(sockets=[listener])


def say(facts: dict[str, str], text: str, *, as_json: bool) -> None:
    """Print facts for programs or text for people, at once."""
    typer.echo(json.dumps(facts) if as_json else text)
    sys.stdout.flush()
