#!/usr/bin/env python3
"""Pick tests by what they are about, and run them; `tests/subjects.yaml` says what is about what.

pick_tests.py deep [SUBJECT]    what `make test` leaves out, of a subject or all of it
pick_tests.py changed [REV]     all that tests what was changed since REV (default: since origin/main)

Modules that import what was changed count as changed, too. --list shows the files only.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grimp
import second_try
import yaml

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
FOLDERS = ("unit", "whole", "parallel", "docs", "cluster")
PRODUCT = ("cingulum", "jobs", "trainer")
NOTHING_TO_RUN = 5  # as pytest says it
DEEP = re.compile(r"mark\.(deep|drawn)\b")


@dataclass(frozen=True)
class Subject:
    """What some tests are about.

    Attributes:
        about: modules, with all below them, and patterns of files.
        tests: names of files of tests without `test_` and `.py`, as patterns; or of folders.
    """

    about: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> set[Path]:
        """Return its files of tests."""
        found = {path for name in self.tests if name in FOLDERS for path in (TESTS / name).glob("test_*.py")}
        slow = [path for folder in FOLDERS[1:] for path in (TESTS / folder).glob("test_*.py")]
        return found | {
            path for path in slow if any(fnmatch.fnmatch(path.stem[5:], name) for name in self.tests)
        }

    def is_of(self, modules: Iterable[str], files: Iterable[str]) -> bool:
        """Return whether it is about one of these."""
        return any(
            module == one or module.startswith(f"{one}.") for module in modules for one in self.about
        ) or any(fnmatch.fnmatch(file, one) for file in files for one in self.about)


def subjects() -> dict[str, Subject]:
    """Return all subjects by name."""
    tree = yaml.safe_load((TESTS / "subjects.yaml").read_text())
    return {name: Subject(tuple(one["about"]), tuple(one["tests"])) for name, one in tree.items()}


def deep(name: str) -> set[Path]:
    """Return the files of a subject, or of "all", that may have tests which `make test` leaves out.

    Raises:
        ValueError: there is no such subject.
    """
    known = subjects()
    if name != "all" and name not in known:
        raise ValueError(f"ABOUT={name}: known are all, {', '.join(known)}")
    every = {path for folder in FOLDERS for path in (TESTS / folder).glob("test_*.py")}
    if name != "all":
        modules = [one for one in _graph().modules if known[name].is_of([one], [])]
        every = known[name].files() | {path for path in every if _is_unit(path) and _imports(path, modules)}
    return {path for path in every if not _is_unit(path) or DEEP.search(path.read_text())}


def changed(files: Sequence[str]) -> tuple[list[str], set[Path]]:
    """Return names of the subjects that changed files touch, and the files of tests to run.

    Args:
        files: that were changed, from the root of the checkout.
    """
    graph = _graph()
    modules = {_module(file) for file in files} & graph.modules
    modules |= {one for module in modules for one in graph.find_modules_that_directly_import(module)}
    picked = [name for name, one in subjects().items() if one.is_of(modules, files)]
    every = {path for folder in FOLDERS for path in (TESTS / folder).glob("test_*.py")}
    found = {path for name in picked for path in subjects()[name].files()}
    found |= {path for path in every if _is_unit(path) and _imports(path, modules)}
    return picked, found | {path for path in every if _names(path, _helpers(files))}


@functools.cache
def _graph() -> grimp.ImportGraph:
    sys.path.insert(0, str(ROOT))
    return grimp.build_graph(*PRODUCT, cache_dir=None)


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_unit(path: Path) -> bool:
    return path.parent.name == "unit"


def _imports(path: Path, modules: Iterable[str]) -> bool:
    """Whether a file of tests imports one of the modules itself."""
    return not _imported(path).isdisjoint(modules)


@functools.cache
def _imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return frozenset(names)


@functools.cache
def _words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text()))


def _helpers(files: Iterable[str]) -> set[str]:
    """Names of changed files of tests, and of helpers and programs that name one that was changed."""
    found = {Path(file).stem for file in files if file.startswith("tests/") and file.endswith(".py")}
    others = [*TESTS.glob("helpers/*.py"), *TESTS.glob("*/programs/*.py")]
    while more := {path.stem for path in others if path.stem not in found and _names(path, found)}:
        found |= more
    return found


def _names(path: Path, stems: set[str]) -> bool:
    if path.stem in stems:
        return True
    helpers = {
        stem for stem in stems if stem not in ("conftest", "__init__") and not stem.startswith("test_")
    }
    return not helpers.isdisjoint(_words(path))


def since(revision: str) -> list[str]:
    """Return the files that differ from a revision, those that git does not know among them.

    Raises:
        ValueError: git does not know the revision.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr.strip() or f"git {words[0]} failed")
        return done.stdout.splitlines()

    base = git("merge-base", "HEAD", revision)[0]
    return sorted({*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")})


def run(files: Iterable[Path], marks: Sequence[str]) -> int:
    """Run files of tests, folder by folder; return the worst exit code. None to run is no failure.

    Tests on emulated hosts mostly wait, and run beside the others.
    """
    commands = {}
    for folder in FOLDERS:
        paths = sorted(str(path.relative_to(ROOT)) for path in files if path.parent.name == folder)
        # Else files of one long test would be the last.
        spread = ["worksteal"] if folder == "docs" else ["loadfile", "--no-loadscope-reorder"]
        workers = "4" if folder == "cluster" else "2"
        words = [sys.executable, "tools/second_try.py", "run", *paths, "--", "-n", workers, "--dist", *spread]
        if paths:
            commands[folder] = [*words, *marks]
    beside = commands.pop("cluster", [])
    codes = second_try.side_by_side(
        list(commands.values()), beside, cwd=ROOT, env={**os.environ, "CINGULUM_DEEP": "1"}
    )
    return max((abs(code) for code in codes if code != NOTHING_TO_RUN), default=0)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("deep", "changed"))
    parser.add_argument("of", nargs="?", help="a subject, or a revision of git")
    parser.add_argument("--list", action="store_true", help="show the files, run nothing")
    asked = parser.parse_intermixed_args()
    try:
        if asked.action == "deep":
            found, marks = deep(asked.of or "all"), ["-m", "deep or drawn"]
        else:
            files = since(asked.of or "origin/main")
            picked, found = changed(files)
            marks = []
            print(f"{len(files)} files changed; subjects: {', '.join(picked) or 'none'}", file=sys.stderr)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if asked.list:
        print("\n".join(sorted(str(path.relative_to(ROOT)) for path in found)))
        return 0
    return run(found, marks)


if __name__ == "__main__":
    sys.exit(main())
