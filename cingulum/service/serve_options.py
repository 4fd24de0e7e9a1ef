"""The options of `cingulum serve`, once: of its command line, and of the unit that systemd keeps running."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True)
class Metavar:
    """What the value of an option is called."""

    metavar: str


class ServeOptions(BaseModel):
    """Where the service listens, what it shows and whom it tells; and what is done with tokens instead."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    socket: Annotated[
        Path | None,
        Field(
            description="Listen at this socket, which only you can open.  [default: serve-HOST.sock beside "
            "jobs]"
        ),
    ] = None
    port: Annotated[
        int | None,
        Field(
            ge=0,
            le=65535,
            description="Listen at this port of 127.0.0.1 instead, for who has a token.",
        ),
    ] = None
    store: Annotated[
        str | None, Field(description="Another store than CINGULUM_STORE names."), Metavar("PATH|URL")
    ] = None
    runs: Annotated[
        tuple[Path, ...],
        Field(description="Show the runs whose folders are in DIR, too; may be repeated.  [default: runs]"),
        Metavar("DIR"),
    ] = ()
    behind_proxy: Annotated[
        str | None,
        Field(
            description="Listen at --socket for a proxy that signs users in, with pages at "
            "https://name.example, or under a path there."
        ),
        Metavar("URL"),
    ] = None
    proxy_user: Annotated[
        str, Field(description="With --behind-proxy: as whom the proxy connects."), Metavar("USER")
    ] = "www-data"
    webhook: Annotated[
        str | None,
        Field(description="Tell this address of every change of your jobs; default: none."),
        Metavar("URL"),
    ] = None
    webhook_allow: Annotated[
        tuple[str, ...],
        Field(
            description="An address or network that the webhook may be in though it is not public; may be "
            "repeated."
        ),
        Metavar("NETWORK"),
    ] = ()
    new_token: Annotated[
        str | None,
        Field(description="Make a token for --port, show it once, and end."),
        Metavar("NAME"),
    ] = None
    may: Annotated[
        Literal["read", "write", "admin"],
        Field(description="What the new token allows; write: act as you, admin: also revoke."),
    ] = "read"
    days: Annotated[int, Field(ge=1, le=3650, description="The new token is valid for so long.")] = 90
    tokens: Annotated[bool, Field(description="List the tokens, and end.")] = False
    revoke: Annotated[str | None, Field(description="Forget a token, and end."), Metavar("NAME")] = None

    def kept(self, socket: Path) -> ServeOptions:
        """Return those of a service that goes on, at this socket, with absolute paths."""
        return ServeOptions(
            socket=socket.expanduser().absolute(),
            store=None if self.store is None else str(Path(self.store).expanduser().absolute()),
            runs=tuple(folder.absolute() for folder in self.runs),
            **self.model_dump(include={"behind_proxy", "proxy_user", "webhook", "webhook_allow"}),
        )
