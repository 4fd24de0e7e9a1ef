"""`cingulum diagnose`: the bottleneck of a run, and settings to try."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trainer.telemetry.verdict import Verdict


def diagnose(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/demo, or a cross-validation's.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Show where a run's time goes: computing, the network, a server, the input, or a slow rank.

    With the figures that say so, what fixing it would gain at most, and the settings to try. Reads
    RUN/telemetry and changes nothing; the run may still go on. Of a cross-validation's folder, each of its
    runs is judged. docs/explanation/where-time-goes.md has the rules.

    \b
    Example:
      cingulum diagnose runs/demo
    """
    import json

    from trainer.run_folder import crossval_folder
    from trainer.telemetry import evidence

    if crossval_folder.is_crossval(run):
        _diagnose_folds(run, as_json=as_json)
        return
    found = evidence.diagnose(run)
    typer.echo(json.dumps({"run": str(run), **found.json()}, indent=1) if as_json else told(run, found))


def _diagnose_folds(folder: Path, *, as_json: bool) -> None:
    """Return the verdict of each run of a cross-validation, or why there is none.

    Raises:
        RunError: no run has telemetry.
    """
    import json

    from trainer.errors import RunError
    from trainer.run_folder import crossval_folder
    from trainer.telemetry import evidence

    judged, without = {}, {}
    for run in crossval_folder.runs(folder):
        try:
            judged[run] = evidence.diagnose(run)
        except RunError as error:
            without[run] = error
    if not judged:
        first = next(iter(without.values()))
        raise RunError(f"{folder}: none of its runs can be judged: {first.message}", cure=first.cure)
    if as_json:
        found = [{"run": str(run), **verdict.json()} for run, verdict in judged.items()]
        why = [{"run": str(run), "why": error.message} for run, error in without.items()]
        typer.echo(json.dumps({"crossval": str(folder), "runs": found, "without": why}, indent=1))
        return
    parts = [told(run, verdict) for run, verdict in judged.items()]
    typer.echo("\n\n".join([*parts, *(error.message for error in without.values())]))


def told(run: Path, found: Verdict) -> str:
    """Format the verdict for a terminal."""
    from trainer.telemetry.findings import times

    lines = [f"{run}: {found.summary}", "evidence:", *(f"  {sentence}" for sentence in found.evidence)]
    lines.append("gained at most, if only this were fixed (these overlap):")
    for name, gain in sorted(found.gains.items(), key=lambda item: -item[1]):
        lines.append(f"  {name:<10}{gain:>5.0%} of a step, {times(gain)} as fast")
    if found.settings:
        lines.append("to try, in a new run (name=...):")
    for setting in found.settings:
        lines.append(f"  {setting.words}  (now {setting.now_words}): {setting.why}")
    if not found.settings:
        lines.append(
            "to try: more ranks, or a quicker device; no setting would gain much"
            if found.is_well
            else "to try: no setting of the configuration fixes this"
        )
    return "\n".join(lines)
