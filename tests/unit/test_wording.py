"""The file of what errors say: it is compared, the same on every machine, and of tests that exist."""

from __future__ import annotations

import ast
import os
import sys

import pytest
import wording
from wording import ROOT, fails_with

from trainer.errors import RunError


def test_words_that_changed_and_errors_of_another_kind_are_noticed(monkeypatch):
    monkeypatch.setattr(wording, "renewing", False)
    here = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    monkeypatch.setattr(wording, "KNOWN", {here: ["RUN_UNUSABLE: as it was."]})
    with fails_with(RunError):
        raise RunError("as it was.")
    wording.met.clear()
    with pytest.raises(AssertionError, match="renew-wording"), fails_with(RunError):
        raise RunError("as it is now.")
    with pytest.raises(ValueError, match="another"), fails_with(RunError):
        raise ValueError("another")
    wording.met.clear()


def test_what_differs_between_machines_and_runs_is_left_out(tmp_path):
    said = f"{tmp_path}/a.yaml, {tmp_path}: {sys.prefix}/bin, {ROOT}/x; pid 17, job 0123456789abcdef"
    assert wording.everywhere_the_same(said) == "TMP/a.yaml, TMP: VENV/bin, ROOT/x; pid N, job TOKEN"


def test_every_entry_is_of_a_test_that_is_there():
    known: dict[str, set[str]] = {}
    for test in wording.read():
        path, _, name = test.partition("::")
        if path not in known:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            known[path] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0].rpartition("::")[2] in known[path], test
