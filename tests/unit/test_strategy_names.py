"""Outside its own folder no file of the product names a strategy: the registry and sections are asked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trainer.config.strategy import DEFAULT, NAMES, SECTIONS
from trainer.strategies import registry

ROOT = Path(__file__).parents[2]
# Where strategies and their sections are, and what only one of them plans by.
OWN = ("trainer/strategies/", "trainer/config/placed.py", "trainer/config/strategy.py")
OWN += ("trainer/planning/hypergraph/", "trainer/bench/convolutions.py")  # `filters` of a Keras layer
# What names one still, and why; this list only shrinks.
STILL = {
    "trainer/config/training.py": "a default",
    "trainer/planning/choice.py": "it is the room of auto",
    "trainer/auto.py": "it is the room of auto",
    "trainer/ranks/launch.py": "the environment of a ring",
}
# "data" is a word of every other line, and what is taken where nothing is named.
WORDS = {*NAMES} - {DEFAULT, "auto"}
CLASSES = {one.__name__ for one in SECTIONS} | {place.rpartition(":")[2] for place in registry._OURS.values()}
FILES = [path for folder in ("cingulum", "trainer", "jobs") for path in sorted((ROOT / folder).rglob("*.py"))]


def named(source: str) -> set[str]:
    """The strategies, and classes of theirs, that a file names outside its docstrings."""
    tree = ast.parse(source)
    found = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)} & CLASSES
    texts = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return found | ({one.value for one in texts} & WORDS)


def test_nothing_names_a_strategy_outside_its_folder() -> None:
    places = {str(path.relative_to(ROOT)): path for path in FILES}
    others = {place: path for place, path in places.items() if not place.startswith(OWN)}
    assert len(others) > 500
    assert {place for place, path in others.items() if named(path.read_text())} == set(STILL)


@pytest.mark.parametrize("line", ['if name == "spatial": pass', "isinstance(x, HybridConfig)", "Filters()"])
def test_a_name_is_noticed(line: str) -> None:
    assert named(line)
    assert not named('"""Such as spatial."""\nname = "data"')
