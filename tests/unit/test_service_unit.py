"""The unit of the user's systemd: what it runs, and that systemd reads back what is meant."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wording import fails_with

from cingulum.cli import app
from cingulum.service import unit
from trainer.errors import InputError


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("CINGULUM_STORE", "postgresql://me:a-secret@db/jobs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_unit_runs_the_service_as_it_would_run_now_and_says_how_to_reach_it(home, capsys):
    (home / "my runs").mkdir()
    assert app.run(["serve", "--install", "--runs", "my runs"]) == 0
    path = home / "settings" / "systemd" / "user" / unit.NAME
    said, written = capsys.readouterr().out, path.read_text()
    assert str(path) in said and "systemctl --user enable --now cingulum-serve" in said
    assert re.search(r"ssh -N -L 8642:\S+\.sock \S+", said) and "enable-linger" in said
    assert f'ExecStart="{sys.executable}" "-m" "cingulum" "serve" "--socket" "' in written
    assert f'"--runs" "{home}/my runs"' in written and f"WorkingDirectory={home}" in written
    assert "UMask=0077" in written and f"CINGULUM_HOME={home}/home" in written
    assert "a-secret" not in written + said and path.stat().st_mode & 0o777 == 0o600
    assert app.run(["serve", "--install"]) == 0 and "my runs" not in path.read_text()  # ours is replaced
    path.write_text("[Service]\nExecStart=mine\n")
    assert app.run(["serve", "--install"]) == 2 and "mine" in path.read_text()
    assert "is not ours" in capsys.readouterr().err


def test_the_unit_has_every_option_of_a_service_that_goes_on(home, capsys):
    user = getpass.getuser()
    words = (
        f"--socket here.sock --webhook https://hook.example/x --webhook-allow 10.0.0.0/8 --proxy-user {user}"
    )
    assert app.run(["serve", "--install", *words.split(), "--behind-proxy", "https://jobs.example/ada"]) == 0
    said, written = capsys.readouterr().out, (home / "settings/systemd/user" / unit.NAME).read_text()
    expected = [
        *(
            "--socket",
            f"{home}/here.sock",
            "--behind-proxy",
            "https://jobs.example/ada",
            "--proxy-user",
            user,
        ),
        *("--webhook", "https://hook.example/x", "--webhook-allow", "10.0.0.0/8"),
    ]
    assert " ".join(f'"{word}"' for word in expected) in written
    assert "CINGULUM_WEBHOOK_SECRET" in said and "CINGULUM_WEBHOOK_SECRET" not in written
    assert app.run(["serve", "--install", "--behind-proxy", "jobs.example"]) == 2


def test_a_port_or_a_url_of_a_store_would_put_a_secret_into_the_unit_or_the_journal(home, capsys):
    assert app.run(["serve", "--install", "--port", "0"]) == 2
    assert app.run(["serve", "--install", "--store", "postgresql://me:a-secret@db/jobs"]) == 2
    assert "a-secret" not in capsys.readouterr().err and not (home / "settings").exists()


def test_words_with_signs_of_systemd_s_own_are_read_back_as_they_are(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    words = ["/bin/true", "a b", '"', "\\", "$HOME", "%h", "100%", "ä'"]
    path = tmp_path / unit.NAME
    assert unit.text(["$HOME"], tmp_path, {"X": "$"}).count("$$") == 1
    path.write_text(unit.text(words, tmp_path, {"PATH": "/usr/bin:/b in", "X": '%n "$HOME" \\'}))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(path)], capture_output=True, text=True, timeout=60
    )
    assert unit.NAME not in done.stdout + done.stderr
    with fails_with(InputError):
        unit.text(["a\nExecStart=evil"], tmp_path, {})
