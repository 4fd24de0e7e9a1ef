"""Outside its own folder no file of the product knows Slurm: the registry and the contract are asked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where Slurm is, where it is found, what it tells its processes, and the testbed that emulates its clusters.
OWN = ("jobs/schedulers/slurm/", "jobs/schedulers/registry.py", "trainer/batch_environment.py")
OWN += ("jobs/testbed/", "cingulum/cli/testbed.py")
WORD = re.compile(r"slurm|sbatch|squeue|sacct\b|scontrol|\bsrun\b|sinfo|scancel", re.I)
FILES = [path for folder in ("cingulum", "trainer", "jobs") for path in sorted((ROOT / folder).rglob("*.py"))]


def knows(source: str) -> bool:
    """Whether a file names Slurm or a command of it outside its docstrings and comments."""
    tree = ast.parse(source)
    told = {id(body[0].value) for body in bodies(tree) if body and isinstance(body[0], ast.Expr)}
    return any(
        WORD.search(text)
        for one in ast.walk(tree)
        if id(one) not in told
        for text in (getattr(one, field, None) for field in ("id", "attr", "name", "module", "value"))
        if isinstance(text, str)
    )


def bodies(tree: ast.AST) -> list[list[ast.stmt]]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return [one.body for one in ast.walk(tree) if isinstance(one, kinds)]


def test_nothing_knows_slurm_outside_its_folder() -> None:
    places = {str(path.relative_to(ROOT)): path for path in FILES}
    others = {place: path for place, path in places.items() if not place.startswith(OWN)}
    assert len(others) > 500
    assert {place for place, path in others.items() if knows(path.read_text())} == set()


@pytest.mark.parametrize(
    "line", ['if name == "slurm": pass', "from jobs.schedulers.slurm import x", "Slurm()"]
)
def test_a_name_is_noticed(line: str) -> None:
    assert knows(line)
    assert not knows('"""Such as Slurm."""\nname = "mpirun"  # or srun')
