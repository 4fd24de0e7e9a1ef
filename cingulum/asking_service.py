"""Ask a service (`cingulum serve`) over its socket or its address, with nothing but Python's own library."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from trainer.errors import CingulumError, InputError, typed

_LIMIT_S = 30.0
_MOST_BYTES = 1 << 26
_PAGE = 200
_HERE = ("localhost", "127.0.0.1", "::1")


class ServiceError(CingulumError, code="SERVICE_FAILED"):
    """A service refused, failed or did not answer."""


class Service:
    """A service at an address.

    Args:
        address: unix:/path/to/serve.sock, http://127.0.0.1:8642 or https://...
        token: that it asks for, at a port; None: none is sent.

    Raises:
        InputError: not such an address, or one to which the token would travel in the clear.
    """

    def __init__(self, address: str, token: str | None) -> None:
        parts = urlsplit(address)
        self._address, self._token = address, token
        self._prefix = parts.path.rstrip("/")
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise InputError(f"--server {address}: is no address.", cure="http://127.0.0.1:8642") from None
        if parts.scheme not in ("unix", "http", "https") or not (self._host or parts.scheme == "unix"):
            raise InputError(
                f"--server {address}: is no address of a service.",
                cure="Give unix:/path/to/serve.sock or http://127.0.0.1:8642",
            )
        if parts.scheme == "http" and self._host not in _HERE:
            raise InputError(
                f"--server {address}: a token would travel to {self._host} in the clear.",
                cure=f"Tunnel: ssh -N -L 8642:127.0.0.1:{self._port or 80} {self._host}; or use https://",
            )
        self._scheme = parts.scheme

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """Return what an address of the API answers.

        Raises:
            ServiceError: it cannot be reached, or answers with an error.
        """
        target = (
            f"{self._prefix if self._scheme != 'unix' else ''}{path}?{urlencode(query or {}, doseq=True)}"
        )
        headers = {"Accept": "application/json", "X-Cingulum": "1"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection()
        try:
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES)
            document = json.loads(body)
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(
                f"{self._address}: no service answers ({error}).",
                cure="Start it with `cingulum serve`, and the tunnel that it names.",
            ) from None
        except ValueError:
            raise ServiceError(f"{self._address}: answers {answer.status}, and no JSON.") from None
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise self._error(answer.status, document)
        return document

    def jobs(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Return the jobs of a list, page by page; raises what `get` does."""
        offset = 0
        while True:
            page = self.get("/api/v1/jobs", {**query, "offset": offset, "limit": _PAGE})
            yield from page["jobs"]
            offset += _PAGE
            if offset >= page["total"]:
                return

    def _error(self, status: int, document: Any) -> ServiceError:
        error = document.get("error", {}) if isinstance(document, dict) else {}
        cure = error.get("cure")
        if status == http.HTTPStatus.UNAUTHORIZED:
            cure = "Give a valid token with --token-file FILE, or in CINGULUM_TOKEN."
        return ServiceError(f"{self._address}: {error.get('message', f'answers {status}')}", cure=cure)

    def _connection(self) -> http.client.HTTPConnection:
        if self._scheme == "unix":
            return _AtSocket(urlsplit(self._address).path)
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_LIMIT_S)


class _AtSocket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_LIMIT_S)
        self.sock.connect(self._path)


def token(file: Path | None) -> str | None:
    """Return the token in a file, else that in CINGULUM_TOKEN; None: there is none.

    Raises:
        InputError: others may read the file.
    """
    if file is None:
        return os.environ.get("CINGULUM_TOKEN") or None
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise InputError(f"{file}: others may read this token.", cure=f"chmod 600 {typed(file)}", path=file)
    return file.read_text(encoding="utf-8").strip()
