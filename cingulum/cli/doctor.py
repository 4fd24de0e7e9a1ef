"""`cingulum doctor`: check the installation and how to fix it."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Check the installation (versions, two ranks, Keras 3 pitfall, memory, GPU); show how to fix it.

    Exit code 0 when training can work, 1 when something must be fixed.

    \b
    Example:
      cingulum doctor
    """
    from cingulum.doctor import examine

    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            mark = {"ok": "ok  ", "note": "note", "bad": "BAD "}[finding.state]
            typer.echo(f"{mark}  {finding.name:<10}  {finding.said}")
            if finding.cure:
                typer.echo(f"      {'':<10}  -> {finding.cure}")
    bad = sum(finding.state == "bad" for finding in findings)
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        typer.echo("Training can work here." if bad == 0 else f"{bad} to fix before training can work.")
    return 1 if bad else 0
