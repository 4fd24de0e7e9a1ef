"""Findings of quality control on one image or one cohort, each with its cure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainer.errors import ImageError

Severity = Literal["bad", "warning", "note"]
Status = Literal["bad", "warning", "ok"]


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        code: short stable name for scripts, such as `truncated`; docs/reference/import.md lists them.
        severity: `bad` keeps an image out, `warning` asks to look at it, `note` is only said.
        message: what is wrong, with the numbers.
        cure: what to do about it; empty for notes.
    """

    code: str
    severity: Severity
    message: str
    cure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"code": self.code, "severity": self.severity, "message": self.message, "cure": self.cure}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Finding:
        """Rebuild it from JSON."""
        return cls(tree["code"], tree["severity"], tree["message"], tree["cure"])


def bad(code: str, message: str, cure: str) -> Finding:
    """Return a finding that keeps the image out."""
    return Finding(code, "bad", message, cure)


def warning(code: str, message: str, cure: str) -> Finding:
    """Return a finding that asks a person to look."""
    return Finding(code, "warning", message, cure)


def note(code: str, message: str) -> Finding:
    """Return a finding for information only."""
    return Finding(code, "note", message)


def about(finding: Finding, what: str) -> Finding:
    """Return the finding with the name of another file of the image in front of its message."""
    return replace(finding, message=f"{what}: {finding.message}")


def status(findings: Iterable[Finding]) -> Status:
    """Return the worst severity found, notes not counted."""
    severities = {finding.severity for finding in findings}
    return "bad" if "bad" in severities else "warning" if "warning" in severities else "ok"


class ImageFault(ImageError):
    """An image that cannot be used, with the code of the finding.

    `finding` has the message without the file's name, since tables show that in a column of its own.
    """

    def __init__(self, path: object, finding: Finding) -> None:
        super().__init__(f"{path}: {finding.message}", cure=finding.cure)
        self.path = path
        self.finding = finding

    def __reduce__(self) -> tuple[object, ...]:
        return (ImageFault, (self.path, self.finding))
