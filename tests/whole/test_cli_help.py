"""What a new process loads in order to tell what a command does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cingulum.cli.app import COMMANDS

HEAVY = ("tensorflow", "keras", "numpy", "h5py", "nibabel", "matplotlib", "mpi4py", "horovod")


def loaded(arguments: list[str]) -> list[str]:
    """What a new process has imported after a command line that must end well."""
    code = (
        "import sys; from cingulum.cli import app; code = app.run(sys.argv[1:]);"
        "print(); print(*sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: cingulum" in done.stdout
    return done.stdout.splitlines()[-1].split()


def test_the_list_of_commands_does_not_even_load_pydantic():
    assert not {"pydantic", *HEAVY} & set(loaded(["--help"]))


@pytest.mark.parametrize("arguments", [[name, "--help"] for name in COMMANDS], ids=" ".join)
def test_help_loads_nothing_heavy(arguments):
    assert not set(HEAVY) & set(loaded(arguments))
