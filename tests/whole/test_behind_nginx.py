"""Behind a real nginx with a login: whom it names counts, and nobody but nginx can name anyone."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx2
import pytest
from served import checks

from cingulum import cli
from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import BehindProxy
from cingulum.service.jobs_now import JobsNow
from jobs.store import Store

ORIGIN = "https://jobs.example.org"
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; user nobody nogroup;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    auth_basic "the site"; auth_basic_user_file {folder}/users;
    location / {{
      proxy_pass http://unix:{folder}/serve.sock;
      proxy_set_header Host $host;
      proxy_set_header Remote-User $remote_user;
      proxy_set_header Authorization "";
      proxy_buffering off;
    }}
  }}
}}
"""


@pytest.fixture
def site(slurm, tmp_path_factory):
    """A service of ada's behind nginx, in a folder that all may enter; yields the address and the socket."""
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
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    uid = pwd.getpwnam("nobody").pw_uid
    try:
        with listening.at_socket(folder / "serve.sock", mode=0o666) as listener:
            app = create_app(JobsNow(Store()), BehindProxy("ada"), looks=checks(), origin=ORIGIN)
            server = listening.server(app, listening.of_user(uid))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            with subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")]) as nginx:
                try:
                    yield f"http://127.0.0.1:{port}", folder / "serve.sock"
                finally:
                    nginx.terminate()
            server.handle_exit(signal.SIGINT, None)
            thread.join(30)
    finally:
        shutil.rmtree(folder)


def asked(address: str, path: str, user: str | None = None, method: str = "GET", **headers: str):
    headers = {"Host": "jobs.example.org", **headers}
    with httpx2.Client(base_url=address, auth=(user, "pw") if user else None, timeout=30) as client:
        end = time.monotonic() + 20
        while True:
            try:
                return client.request(method, path, headers=headers)
            except httpx2.ConnectError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


def test_who_the_proxy_signed_in_may_ask_and_nobody_else(site):
    address, path = site
    session = asked(address, "/api/v1/session", "ada")
    assert session.json() == {"who": "ada (service, proxy)", "may": "write"}
    assert asked(address, "/", "ada").status_code == 200
    assert asked(address, "/api/v1/jobs").status_code == 401  # nginx's own
    other = asked(address, "/api/v1/jobs", "ben")
    assert (other.status_code, other.json()["error"]["code"]) == (403, "NOT_YOURS")
    # What a client says of itself is replaced, in every spelling.
    for name in ("Remote-User", "remote_user", "REMOTE-USER"):
        assert asked(address, "/api/v1/jobs", "ben", **{name: "ada"}).status_code == 403
    # Other names, and requests of other pages.
    assert asked(address, "/", "ada", Host="localhost").status_code == 421
    post = "/api/v1/jobs/check"
    for origin, status in ((ORIGIN, 422), ("https://evil.example", 403), ("http://jobs.example.org", 403)):
        answer = asked(address, post, "ada", "POST", Origin=origin, **{"X-Cingulum": "1"})
        assert answer.status_code == status
    assert asked(address, "/api/v1/tokens", "ada").status_code == 403
    # Past the proxy nobody gets an answer, though all may open the socket: we are not its user.
    transport = httpx2.HTTPTransport(uds=str(path))
    with (
        httpx2.Client(transport=transport, base_url="http://jobs.example.org", timeout=30) as client,
        pytest.raises(httpx2.HTTPError),
    ):
        client.get("/api/v1/jobs", headers={"Remote-User": "ada"})


def test_elsewhere_a_remote_user_is_only_a_header(tmp_path, slurm, capsys):
    from cingulum.service.callers import WithTokens
    from cingulum.service.tokens import TokenFile

    callers = WithTokens("ada", TokenFile(tmp_path / "tokens.json"))
    assert callers.caller(None, None, "ada") is None
    assert cli.run(["serve", "--behind-proxy", ORIGIN]) == 2
    assert "needs a --socket" in capsys.readouterr().err
    for words in (
        ["--behind-proxy", "jobs.example.org"],
        ["--behind-proxy", ORIGIN, "--proxy-user", "nobody-x"],
    ):
        assert cli.run(["serve", "--socket", str(tmp_path / "s"), *words]) == 2
