"""`cingulum serve`: a page and an API for the user's jobs and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.cli.options import options_of

if TYPE_CHECKING:
    from cingulum.service.serve_options import ServeOptions
    from cingulum.service.tokens import TokenFile
    from jobs.store.store import Store


@options_of(options="cingulum.service.serve_options:ServeOptions")
def serve(
    context: typer.Context,
    options: ServeOptions,
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

    if options.socket is not None and options.port is not None:
        raise InputError("--socket and --port exclude each other.", cure="Leave out one of them.")
    host = gethostname()
    file = TokenFile(home() / "tokens.json")
    if options.new_token is not None:
        secret = file.add(options.new_token, options.may, options.days)
        row = {"name": options.new_token, "may": options.may, "token": secret}
        typer.echo(json.dumps(row) if as_json else secret)
    elif options.revoke is not None:
        file.revoke(options.revoke)
        typer.echo(json.dumps({"revoked": options.revoke}) if as_json else f"{options.revoke} is revoked")
    elif options.tokens:
        _list(file, as_json=as_json)
    elif install:
        _install(options, host, as_json=as_json)
    else:
        heaps.keep_few()
        job_store = _store(options.store)
        hook = None
        if options.webhook is not None:
            allowed = options.webhook_allow
            hook = Webhook(job_store, options.webhook, home(), allowed=allowed, secret=signature(), warn=tell)
        checks = ServiceChecks(context.find_root().command)
        serving = Serving(job_store, _folders(options.runs), checks, file, hook, as_json=as_json)
        if options.behind_proxy is not None:
            serving.behind_proxy(*_proxy(options.socket, options.behind_proxy, options.proxy_user))
        elif options.port is None:
            serving.at_socket(options.socket or _default_socket(host), host)
        else:
            serving.at_port(options.port)


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


def _install(options: ServeOptions, host: str, *, as_json: bool) -> None:
    """Write the unit, and say how it is started and reached."""
    import os
    import sys

    from cingulum.cli.from_model import words_of
    from cingulum.cli.serving import say
    from cingulum.service import unit
    from trainer.errors import InputError

    if options.port is not None:  # the address that is printed would be in the journal
        raise InputError("--install is for the socket.", cure="Leave out --port: ssh forwards to it.")
    if options.store is not None and "://" in options.store:
        raise InputError(
            "--install writes no URL of a store, which may hold a password.",
            cure="Give it in CINGULUM_STORE: systemctl --user edit cingulum-serve",
        )
    if options.behind_proxy is not None:
        _proxy(options.socket, options.behind_proxy, options.proxy_user)  # says what is wrong with it now
    kept_options = options.kept(options.socket or _default_socket(host))
    place = str(kept_options.socket)
    command = [sys.executable, "-m", "cingulum", "serve", *words_of(kept_options)]
    kept = {name: os.environ[name] for name in unit.passed() if name in os.environ}
    path = unit.install(unit.text(command, Path.cwd(), kept))
    say(
        {"unit": str(path)},
        f"wrote {path}\n"
        "  start it now, and at every login: systemctl --user daemon-reload && "
        "systemctl --user enable --now cingulum-serve\n"
        "  keep it when you log out:         loginctl enable-linger\n"
        "  what it says:                     journalctl --user -u cingulum-serve\n"
        f"{_unsaid(options)}"
        f"  on your computer:                 ssh -N -L 8642:{place} {host}\n"
        "  then open http://127.0.0.1:8642/ there",
        as_json=as_json,
    )


def _unsaid(options: ServeOptions) -> str:
    """Return how to give the service what is written into no file."""
    if options.webhook is None:
        return ""
    return (
        "  what signs the webhook:           CINGULUM_WEBHOOK_SECRET (systemctl --user edit cingulum-serve)\n"
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


def _folders(folders: tuple[Path, ...]) -> list[Path]:
    """Return the folders of runs; one that is named must exist, lest a typo shows nothing."""
    from trainer.config import RunConfig
    from trainer.errors import RunError

    if not folders:
        return [RunConfig.model_fields["runs"].default]
    for folder in folders:
        if not folder.is_dir():
            raise RunError(
                f"{folder}: there is no such folder.",
                cure="Give a folder with run folders in it, such as runs",
                path=folder,
            )
    return list(folders)


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
