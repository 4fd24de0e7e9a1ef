"""Which strategy `train.strategy=auto` chose, and what it was compared with: from plan.json."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.byte_sizes import as_text
from trainer.planning import choice
from trainer.planning.choice import Candidate
from trainer.report.story import Story, read_json
from trainer.telemetry.durations import duration

HEADER = ("Strategy", "", "Predicted update", "Measured", "Memory")


@dataclass(frozen=True)
class Chosen:
    """What the section shows.

    Attributes:
        name: of the strategy that trained last.
        changes: of the mind, in words.
        rows: cells of `HEADER`, the fastest first, what could not be trained last.
    """

    name: str
    changes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def of(story: Story) -> Chosen | None:
    """Return the section of a run; None where the configuration named its strategy. Damage is a note."""
    plan = read_json(story, "plan.json")
    if "auto" not in plan:
        return None
    found = choice.recorded(plan)
    if found is None:
        story.notes.append("plan.json is damaged, and why the strategy was chosen is left out.")
        return None
    labels = [one.label for one in found.candidates]
    ranked = sorted(found.candidates, key=lambda one: one.expected_s)
    return Chosen(
        name=found.now.label,
        changes=tuple(
            f"After update {step} {labels[after]} went on in place of {labels[before]}."
            for step, before, after in found.changes
        ),
        rows=tuple(_row(one, is_chosen=one == found.now) for one in ranked),
    )


def _row(one: Candidate, *, is_chosen: bool) -> tuple[str, ...]:
    said = ["trains"] if is_chosen else []
    if one.refused is not None:
        said.append(one.refused)
    elif not one.fits:
        said.append("does not fit into memory")
    elif one.idle:
        said.append(f"{one.idle} rank(s) have nothing to do")
    return (
        one.label,
        "; ".join(said),
        "-" if one.step_s is None else duration(one.step_s),
        "-" if one.measured_s is None else duration(one.measured_s),
        "-" if one.memory_bytes is None else as_text(one.memory_bytes),
    )
