"""Tell an address of each change of the user's jobs, in order and at least once: off unless it is asked for.

What has been told is kept in a file, so that a service that was killed or restarted goes on there.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from jobs.requests import describing
from jobs.store import submitter
from jobs.store.store import Store
from trainer import atomic
from trainer.errors import CingulumError, InputError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LIMIT_S = 10.0
# IPv6 addresses that stand for the IPv4 address in their last 32 bits (RFC 6052, 4291 and 2765).
_HOLDS_IPV4 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))


class RefusedError(CingulumError, code="ADDRESS_REFUSED"):
    """An address to which nothing is sent, or whose host did not take what was sent."""


def checked(url: str) -> SplitResult:
    """Return the parts of a URL that may be asked.

    Raises:
        InputError: it is no http or https URL with a host, or holds a user's name.
    """
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or not url.isprintable() or " " in url:
        raise InputError(f"{shown(url)}: cannot be sent to.", cure="Give https://host.example/path")
    return parts


def networks(allowed: Sequence[str]) -> tuple[Network, ...]:
    """Return networks from texts such as 10.1.2.0/24 or ::1; raises InputError."""
    try:
        return tuple(ipaddress.ip_network(one) for one in allowed)
    except ValueError as error:
        raise InputError(f"{error}.", cure="Give an address or a network, such as 10.1.2.0/24") from None


def is_public(address: Address) -> bool:
    """Return whether an address is of the public internet: not of this host, its network, a site or a cloud's
    own services, also where IPv6 writes such an IPv4 address.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and any(address in network for network in _HOLDS_IPV4):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.scope_id is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def post(url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network]) -> None:
    """Send a body to a URL; return when its host took it, with a status from 200 to 299.

    Raises:
        RefusedError: it may not be sent there, or was not taken.
    """
    parts = checked(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    address = _resolved(host, port, allowed)
    connection = _To(host, port, address, encrypted=parts.scheme == "https")
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, {**headers, "Host": parts.netloc})
        answer = connection.getresponse()
        answer.read(1 << 16)
    except (OSError, http.client.HTTPException) as error:
        raise RefusedError(f"{shown(url)}: did not answer ({type(error).__name__}).") from None
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        more = "; redirects are not followed" if 300 <= answer.status < 400 else ""
        raise RefusedError(f"{shown(url)}: answered {answer.status}{more}.")


def shown(url: str) -> str:
    """Return a URL without what may be a secret: its path, its question, a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _resolved(host: str, port: int, allowed: Sequence[Network]) -> str:
    """Return the address to connect to.

    Raises:
        RefusedError: there is none, or one of several is not public and was not allowed.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise RefusedError(f"{host}: has no address.") from None
    texts = [str(one[4][0]) for one in found]
    for text in texts:
        address = ipaddress.ip_address(text)
        if not is_public(address) and not any(address in network for network in allowed):
            raise RefusedError(
                f"{host}: is at {address}, which is not a public address.",
                cure=f"If that is meant: --webhook-allow {address}",
            )
    return texts[0]


class _To(http.client.HTTPConnection):
    """A connection to one address, whatever its name may be found at now."""

    def __init__(self, host: str, port: int, address: str, *, encrypted: bool) -> None:
        super().__init__(host, port, timeout=_LIMIT_S)
        self._address, self._encrypted = address, encrypted

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), _LIMIT_S)
        if self._encrypted:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


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
        checked(url)
        self._store, self._url, self._secret, self._warn = store, url, secret, warn
        self._allowed = networks(allowed)
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
        post(self._url, body, headers, self._allowed)

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
