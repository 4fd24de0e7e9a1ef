"""`cingulum serve` on the controller's host of a testbed, which may be killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from jobs.testbed import Testbed

ROOT = Path(__file__).parents[2]


@dataclass
class Served:
    """A service in a folder that all hosts see, with its store and its runs in it.

    Attributes:
        cluster: where its jobs run.
        folder: the user's.
        more: environment besides.
    """

    cluster: Testbed
    folder: Path
    more: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "serve.sock"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(ROOT),
            "CINGULUM_HOME": str(self.folder / "home"),
            "XDG_CONFIG_HOME": str(self.folder / "settings"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **self.more,
        }

    def argv(self, *command: object, **environment: str) -> list[str]:
        """Return the command line that runs a program there."""
        line = [sys.executable, *map(str, command)]
        return self.cluster.argv(
            "ctl", line, cwd=self.folder, environment={**self.environment, **environment}
        )

    def run(self, *words: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command of ours there, and wait for it."""
        line = self.argv("-m", "cingulum", *words)
        return subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self) -> None:
        """Start the service, and wait until it listens."""
        self.process = subprocess.Popen(
            self.argv("-m", "cingulum", "serve", "--socket", self.socket, "--json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["socket"] == str(self.socket)

    def kill(self) -> None:
        """Kill it as a crash would; what it started goes on."""
        if self.process is not None and self.process.stdout is not None:
            self.process.kill()
            self.process.wait(30)
            self.process.stdout.close()
            self.process = None

    def client(self, timeout: float = 60) -> httpx2.Client:
        """Return a client at the socket, for use with `with`."""
        return httpx2.Client(
            transport=httpx2.HTTPTransport(uds=str(self.socket)),
            base_url="http://localhost",
            headers={"X-Cingulum": "1"},
            timeout=timeout,
        )
