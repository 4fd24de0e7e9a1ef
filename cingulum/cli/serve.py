"""`cingulum serve`: a page and an API for the user's jobs and runs."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cingulum.service.tokens import TokenFile
    from jobs.store.store import Store


class May(str, Enum):
    """What a token allows."""

    read = "read"
    write = "write"
    admin = "admin"


def serve(
    context: typer.Context,
    socket: Annotated[
        Path | None,
        typer.Option(
            help="Listen at this socket, which only you can open.  [default: serve-HOST.sock beside jobs]"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Listen at this port of 127.0.0.1 instead, for who has a token."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="PATH|URL", help="Another store than CINGULUM_STORE names.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Show the runs whose folders are in DIR, too; may be repeated.  [default: runs]",
        ),
    ] = None,
    new_token: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a token for --port, show it once, and end.")
    ] = None,
    may: Annotated[
        May, typer.Option(help="What the new token allows; write: act as you, admin: also revoke.")
    ] = May.read,
    days: Annotated[int, typer.Option(min=1, max=3650, help="The new token is valid for so long.")] = 90,
    tokens: Annotated[bool, typer.Option("--tokens", help="List the tokens, and end.")] = False,
    revoke: Annotated[str | None, typer.Option(metavar="NAME", help="Forget a token, and end.")] = None,
    behind_proxy: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Listen at --socket for a proxy that signs users in, with pages at https://name.example, or "
            "under a path there.",
        ),
    ] = None,
    proxy_user: Annotated[
        str, typer.Option(metavar="USER", help="With --behind-proxy: as whom the proxy connects.")
    ] = "www-data",
    webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Tell this address of every change of your jobs; default: none."),
    ] = None,
    webhook_allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="An address or network that the webhook may be in though it is not public; may be repeated.",
        ),
    ] = None,
    install: Annotated[
        bool,
        typer.Option("--install", help="Write a systemd user unit that runs it with these options, and end."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON where it listens.")] = False,
) -> None:
    """Show your jobs and runs on pages that update themselves, with an API for programs, until Ctrl-C.

    By default it listens at a socket that only you can open; the command that lets your own computer's
    browser use it is printed. With --port everybody on this host can reach it, so a token is needed: the
    address that is printed holds one that is valid until the service ends.

    \b
    Example:
      cingulum serve
      cingulum serve --port 8642
      cingulum serve --runs /scratch/ada/runs
      cingulum serve --new-token notebook --may read
      cingulum serve --runs /scratch/ada/runs --install
    """
    from socket import gethostname

    from cingulum.cli.serving import Serving
    from cingulum.cli.submission_check import ServiceChecks
    from cingulum.service import heaps
    from cingulum.service.tokens import TokenFile
    from cingulum.service.webhook import Webhook
    from cingulum.service.webhook import secret as signature
    from jobs.home import home
    from trainer.errors import InputError
    from trainer.telling import tell

    if socket is not None and port is not None:
        raise InputError("--socket and --port exclude each other.", cure="Leave out one of them.")
    host = gethostname()
    file = TokenFile(home() / "tokens.json")
    if new_token is not None:
        secret = file.add(new_token, may.value, days)
        typer.echo(json.dumps({"name": new_token, "may": may.value, "token": secret}) if as_json else secret)
    elif revoke is not None:
        file.revoke(revoke)
        typer.echo(json.dumps({"revoked": revoke}) if as_json else f"{revoke} is revoked")
    elif tokens:
        _list(file, as_json=as_json)
    elif install:
        if port is not None:  # the address that is printed would be in the journal
            raise InputError("--install is for the socket.", cure="Leave out --port: ssh forwards to it.")
        _install(socket or _default_socket(host), store, runs, host, as_json=as_json)
    else:
        heaps.keep_few()
        job_store = _store(store)
        hook = None
        if webhook is not None:
            hook = Webhook(
                job_store, webhook, home(), allowed=webhook_allow or (), secret=signature(), warn=tell
            )
        checks = ServiceChecks(context.find_root().command)
        serving = Serving(job_store, _folders(runs), checks, file, hook, as_json=as_json)
        if behind_proxy is not None:
            serving.behind_proxy(*_proxy(socket, behind_proxy, proxy_user))
        elif port is None:
            serving.at_socket(socket or _default_socket(host), host)
        else:
            serving.at_port(port)


def _proxy(socket: Path | None, url: str, user: str) -> tuple[Path, str, str, int]:
    """Return the socket, the origin of the pages and their path there, and the number of the proxy's user."""
    import pwd
    import re

    from trainer.errors import InputError

    if socket is None:
        raise InputError(
            "--behind-proxy needs a --socket in a folder that the proxy can enter.",
            cure="For example --socket /run/cingulum/ada.sock",
        )
    match = re.fullmatch(
        r"(https?://[a-z0-9.-]+(?::[0-9]{1,5})?)((?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?", url, re.ASCII
    )
    if match is None:
        cure = "Give https://jobs.example.org or https://jobs.example.org/ada"
        raise InputError(f"--behind-proxy {url}: not an address of pages.", cure=cure)
    try:
        return socket, match[1], match[2], pwd.getpwnam(user).pw_uid
    except KeyError:
        raise InputError(f"--proxy-user {user}: there is no such user.", cure="See /etc/passwd.") from None


