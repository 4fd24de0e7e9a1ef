"""What the service sends, and where it sends nothing: to no private address, by whatever name or redirect."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from wording import fails_with

from cingulum.service import webhook
from cingulum.service import webhook as webhook_module
from cingulum.service.webhook import RefusedError, Webhook
from trainer.errors import InputError

LOOPBACK = ("127.0.0.0/8",)


@contextmanager
def receiver(*statuses: int, location: str = ""):
    """A host that answers with these statuses in turn, then 204; yields its URL and what it was sent."""
    got: list[tuple[dict, bytes]] = []
    left = list(statuses)

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(left.pop(0) if left else 204)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Takes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?key=a-secret", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254"),
        *("::ffff:169.254.169.254", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::a9fe:a9fe", "ff02::1"),
        *("2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fe80::1%1", "fec0::1", "64:ff9b:1::1"),
    ],
)
def test_an_address_that_is_not_of_the_public_internet_is_known(address):
    assert not webhook.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_an_address_of_the_public_internet_is_known(address):
    assert webhook.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
    ],
)
def test_nothing_is_sent_to_this_host_or_to_a_cloud_s_own_addresses_however_they_are_written(
    host, monkeypatch
):
    monkeypatch.setattr(webhook.socket, "create_connection", lambda *_: pytest.fail("connected"))
    with pytest.raises(RefusedError, match=r"is not a public address|has no address"):
        webhook.post(f"http://{host}/latest/meta-data/", b"", {}, ())


def test_a_name_is_resolved_once_and_all_its_addresses_count(monkeypatch):
    answers = [["8.8.8.8"], ["127.0.0.1"]]  # a name that points elsewhere the second time
    asked, connected = [], []

    def resolve(host, port, **_):
        asked.append(host)
        return [(2, 1, 6, "", (text, port)) for text in answers[len(asked) - 1]]

    def connect(place, *_):
        connected.append(place)
        raise OSError("no network here")

    monkeypatch.setattr(webhook.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(webhook.socket, "create_connection", connect)
    with fails_with(RefusedError):
        webhook.post("http://hook.example/", b"", {}, ())
    assert (asked, connected) == (["hook.example"], [("8.8.8.8", 80)])
    answers[1:] = [["8.8.8.8", "10.0.0.1"]]
    with fails_with(RefusedError):
        webhook.post("http://hook.example/", b"", {}, ())
    assert len(connected) == 1


def test_a_redirect_is_not_followed():
    with receiver() as (inner, got), receiver(307, location=inner) as (url, outer):
        with fails_with(RefusedError):
            webhook.post(url, b"{}", {}, webhook.networks(LOOPBACK))
        assert len(outer) == 1 and got == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/",
        "file:///etc/passwd",
        "http://",
        "http://me:pw@host/",
        "http://a b/",
        "http://h:99999/",
        "x",
    ],
)
def test_what_is_no_url_to_send_to_is_refused_at_the_start(url, store, tmp_path):
    with pytest.raises(InputError) as refused:
        Webhook(store, url, tmp_path, warn=print)
    assert "pw" not in str(refused.value)
    with fails_with(InputError):
        Webhook(store, "https://host.example/", tmp_path, allowed=["everywhere"], warn=print)


def test_changes_are_told_in_order_signed_and_after_a_failure_or_a_restart_from_where_it_was(
    store, served_jobs, slurm, tmp_path
):
    def hook() -> Webhook:
        return Webhook(store, url, tmp_path, allowed=LOOPBACK, secret="s3", warn=print)  # noqa: S106

    with receiver(204, 500) as (url, got):
        hook().tell()  # from now on
        assert got == []
        for job, state in (("4713", "RUNNING"), ("4714", "COMPLETED")):
            slurm.becomes(job, state, exit_code=0 if state == "COMPLETED" else None)
            store.record([(store.get(job), slurm.jobs[job])])
        with fails_with(RefusedError) as refused:
            hook().tell()
        assert "a-secret" not in str(refused.value)
        hook().tell()  # a new process
        hook().tell()
    told = [json.loads(body) for _, body in got]
    assert [(one["job"], one["state"]) for one in told] == [
        ("4713", "RUNNING"),
        ("4714", "COMPLETED"),
        ("4714", "COMPLETED"),
    ]
    assert told[1]["id"] == told[2]["id"] > told[0]["id"]
    headers, body = got[0]
    assert headers["X-Cingulum-Signature"] == f"sha256={hmac.new(b's3', body, hashlib.sha256).hexdigest()}"


def test_figures_for_prometheus_are_a_handful(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert 'cingulum_jobs{state="RUNNING"} 2' in lines and 'cingulum_jobs{state="LOST"} 0' in lines
    assert len(lines) < 30 and all(len(line.split()) == 2 for line in lines)


def test_an_error_that_nobody_foresaw_ends_one_round_and_not_the_webhook(store, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_module, "LOOK_S", 0.01)
    warned, rounds, again = [], [], threading.Event()
    hook = Webhook(store, "https://host.example/", tmp_path, warn=warned.append)

    def tell() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise ValueError("a row of another version")
        again.set()

    monkeypatch.setattr(hook, "tell", tell)
    hook.start()
    assert again.wait(20) and warned == ["warning: the webhook waits: a row of another version"]
    hook.end()
