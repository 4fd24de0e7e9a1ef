"""Who asks the service: the user at a private socket, a token, or a browser that signed in with one."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass

from cingulum.service.tokens import May, Token, TokenFile, digest, matching
from trainer.errors import CingulumError

_MOST_SESSIONS = 1000


@dataclass(frozen=True)
class Caller:
    """Who asks, as the history of jobs names them, and what they may."""

    who: str
    may: May


class AtSocket:
    """Whoever can open the socket (mode 0600) is the user, and may do everything."""

    def __init__(self, user: str) -> None:
        self._user = Caller(f"{user} (service, own socket)", "admin")

    def caller(self, bearer: str | None, session: str | None, remote_user: str | None) -> Caller | None:
        """Return the user."""
        return self._user

    def sign_in(self, secret: str) -> str | None:
        """Return None: there is nothing to sign in with."""
        return None


class BehindProxy:
    """Callers whom a proxy has signed in: it alone can connect (`listening.of_user`), so what it says counts.

    Args:
        user: as whom the service runs, and the only one who may ask.
    """

    def __init__(self, user: str) -> None:
        self._user = Caller(f"{user} (service, proxy)", "write")
        self._name = user

    def caller(self, bearer: str | None, session: str | None, remote_user: str | None) -> Caller | None:
        """Return the user; None: the proxy has signed in nobody.

        Raises:
            NotYours: it has signed in somebody else.
        """
        if remote_user and remote_user != self._name:
            raise NotYours("These are the jobs of somebody else.", cure="Start `cingulum serve` as yourself.")
        return self._user if remote_user else None

    def sign_in(self, secret: str) -> str | None:
        """Return None: the proxy does that."""
        return None


class WithTokens:
    """Callers on a port, whom anyone on the host can be.

    Sessions of browsers live in this process alone, so that a cookie is worth nothing to who listens on the
    port after it.

    Args:
        user: as whom the service runs.
        file: of the tokens that the user keeps.
        once: one more, for as long as this process runs.
    """

    def __init__(self, user: str, file: TokenFile, once: Token | None = None) -> None:
        self._user, self._file = user, file
        self._once = () if once is None else (once,)
        self._sessions: dict[str, str] = {}
        self._lock = threading.Lock()

    def caller(self, bearer: str | None, session: str | None, remote_user: str | None) -> Caller | None:
        """Return who has this token or session; None: nobody. Anyone could name a remote user."""
        token = matching(self._tokens(), bearer) if bearer else None
        if token is None and session and bearer is None:
            signed_in = self._sessions.get(digest(session))
            # A token that was revoked or expired takes its sessions along.
            token = next((one for one in self._tokens() if one.sha256 == signed_in and one.is_valid), None)
        return None if token is None else Caller(f"{self._user} (service, token {token.name})", token.may)

    def sign_in(self, secret: str) -> str | None:
        """Return a new session of who has this token; None: it is not valid."""
        token = matching(self._tokens(), secret)
        if token is None:
            return None
        session = secrets.token_urlsafe(32)
        with self._lock:
            while len(self._sessions) >= _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[digest(session)] = token.sha256
        return session

    def _tokens(self) -> tuple[Token, ...]:
        try:
            return (*self._once, *self._file.all())
        except (CingulumError, OSError):
            raise TokensUnreadable(
                "The tokens of this service cannot be read.", cure="`cingulum serve --tokens` says why."
            ) from None


Callers = AtSocket | BehindProxy | WithTokens


class NotYours(CingulumError, code="NOT_YOURS"):
    """Who is signed in is not the user of this service."""


class TokensUnreadable(CingulumError, code="TOKENS_UNREADABLE"):
    """The file of tokens cannot be used; who asks is not told more."""
