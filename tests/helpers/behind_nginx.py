"""A service of ada's behind a real nginx with a login (ada and ben, password `pw`)."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from served import checks, running

from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import BehindProxy
from cingulum.service.jobs_now import JobsNow
from cingulum.service.runs_now import RunsNow
from jobs.store.store import Store

NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; user nobody nogroup;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    auth_basic "the site"; auth_basic_user_file {folder}/users;
    location {root}/ {{
      proxy_pass http://unix:{folder}/serve.sock{passed};
      proxy_set_header Host $http_host;
      proxy_set_header Remote-User $remote_user;
      proxy_set_header Authorization "";
      proxy_buffering off;
    }}
  }}
}}
"""


@contextmanager
def proxied(
    origin: Callable[[int], str], *, root: str = "", passed: str = "", runs: Sequence[Path] = ()
) -> Iterator[tuple[str, Path]]:
    """Serve behind nginx, in a folder that all may enter; yields nginx's address and the socket.

    Args:
        origin: of the pages, from nginx's port.
        root: path of the pages.
        passed: ":/" where nginx leaves the path of the pages out, "" where it does not.
        runs: folders of runs.
    """
    if shutil.which("nginx") is None or os.geteuid() != 0:
        why = "needs nginx, and root to run it as another user"
        if os.environ.get("CINGULUM_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"CINGULUM_REQUIRE_CLUSTER=1, and the test {why}")
        pytest.skip(why)
    folder = Path("/tmp") / f"cingulum-nginx-{os.getpid()}"  # noqa: S108  (pytest's own are private)
    folder.mkdir(mode=0o755)
    (folder / "users").write_text("ada:{PLAIN}pw\nben:{PLAIN}pw\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, root=root, passed=passed))
    uid = pwd.getpwnam("nobody").pw_uid
    try:
        with listening.at_socket(folder / "serve.sock", mode=0o666) as listener:
            now = JobsNow(Store())
            app = create_app(
                now,
                BehindProxy("ada"),
                RunsNow(runs, now.facts),
                looks=checks(),
                origin=origin(port),
                root=root,
            )
            with (
                running(app, listener, listening.of_user(uid)),
                subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")]) as nginx,
            ):
                try:
                    yield f"http://127.0.0.1:{port}", folder / "serve.sock"
                finally:
                    nginx.terminate()
    finally:
        shutil.rmtree(folder)
