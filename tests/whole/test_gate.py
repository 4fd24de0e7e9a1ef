"""What the gate makes of a test process that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PASSES = "import os, time\n" + "".join(f"def test_{name}():\n    time.sleep(0.05)\n" for name in "abc")
FILES = {
    "test_a.py": PASSES,
    "test_b_dies.py": PASSES.replace("time.sleep(0.05)", "os._exit(1)"),
    "test_c.py": PASSES,
    "test_d.py": PASSES,
}


@pytest.mark.parametrize(("dies", "code"), [(True, 3), (False, 0)])
def test_a_test_process_that_died_ends_the_gate_and_is_no_failure_to_try_again(
    tmp_path: Path, dies: bool, code: int
) -> None:
    """Replaced, it would run the same test again for ever; and tests that nobody ran have not passed."""
    for name, text in FILES.items():
        if dies or name != "test_b_dies.py":
            (tmp_path / name).write_text(text)
    (tmp_path / "conftest.py").write_bytes((ROOT / "tests/conftest.py").read_bytes())
    (tmp_path / "setup.cfg").write_bytes((ROOT / "setup.cfg").read_bytes())

    done = subprocess.run(
        [sys.executable, "-m", "pytest", ".", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == code, done.stdout + done.stderr
