"""Tell an address of each change of the user's jobs, in order and at least once: off unless it is asked for.

What has been told is kept in a file, so that a service that was killed or restarted goes on there.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cingulum.service import outgoing
from jobs.requests import describing
from jobs.store import submitter
from jobs.store.store import Store
from trainer import atomic

LOOK_S = 2.0
_LONGEST_WAIT_S = 300.0
_AT_ONCE = 100


class Webhook:
    """Changes of jobs in a store, told to a URL.

    Args:
        store: of all jobs.
        url: that is told, by a POST of JSON for each change; `id` grows, and stays when it is told again.
        folder: private, for the file that says what has been told.
        allowed: networks besides the public internet.
        secret: signs the body (X-Cingulum-Signature: sha256=HMAC); None: it is not signed.
        warn: gets a line when telling begins to fail.

    Raises:
        InputError: the URL or a network cannot be used.
    """

    def __init__(
        self,
        store: Store,
        url: str,
        folder: Path,
        *,
        allowed: Sequence[str] = (),
        secret: str | None = None,
        warn: Callable[[str], None],
    ) -> None:
        outgoing.checked(url)
        self._store, self._url, self._secret, self._warn = store, url, secret, warn
        self._allowed = outgoing.networks(allowed)
        self._told = folder / f"webhook-{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
        self._ending = threading.Event()

    def start(self) -> None:
        """Begin to tell: what changed since the last time, or from now on."""
        self._ending.clear()
        threading.Thread(target=self._keep, name="webhook", daemon=True).start()

    def end(self) -> None:
        """Tell no more."""
        self._ending.set()

    def tell(self) -> None:
        """Tell all that is new.

        Raises:
            RefusedError: the address may not be told, or did not take a change; it is told again next time.
            StoreError: the store cannot be read.
        """
        last = self._last()
        while found := self._store.changes_after(last, submitter.user(), _AT_ONCE):
            for number, key, change in found:
                if self._ending.is_set():
                    return
                self._send(
                    {
                        "id": number,
                        "event": "job.changed",
                        "key": key,
                        "job": change.job,
                        "task": change.task,
                        "state": change.state,
                        "reason": change.reason,
                        "exit_code": change.exit_code,
                        "time": describing.iso(change.time),
                    }
                )
                last = number
                self._keep_last(last)

    def _send(self, event: dict[str, Any]) -> None:
        body = json.dumps(event).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "cingulum"}
        if self._secret is not None:
            mark = hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
            headers["X-Cingulum-Signature"] = f"sha256={mark}"
        outgoing.post(self._url, body, headers, self._allowed)

    def _last(self) -> int:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(self._told.read_text(encoding="utf-8"))["told"])
        newest = self._store.newest_change()
        self._keep_last(newest)
        return newest

    def _keep_last(self, number: int) -> None:
        atomic.write_private(self._told, json.dumps({"told": number}) + "\n")

    def _keep(self) -> None:
        wait, failing = LOOK_S, False
        while not self._ending.wait(wait):
            try:
                self.tell()
                wait, failing = LOOK_S, False
            except Exception as error:  # whatever one round meets, there is another
                if not failing:
                    self._warn(f"warning: the webhook waits: {error}")
                wait, failing = min(2 * wait, _LONGEST_WAIT_S), True


def secret() -> str | None:
    """Return what signs, from CINGULUM_WEBHOOK_SECRET; never from the command line, which all users see."""
    return os.environ.get("CINGULUM_WEBHOOK_SECRET") or None
