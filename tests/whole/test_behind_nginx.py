"""Behind a real nginx with a login: whom it names counts, and nobody but nginx can name anyone."""

from __future__ import annotations

import threading
import time

import httpx2
import pytest
from behind_nginx import proxied

from cingulum.cli import app

ORIGIN = "https://jobs.example.org"


@pytest.fixture
def site(slurm):
    """Addresses of nginx and of the socket behind it."""
    with proxied(lambda port: ORIGIN) as found:
        yield found


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


def test_a_test_that_fails_leaves_no_server_behind(slurm):
    before = set(threading.enumerate())
    with pytest.raises(AssertionError, match="as if"), proxied(lambda port: ORIGIN) as (_, path):
        assert not path, "as if an expectation failed"
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    assert left == [] and not path.parent.exists()


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
    assert app.run(["serve", "--behind-proxy", ORIGIN]) == 2
    assert "needs a --socket" in capsys.readouterr().err
    for words in (
        ["--behind-proxy", "jobs.example.org"],
        ["--behind-proxy", f"{ORIGIN}/../etc"],
        ["--behind-proxy", f"{ORIGIN}/ada?x"],
        ["--behind-proxy", f"{ORIGIN}/ada", "--proxy-user", "nobody-x"],
    ):
        assert app.run(["serve", "--socket", str(tmp_path / "s"), *words]) == 2
