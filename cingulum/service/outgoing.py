"""Requests that the service sends: to public addresses, or those that its user allowed, and to no other.

A name is resolved once, all its addresses are looked at, and the connection goes to one of these: no later
answer of the DNS counts. Nothing follows a redirect, and no proxy is used.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

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
