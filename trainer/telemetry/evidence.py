"""Read from a run folder what a verdict needs: its telemetry, and what it records about itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.strategy import BY_NAME, DEFAULT
from trainer.errors import CingulumError, ConfigError, RunError
from trainer.run_folder import record
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord
from trainer.telemetry import records
from trainer.telemetry.facts import RunFacts
from trainer.telemetry.records import RunTelemetry
from trainer.telemetry.verdict import Verdict, verdict


def diagnose(folder: Path, telemetry: RunTelemetry | None = None) -> Verdict:
    """Judge the run in this folder, finished or not.

    Args:
        folder: of the run.
        telemetry: as it was read before; None: it is read whole.

    Raises:
        RunError: there is no such run, a file of it is damaged, or no steps were timed.
    """
    run = RunFolder.open(folder)
    telemetry = records.read(folder) if telemetry is None else telemetry
    if telemetry.is_empty:
        raise RunError(
            f"{folder}: has no telemetry: where its time went is unknown.{_still_known(telemetry)}",
            cure="It was trained with telemetry.enabled=false or by an older cingulum. Train a few epochs "
            "as a new run: cingulum train CONFIG.yaml name=... telemetry.enabled=true",
        )
    judged = verdict(telemetry, read_facts(run))
    if judged is None:
        raise RunError(
            f"{folder}: no steps are recorded after the first one, in which the network is traced.",
            cure="Train more steps: cingulum train CONFIG.yaml name=... train.epochs=N"
            if run.result.is_file()
            else "Run this command again after a few more steps.",
        )
    return judged


def found(folder: Path) -> Verdict | None:
    """Return the same verdict; None where there is none, whatever the reason."""
    try:
        return diagnose(folder)
    except CingulumError:
        return None


def read_facts(run: RunFolder) -> RunFacts:
    """Return the facts of run.json, plan.json and config.yaml; what they lack keeps its default."""
    plan, config = _object(run.plan), _config(run)
    ran, _ = RunRecord.usable(_object(run.run))
    section = config.get("train", {}).get("strategy", {})
    strategy = section.get("name") or plan.get("strategy") or DEFAULT
    known = BY_NAME.get(strategy)
    server = section if known is not None and known.has_servers else {}
    sent = plan.get("bytes_per_update", _most(plan.get("sent_per_update")))
    parameters, reductions, norms = (plan.get(key) for key in ("parameters", "reductions", "batch_norms"))
    return RunFacts(
        strategy=strategy,
        asynchronous=server.get("mode") == "async",
        servers=server.get("count", 0),
        colocated=server.get("placement") == "colocated",
        hosts=tuple(ran.hosts),
        bytes_sent=sent if isinstance(sent, int) else None,
        messages_sent=_most(plan.get("messages_per_update")),
        reductions=reductions if isinstance(reductions, int) else None,
        batch_norms=norms if isinstance(norms, int) else None,
        parameters=parameters if isinstance(parameters, int) else None,
        flops=tuple(_numbers(plan.get("flops"))),
        config=config,
    )


def _most(values: Any) -> int | None:
    return max(map(round, _numbers(values)), default=None)


def _numbers(values: Any) -> list[float]:
    """The values of a list; none where one is no number."""
    are_numbers = isinstance(values, list) and all(isinstance(one, int | float) for one in values)
    return values if are_numbers else []


def _object(path: Path) -> Mapping[str, Any]:
    try:
        value = record.read_json(path)
    except RunError:
        return {}
    return value if isinstance(value, dict) else {}


def _config(run: RunFolder) -> Mapping[str, Any]:
    try:
        return run.read_config().model_dump(mode="json")
    except ConfigError:  # of another version
        return {}


def _still_known(telemetry: RunTelemetry) -> str:
    """How long rank 0 waited for its input, which metrics.jsonl records without telemetry."""
    waited = whole = 0.0
    for row in telemetry.rows:
        mine, seconds = row.get("input_wait_s"), row.get("seconds")
        if isinstance(mine, (int, float)) and isinstance(seconds, (int, float)):
            waited, whole = waited + mine, whole + seconds
    return f" Rank 0 waited for input during {waited / whole:.1%} of its epochs." if whole > 0 else ""
