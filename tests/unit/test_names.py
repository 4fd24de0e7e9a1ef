"""What tools/names.py refuses: classes of one name, pronouns that live long, phrases nobody says aloud."""

from __future__ import annotations

import ast
from textwrap import dedent

import names
import pytest


def problems(source: str) -> list[str]:
    return list(names.problems(ast.parse(dedent(source))))


def test_a_pronoun_that_lives_longer_than_three_lines_is_refused():
    long = """
        def read():
            found = 1
            a = 2
            b = 3
            c = 4
            return found
    """
    assert [problem.split(":")[0] for problem in problems(long)] == ["3"]
    assert problems(long.replace("            c = 4\n", "")) == []
    assert problems(long.replace("found", "volume")) == []


def test_a_parameter_counts_and_a_comprehension_of_its_own_does_not():
    assert problems("def f(given):\n    a = 1\n    b = 1\n    c = 1\n    return given")
    assert not problems("def f(rows):\n    a = 1\n    b = 1\n    c = 1\n    return [one for one in rows]")


@pytest.mark.parametrize("phrase", names.PHRASES)
def test_a_phrase_in_a_docstring_is_refused(phrase):
    assert problems(f'def f():\n    """Return {phrase} of them."""')
    assert not problems('def f():\n    """Return three of them."""')


def test_a_class_name_stands_once():
    file, other = names.ROOT / "a.py", names.ROOT / "b.py"
    trees = {file: ast.parse("class Row: ..."), other: ast.parse("class Row: ...\nclass Column: ...")}
    assert dict(names.twice(trees)) == {"Row": ["a.py:1", "b.py:1"]}
