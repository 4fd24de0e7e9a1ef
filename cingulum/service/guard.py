"""Everything that a request must pass before any route sees it: no route can forget it, nor one to come.

In order: the host it names, that a page of ours and no other sends it, who asks, whether they may write or
administer, and how long it is. Each answer gets the headers that keep browsers from running anything but our
own files.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

import anyio
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from cingulum.service.callers import Caller, Callers, NotYours
from cingulum.service.failures import failure
from trainer.errors import CingulumError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Names of this host at the end of a tunnel; any other is a foreign page's that was made to point here.
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.ASCII)
# What a request that writes must carry: no foreign page can, without asking first, which is never allowed.
OWN_HEADER = b"x-cingulum"
# Whom a proxy has signed in; it counts only where nobody else can connect.
REMOTE_USER = b"remote-user"
SIGN_IN = "/api/v1/session"
# Addresses for who may administer.
ADMIN = "/api/v1/tokens"
_STATIC = "/static/"
_MOST_BYTES = 1 << 16
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class GuardedApp:
    """The application behind all checks.

    Args:
        app: to protect.
        callers: who may ask.
        signed_out: text of the page that asks for a token.
        origin: of the pages behind a proxy, such as https://jobs.example.org; None: at names of this host.
        root: path of the pages there, such as /ada, whether or not the proxy leaves it out; "": the root.
    """

    def __init__(
        self, app: FastAPI, callers: Callers, signed_out: str, origin: str | None = None, root: str = ""
    ) -> None:
        self.app, self._callers, self._signed_out, self._origin = app, callers, signed_out, origin
        self._root = root
        # Cookies are the host's, not the port's: two services must not take each other's.
        self.cookie = f"cingulum-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            return
        if self._root and (scope["path"] == self._root or scope["path"].startswith(f"{self._root}/")):
            scope["path"] = scope["path"].removeprefix(self._root) or "/"

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in _HEADERS.items() if name not in own),
                ]
            await send(message)

        answer = self._refusal(scope)
        if answer is not None:
            await answer(scope, receive, guarded)
            return
        caller = scope.get("state", {}).get("caller")

        def is_held() -> bool:
            return self._caller_now(scope) == caller

        async def answer_with(sender: Send) -> None:
            await self.app(scope, _bounded(receive, is_held if caller and _writes(scope) else None), sender)

        try:
            if caller is None:  # a file of the pages, or signing in
                await answer_with(guarded)
            else:
                await while_held(answer_with, guarded, is_held)
        except asyncio.CancelledError:
            # Who still read when the service ended is cut off; anything else that cancels is told of.
            if not self.app.state.ending.is_set():
                raise

    def _refusal(self, scope: Scope) -> Any:
        """Return the answer to a request that no route may see; None, and its caller noted: it may pass."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        origin = self._origin or f"http://{host}"
        if host != origin.partition("://")[2] or (self._origin is None and not _HOST.fullmatch(host)):
            return failure(
                421,
                "HOST_UNKNOWN",
                f"The service is not known by the name {host[:100]!r}.",
                cure="Ask it as localhost or 127.0.0.1, through a tunnel from elsewhere.",
            )
        method, path, writes = scope["method"], scope["path"], _writes(scope)
        if writes and not _is_ours(headers, origin):
            return failure(
                403,
                "NOT_FROM_HERE",
                "A request that changes something must come from the service's own page or a program.",
                cure="Send the header X-Cingulum: 1.",
            )
        # No path leads out of /static/: the files there are listed when the service starts.
        if (path.startswith(_STATIC) and not writes) or (path == SIGN_IN and method == "POST"):
            return None
        try:
            caller = self._caller(scope)
        except NotYours as error:
            return failure(403, error.code, error.message, cure=error.cure)
        except CingulumError as error:
            return failure(500, error.code, error.message, cure=error.cure)
        if caller is None:
            return self._unknown(path, headers)
        if writes and caller.may == "read":
            return failure(
                403,
                "READ_ONLY",
                "This token may only read.",
                cure="cingulum serve --new-token NAME --may write",
            )
        if path.startswith(ADMIN) and caller.may != "admin":
            return failure(
                403,
                "ADMIN_ONLY",
                "This is for a token that may administer.",
                cure="cingulum serve --new-token NAME --may admin",
            )
        scope.setdefault("state", {})["caller"] = caller
        return None

    def _caller(self, scope: Scope) -> Caller | None:
        headers = dict(scope["headers"])
        return self._callers.caller(_bearer(headers), self._session(headers), _remote_user(scope))

    def _caller_now(self, scope: Scope) -> Caller | None:
        """Return who asks as of now; None, too, where that cannot be told."""
        try:
            return self._caller(scope)
        except CingulumError:
            return None

    def _unknown(self, path: str, headers: dict[bytes, bytes]) -> Any:
        if path.startswith("/api/"):
            return failure(
                401,
                "NOT_SIGNED_IN",
                "This needs a valid token.",
                cure="Send Authorization: Bearer TOKEN; cingulum serve --new-token NAME makes one.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        # A browser writes each error into its console; the page that asks for a token is none for people.
        status = 200 if b"text/html" in headers.get(b"accept", b"") else 401
        return HTMLResponse(self._signed_out, status, {"WWW-Authenticate": "Bearer"})

    def _session(self, headers: dict[bytes, bytes]) -> str | None:
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return None
        return cookies[self.cookie].value if self.cookie in cookies else None


def _bearer(headers: dict[bytes, bytes]) -> str | None:
    kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


def _writes(scope: Scope) -> bool:
    return scope["method"] not in ("GET", "HEAD")


def _is_ours(headers: dict[bytes, bytes], origin: str) -> bool:
    return OWN_HEADER in headers and headers.get(b"origin") in (None, origin.encode("latin-1"))


def _remote_user(scope: Scope) -> str | None:
    """Return whom a proxy says it signed in; nobody, where there are two of them."""
    found = [value.decode("latin-1") for name, value in scope["headers"] if name == REMOTE_USER]
    return found[0] if len(found) == 1 else None


def _bounded(receive: Receive, is_held: Callable[[], bool] | None) -> Receive:
    """Return `receive`, which ends a request whose body is too long, or has come so slowly that the right to
    write is not held any more (None: it does not write).
    """
    seen, began = 0, time.monotonic()

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > _MOST_BYTES:
            raise HTTPException(413, f"The request has more than {_MOST_BYTES} bytes")
        is_late = message["type"] == "http.request" and time.monotonic() - began > LOOK_S
        if is_held is not None and is_late and not is_held():
            raise HTTPException(401, "While this request was sent, its token was revoked, changed or expired")
        return message

    return bounded


# Answers that last, such as events: they end with the right of who asked for them.


Message = MutableMapping[str, Any]
# Between two looks whether who asked may still ask.
LOOK_S = 2.0
_LAST_WORD_S = 1.0
# The last event of a stream: its reader may ask no more, or for something else than before.
_LAST_EVENT = b"event: refused\ndata: refused\n\n"


async def while_held(
    answer: Callable[[Callable[[Message], Awaitable[None]]], Awaitable[None]],
    send: Callable[[Message], Awaitable[None]],
    is_held: Callable[[], bool],
) -> None:
    """Send an answer as long as it takes, and no longer than the right to it is held.

    What has no answer yet is not cut off: who asked held the right then, and it may have done something.

    Args:
        answer: sends it, by what it is given.
        send: to who asked.
        is_held: is called every few seconds.
    """
    head: Message = {}

    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
        await send(message)

    with anyio.CancelScope() as sending:
        looking = asyncio.create_task(_cut_off(sending, head, is_held))
        try:
            await answer(noted)
        finally:
            looking.cancel()
    if sending.cancelled_caught and _is_of_events(head):
        with anyio.move_on_after(_LAST_WORD_S):  # a reader who takes nothing hears nothing
            await send({"type": "http.response.body", "body": _LAST_EVENT, "more_body": False})


async def _cut_off(sending: anyio.CancelScope, head: Message, is_held: Callable[[], bool]) -> None:
    """Cancel what is sent once the right to it is not held any more."""
    await asyncio.sleep(LOOK_S)
    while not head or is_held():
        await asyncio.sleep(LOOK_S)
    sending.cancel()


def _is_of_events(head: Message) -> bool:
    kinds = [value for name, value in head["headers"] if name.lower() == b"content-type"]
    return any(kind.startswith(b"text/event-stream") for kind in kinds)
