"""What errors say to people, kept in tests/wording.json and not in tests.

A test says which kind of error is due (its class, and so its code); the words are compared with the file.
`pytest --renew-wording PATHS` writes what the tests of PATHS saw: read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "wording.json"
# What each run draws anew, or what is the machine's.
_DRAWN = (
    (r"\bpid \d+", "pid N"),
    (r"\b[0-9a-f]{16}\b", "TOKEN"),
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"[\d.]+ [KMGT]iB are free", "N GiB are free"),
    (r"\.\d+\.partial", ".N.partial"),
    (re.escape(tempfile.gettempdir() + os.sep) + r"tmp\w{8}\b", "TMP"),
    (r"\b([a-z][a-z0-9]*(?:_[a-z0-9]+)*?)_\d+\b", r"\1"),  # Keras counts layers
)
# By test, what the errors said that it met so far.
met: dict[str, list[str]] = {}
renewing = False


@contextlib.contextmanager
def fails_with(kind: type[BaseException]) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect an error of this kind, which says what tests/wording.json has for the test."""
    with pytest.raises(kind) as caught:
        yield caught
    compare(f"{getattr(caught.value, 'code', kind.__name__)}: {caught.value}")


def compare(said: str) -> None:
    """Compare the next message that the running test meets with that of the file, or keep it."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    met.setdefault(test, []).append(everywhere_the_same(said))
    if not renewing:
        known = KNOWN.get(test, [])[: len(met[test])]
        assert met[test] == known, "the words have changed: pytest --renew-wording, and read the difference"


def everywhere_the_same(said: str) -> str:
    """Return a message without what differs between machines and runs: folders, the host."""
    folder = re.escape(str(Path(tempfile.gettempdir()) / "pytest-of-"))
    said = re.sub(folder + r"[^/]+/pytest-\d+(/popen-gw\d+)?(/[^/\s'\":,;)]+?\d+(?=\W|$))?", "TMP", said)
    for part, name in ((sys.prefix, "VENV"), (str(ROOT), "ROOT"), (socket.gethostname(), "HOST")):
        said = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", name, said)
    for pattern, name in _DRAWN:
        said = re.sub(pattern, name, said)
    return said


def read() -> dict[str, list[str]]:
    """Return the file: by test, what the errors say that it meets, in order."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def write() -> None:
    """Put what was met into the file; several processes of pytest may do so."""
    with (FILE.parent / "wording.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read() | met
        text = json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False)
        FILE.write_text(text + "\n", encoding="utf-8")


# Read at once: a test may have taken the file system away.
KNOWN = read()
