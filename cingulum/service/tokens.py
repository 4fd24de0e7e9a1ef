"""Tokens with which programs and browsers ask the service, kept as hashes in one private file."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer import atomic
from trainer.errors import InputError, typed

May = Literal["read", "write", "admin"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DAY_S = 86400.0


@dataclass(frozen=True)
class Token:
    """What the service keeps of a token.

    Attributes:
        name: given by the user.
        sha256: of the token, which has 256 random bits, so that a slow hash would add nothing.
        may: "read"; "write": also act on jobs; "admin": also list and revoke tokens.
        created, expires: seconds since 1970.
    """

    name: str
    sha256: str
    may: May
    created: float
    expires: float

    @property
    def is_valid(self) -> bool:
        """Return whether it has not expired."""
        return time.time() < self.expires


def new(name: str, may: May, days: float) -> tuple[Token, str]:
    """Return what is kept of a new token, and the token itself, which nothing can show again.

    Raises:
        InputError: the name cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of a token.",
            cure="Use letters, digits, '.', '_' and '-', at most 64, a letter or a digit first.",
        )
    secret = secrets.token_urlsafe(32)
    now = time.time()
    return Token(name, digest(secret), may, now, now + days * _DAY_S), secret


def digest(secret: str) -> str:
    """Return the hash under which a token or a session is kept."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def matching(tokens: Sequence[Token], secret: str) -> Token | None:
    """Return the valid token that this is, compared with each in constant time."""
    wanted = digest(secret)
    match = None
    for token in tokens:
        if hmac.compare_digest(token.sha256, wanted):
            match = token
    return match if match is not None and match.is_valid else None


class TokenFile:
    """The tokens that the user has made: `tokens.json` in the folder for jobs, mode 0600."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[object, tuple[Token, ...]] = (None, ())

    def all(self) -> tuple[Token, ...]:
        """Return them, as another process may have left them meanwhile.

        Raises:
            InputError: the file is damaged, or others may read it.
        """
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise InputError(
                    f"{self.path}: is not private.", cure=f"chmod 600 {typed(self.path)}", path=self.path
                )
            if stamp != self._read[0]:
                tokens = json.loads(self.path.read_text(encoding="utf-8"))["tokens"]
                self._read = stamp, tuple(Token(**one) for one in tokens)
        except FileNotFoundError:
            return ()
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.path}: is damaged ({error}).",
                cure="Remove it, and make new tokens.",
                path=self.path,
            ) from None
        return self._read[1]

    def add(self, name: str, may: May, days: float) -> str:
        """Make and keep a token; return it, which nothing can show again.

        Raises:
            InputError: the name is taken or cannot be used.
        """
        with self._alone():
            kept = [token for token in self.all() if token.is_valid]
            if any(token.name == name for token in kept):
                raise InputError(
                    f"There is a token {name!r} already.",
                    cure=f"Give another name, or revoke it: cingulum serve --revoke {name}",
                )
            token, secret = new(name, may, days)
            self._write([*kept, token])
        return secret

    def revoke(self, name: str) -> None:
        """Forget a token; a service that runs refuses it from its next request on.

        Raises:
            InputError: there is none of this name.
        """
        with self._alone():
            tokens = self.all()
            left = [token for token in tokens if token.name != name]
            if len(left) == len(tokens):
                raise InputError(f"There is no token {name!r}.", cure="`cingulum serve --tokens` lists them.")
            self._write(left)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from changing the file: one would undo what the other did."""
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, tokens: Sequence[Token]) -> None:
        content = {"tokens": [dataclasses.asdict(token) for token in tokens]}
        atomic.write_private(self.path, json.dumps(content, indent=1) + "\n")