def _default_socket(host: str) -> Path:
    """Return the socket of this host: other hosts may see the same folder, and each has its own service."""
    from jobs.home import home

    return home() / f"serve-{host.partition('.')[0]}.sock"


def _install(socket: Path, store: str | None, runs: list[Path] | None, host: str, *, as_json: bool) -> None:
    """Write the unit, and say how it is started and reached."""
    import os
    import sys

    from cingulum.cli.serving import say
    from cingulum.service import unit
    from trainer.errors import InputError

    if store is not None and "://" in store:
        raise InputError(
            "--install writes no URL of a store, which may hold a password.",
            cure="Give it in CINGULUM_STORE: systemctl --user edit cingulum-serve",
        )
    place = str(socket.expanduser().absolute())
    command = [sys.executable, "-m", "cingulum", "serve", "--socket", place]
    command += [] if store is None else ["--store", str(Path(store).expanduser().absolute())]
    command += [word for folder in runs or () for word in ("--runs", str(folder.absolute()))]
    kept = {name: os.environ[name] for name in unit.PASSED if name in os.environ}
    path = unit.install(unit.text(command, Path.cwd(), kept))
    say(
        {"unit": str(path)},
        f"wrote {path}\n"
        "  start it now, and at every login: systemctl --user daemon-reload && "
        "systemctl --user enable --now cingulum-serve\n"
        "  keep it when you log out:         loginctl enable-linger\n"
        "  what it says:                     journalctl --user -u cingulum-serve\n"
        f"  on your computer:                 ssh -N -L 8642:{place} {host}\n"
        "  then open http://127.0.0.1:8642/ there",
        as_json=as_json,
    )


def _store(where: str | None) -> Store:
    """Return the store; one that is named must exist, lest a typo makes an empty one."""
    from jobs.requests import known
    from jobs.store.store import Store
    from trainer.errors import JobError
    from trainer.telling import tell

    if where is None:
        return known.opened(tell)
    if "://" not in where and not Path(where).expanduser().is_file():
        raise JobError(
            f"{where}: there is no store of jobs.", cure="Without --store, yours is used.", path=where
        )
    return Store(where)


def _folders(folders: list[Path] | None) -> list[Path]:
    """Return the folders of runs; one that is named must exist, lest a typo shows nothing."""
    from trainer.config import RunConfig
    from trainer.errors import RunError

    if folders is None:
        return [RunConfig.model_fields["runs"].default]
    for folder in folders:
        if not folder.is_dir():
            raise RunError(
                f"{folder}: there is no such folder.",
                cure="Give a folder with run folders in it, such as runs",
                path=folder,
            )
    return folders


def _list(file: TokenFile, *, as_json: bool) -> None:
    from jobs.requests import describing

    rows = [
        {
            "name": token.name,
            "may": token.may,
            "expires": describing.iso(token.expires),
            "valid": token.is_valid,
        }
        for token in file.all()
    ]
    if as_json:
        typer.echo(json.dumps({"tokens": rows}, indent=1))
        return
    for one in rows:
        state = f"until {one['expires']}" if one["valid"] else f"expired {one['expires']}"
        typer.echo(f"{one['name']}  {one['may']}  {state}")
    if not rows:
        typer.echo("no tokens; `cingulum serve --new-token NAME` makes one", err=True)
