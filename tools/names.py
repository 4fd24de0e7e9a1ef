#!/usr/bin/env python3
"""Refuse names and phrases of the product that tell a reader nothing; `make check` runs it.

names.py [FILE ...]    all of the product, or these files

- A class name stands once in the product.
- A pronoun is no name for a value that lives longer than three lines.
- Docstrings have no phrases that a colleague would not say aloud.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("cingulum", "jobs", "trainer")
PRONOUNS = frozenset(("found", "one", "said", "known", "wanted", "told", "asked", "given", "mine"))
LINES = 3
PHRASES = ("so many", "such as it", "that there is")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> int:
    """Print what is refused, a line each; return 1 where there is anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    chosen = [file.resolve() for file in parser.parse_args().files]
    trees = {file: ast.parse(file.read_text()) for file in sources()}
    lines = [f"{', '.join(places)}: class {name} stands {len(places)} times" for name, places in twice(trees)]
    for file, tree in trees.items():
        if not chosen or file in chosen:
            lines += [f"{file.relative_to(ROOT)}:{problem}" for problem in problems(tree)]
    print("\n".join(lines) or "names: no problems")
    return 1 if lines else 0


def sources() -> list[Path]:
    """Return the product's Python files."""
    files = (file for name in PRODUCT for file in (ROOT / name).rglob("*.py"))
    return sorted(file for file in files if ROOT / "jobs" / "slurm" not in file.parents)


def twice(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of classes that stand more than once, and where."""
    places = defaultdict(list)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    yield from ((name, where) for name, where in sorted(places.items()) if len(where) > 1)


def problems(tree: ast.Module) -> Iterator[str]:
    """Yield line and words of each pronoun that lives too long, and of each phrase."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            for name, line, lines in pronouns(node):
                yield f"{line}: {name!r} lives for {lines} lines in {node.name}: name what it holds"
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            text = " ".join((ast.get_docstring(node) or "").lower().split())
            for phrase in PHRASES:
                if phrase in text:
                    yield f"{getattr(node, 'lineno', 1)}: {phrase!r} in a docstring: say it plainly"


def pronouns(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int, int]]:
    """Yield each pronoun that a function binds, the line of its first binding, and its life in lines."""
    bound: dict[str, int] = {}
    used: dict[str, int] = {}
    for node in inside(function):
        if isinstance(node, ast.arg) and node.arg in PRONOUNS:
            bound[node.arg] = min(node.lineno, bound.get(node.arg, node.lineno))
        elif isinstance(node, ast.Name) and node.id in PRONOUNS:
            used[node.id] = max(node.lineno, used.get(node.id, 0))
            if isinstance(node.ctx, ast.Store):
                bound[node.id] = min(node.lineno, bound.get(node.id, node.lineno))
    for name, line in bound.items():
        if used.get(name, line) - line > LINES:
            yield name, line, used[name] - line


def inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, those of comprehensions and of functions inside it left out."""
    nested = (*FUNCTIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, nested):
            yield from inside(node)


if __name__ == "__main__":
    sys.exit(main())
