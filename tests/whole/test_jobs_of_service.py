"""`cingulum jobs --server`: jobs as a service tells of them, over its socket and at a port."""

from __future__ import annotations

import json
import re

import pytest
from jobs_to_serve import fill
from served import running

from cingulum.cli import app
from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket, WithTokens
from cingulum.service.jobs_now import JobsNow
from cingulum.service.tokens import TokenFile
from jobs.store.store import Store


def served(listener, callers):
    return running(create_app(JobsNow(Store()), callers), listener)


@pytest.fixture
def jobs(slurm, tmp_path):
    return fill(Store(), slurm, tmp_path / "runs")


def test_a_socket_tells_the_jobs_as_a_table_and_as_json(jobs, tmp_path, capsys):
    path = tmp_path / "serve.sock"
    with listening.at_socket(path) as listener, served(listener, AtSocket("ada")):
        assert app.run(["jobs", "--server", f"unix:{path}"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert re.match(r"ID +NAME +KIND +STATE +DONE +HOSTS", lines[0]) and len(lines) == 5
        assert re.match(r"4714 +trains +train +RUNNING +62 % +n1,n2", lines[1])
        assert "1/3 done" in lines[4] and all(len(line) <= 80 for line in lines)
        assert app.run(["jobs", "--server", f"unix:{path}", "--json", "--all"]) == 0
        assert [one["id"] for one in json.loads(capsys.readouterr().out)["jobs"]] == [
            "4714",
            "4713",
            "4712",
            "4711",
        ]
    assert app.run(["jobs", "--server", f"unix:{path}"]) == 1
    assert "no service answers" in capsys.readouterr().err


def test_a_port_asks_for_a_token_from_a_private_file_or_the_environment(jobs, tmp_path, capsys, monkeypatch):
    file = TokenFile(tmp_path / "tokens.json")
    secret = file.add("mine", "read", 1)
    kept = tmp_path / "token"
    kept.write_text(f"{secret}\n")
    with listening.at_port(0) as listener, served(listener, WithTokens("ada", file)):
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert app.run(["jobs", "--server", address]) == 1
        assert "Give a valid token with --token-file" in capsys.readouterr().err
        assert app.run(["jobs", "--server", address, "--token-file", str(kept)]) == 2
        assert "others may read this token" in capsys.readouterr().err
        kept.chmod(0o600)
        assert app.run(["jobs", "--server", f"{address}/", "--token-file", str(kept), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["jobs"]) == 4
        monkeypatch.setenv("CINGULUM_TOKEN", secret)
        assert app.run(["jobs", "--server", address]) == 0
        assert secret not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "address", ["ftp://x", "http://", "login1", "http://login1:8642", "http://127.0.0.1:x"]
)
def test_what_is_no_address_or_would_show_the_token_to_the_network_is_refused(address, capsys):
    assert app.run(["jobs", "--server", address]) == 2
    assert "--server" in capsys.readouterr().err
    assert app.run(["jobs", "--server", "unix:/x", "--rebuild"]) == 2
    assert app.run(["jobs", "--watch", "--json"]) == 2
