"""The page of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.byte_sizes import as_text
from trainer.errors import ShardError
from trainer.planning import choice
from trainer.planning.choice import Candidate
from trainer.report import (
    cases,
    charts_training,
    cohort,
    facts,
    methods,
    pipeline,
    placement,
    reasons,
    time_spent,
)
from trainer.report.attributions import Attribution
from trainer.report.attributions import read as read_attributions
from trainer.report.cases import Case
from trainer.report.figure import Figure, table
from trainer.report.judge_classes import judge as judge_classes
from trainer.report.judge_maps import judge as judge_maps
from trainer.report.judge_values import judge as judge_values
from trainer.report.judgement import Judgement
from trainer.report.methods_training import captions
from trainer.report.page import ReportPage, template
from trainer.report.placement import PlacementSection
from trainer.report.predictions import ClassPredictions, Found, Overlaps
from trainer.report.story import ReportMaterial, number, read_json
from trainer.report.subgroups import Subgroups
from trainer.report.subgroups import of as subgroups_of
from trainer.run_folder import record as run_record
from trainer.telemetry import evidence
from trainer.telemetry.durations import duration


def render(story: ReportMaterial) -> ReportPage:
    """Return the report of a run."""
    predictions = story.predictions[story.judged] if story.judged else None
    section = story.section
    judgement: Judgement | None = section(
        "The performance", lambda: judge(story, predictions) if predictions is not None else None, None
    )
    training: tuple[Figure, ...] = section("The curves of the training", lambda: _training_figures(story), ())
    spent = section("Where the time went", lambda: time_spent.of(story), None)
    piped = section("The pipeline", lambda: pipeline.of(story), None)
    nothing: tuple[PlacementSection | None, list[tuple[Any, ...]]] = (None, [])
    divided, divided_cells = section("Who holds what", lambda: divided_network(story), nothing)
    worst: list[Case] = section(
        "Pictures of the worst cases", lambda: _cases(story, predictions, worst=True), []
    )
    typical: list[Case] = section("Pictures of examples", lambda: _cases(story, predictions, worst=False), [])
    groups: list[cohort.CohortGroup] = section("The cohort", lambda: cohort.groups(story), [])
    apart = section("Whether subjects are apart", lambda: cohort.subjects_apart(story), None)
    subgroups: Subgroups | None = section(
        "The subgroups", lambda: subgroups_of(story, predictions) if predictions is not None else None, None
    )
    attributions: list[Attribution] = section("The attributions", lambda: read_attributions(story), [])
    paragraphs: list[methods.Paragraph] = section(
        "The methods", lambda: methods.paragraphs(story, groups, [a.name for a in attributions]), []
    )
    stated: list[Item] = section(
        "The checklist",
        lambda: checklist(_stated(story, paragraphs, judgement, worst, groups, subgroups, attributions)),
        [],
    )
    record: list[facts.Fact] = section("The reproducibility record", lambda: facts.record(story), [])
    run_facts: list[facts.Fact] = section("The run in figures", lambda: facts.run_facts(story), [])
    places: list[dict[str, str]] = section("What ran where", lambda: facts.places(story), [])
    packages: list[facts.Fact] = section("Software and machine", lambda: facts.packages(story), [])
    html = template("run.html.j2").render(
        story=story,
        split=story.judged,
        held_out="held-out" if story.judged == "test" else "validation",
        predictions=predictions,
        judgement=judgement,
        state=_state(story),
        training=training,
        diagnosis=section("What limits the speed", lambda: evidence.found(story.folder), None),
        spent=spent,
        rank_header=time_spent.RANK_HEADER,
        host_header=time_spent.HOST_HEADER,
        prediction_header=time_spent.PREDICTION_HEADER,
        pipeline=piped,
        chosen=section("The choice of the strategy", lambda: of(story), None),
        chosen_header=HEADER,
        placement=divided,
        placement_header=placement.RANK_HEADER,
        reason_header=reasons.REASON_HEADER,
        rule_header=reasons.RULE_HEADER,
        worst=worst,
        typical=typical,
        contours=isinstance(predictions, Overlaps),
        cohort=groups,
        apart=apart,
        subgroups=subgroups,
        attributions=attributions,
        methods=paragraphs,
        left_to_say=methods.left_to_say(story),
        checklist=stated,
        record=record,
        run_facts=run_facts,
        places=places,
        packages=packages,
    )
    tables = {}
    if groups:
        tables["cohort"] = cohort.as_table(groups).csv()
    if subgroups is not None:
        tables["subgroups"] = subgroups.table.csv()
    if divided is not None:
        tables["placement"] = table(placement.TABLE_HEADER, divided_cells).csv()
    judged = (*judgement.figures, *judgement.hidden) if judgement is not None else ()
    figures = (*judged, *training, *(spent.figures if spent is not None else ()))
    if piped is not None:
        figures += (piped,)
    return ReportPage(html, figures, tables, _pictures(worst, typical), tuple(story.failures))


def judge(story: ReportMaterial, predictions: Found) -> Judgement:
    """Return how good these predictions are, by the run's task."""
    if isinstance(predictions, ClassPredictions):
        return judge_classes(story, predictions)
    if isinstance(predictions, Overlaps):
        return judge_maps(story, predictions)
    return judge_values(story, predictions)


def divided_network(story: ReportMaterial) -> tuple[PlacementSection | None, list[tuple[Any, ...]]]:
    """Return the section of a network that is divided, and cells of its table; what is damaged is a note."""
    plan = read_json(story, "plan.json")
    try:
        divided = placement.of(plan, story.facts.hosts)
        return divided, [] if divided is None else list(placement.cells(plan))
    except placement.DAMAGED as error:
        story.notes.append(f"plan.json is damaged, and who holds what is left out ({error}).")
        return None, []


def _state(story: ReportMaterial) -> str | None:
    """What is unusual about the run's state, for the top of the page."""
    if story.result:
        return run_record.other_epoch(story.result)
    if story.epochs:
        return f"This run is not finished: it has done {len(story.epochs)} epoch(s) so far."
    return "This run has not finished its first epoch."


def _training_figures(story: ReportMaterial) -> tuple[Figure, ...]:
    best = story.result.get("best")
    epoch = number(best.get("epoch")) if isinstance(best, dict) else None
    settings = methods.settings_of(story)
    curves = charts_training.learning_curves(
        story.epochs, None if epoch is None else int(epoch), story.task.unit, captions(story, settings)
    )
    others = (charts_training.throughput(story.epochs), charts_training.learning_rate(story.epochs))
    return (*curves, *(figure for figure in others if figure is not None))


def _cases(story: ReportMaterial, predictions: Found | None, *, worst: bool) -> list[Case]:
    if predictions is None:
        return []
    chosen = cases.worst(predictions) if worst else cases.typical(predictions)
    try:
        return cases.pictures(story, predictions, chosen)
    except (ShardError, IndexError) as error:
        note = f"No example slices: {error}"
        if note not in story.notes:
            story.notes.append(note)
        return []


def _pictures(worst: list[Case], typical: list[Case]) -> dict[str, bytes]:
    """File names do not hold the subject's name, which may be anything."""
    kinds = (("worst", worst), ("typical", typical))
    return {f"{kind}-{k + 1}": case.picture for kind, shown in kinds for k, case in enumerate(shown)}


def _stated(
    story: ReportMaterial,
    told: list[methods.Paragraph],
    judgement: Judgement | None,
    worst: list[Case],
    groups: list[cohort.CohortGroup],
    subgroups: Subgroups | None,
    attributions: list[Attribution],
) -> dict[str, tuple[str, str]]:
    """Which parts of the page state something, for the checklist: part -> (id, heading)."""
    stated: dict[str, tuple[str, str]] = {
        p.part: (f"methods-{p.part}", f"Methods: {p.heading}") for p in told if not p.text.startswith("[")
    }
    there: dict[str, tuple[Any, tuple[str, str]]] = {
        "performance": (judgement, ("performance", "Performance")),
        "failures": (worst, ("failures", "Worst cases")),
        "cohort": (groups and groups[0].subjects is not None, ("cohort", "Who is in which split")),
        "subgroups": (subgroups, ("subgroups", "Subgroups")),
        "attributions": (attributions, ("attributions", "Attributions")),
        "record": (story.facts.model_fields_set - {"version"}, ("record", "Reproducibility record")),
    }
    return stated | {part: where for part, (value, where) in there.items() if value}


# The items of CLAIM, the Checklist for Artificial Intelligence in Medical Imaging, and where each is stated.
#
# Items and numbers are those of the 2024 update (Tejani et al., Radiology: Artificial Intelligence 2024;6(4):
# e240300) of the checklist of Mongan, Moy and Kahn (2020;2(2):e200029), in our words.


# Number, item, and the part of this report that may state it ("" = only the authors can).
_ITEMS: tuple[tuple[int, str, str], ...] = (
    (1, "Title says that it is an AI study, and of which kind", ""),
    (2, "Abstract: structured summary", ""),
    (3, "Background, intended use and clinical role", ""),
    (4, "Aims, objectives, hypotheses", ""),
    (5, "Prospective or retrospective", ""),
    (6, "Goal of the study", ""),
    (7, "Data sources", "data"),
    (8, "Inclusion and exclusion criteria", ""),
    (9, "Preprocessing of the images", "preprocessing"),
    (10, "Selection of subsets of the data", ""),
    (11, "De-identification", ""),
    (12, "Missing data", ""),
    (13, "Acquisition protocol", ""),
    (14, "How the reference standard was obtained", ""),
    (15, "Why this reference standard", ""),
    (16, "Source of the annotations; annotators", ""),
    (17, "Annotation of the test set", ""),
    (18, "Inter- and intra-rater variability", ""),
    (19, "How data were assigned to partitions", "partitions"),
    (20, "Level at which partitions are disjoint", "partitions"),
    (21, "Intended sample size", ""),
    (22, "Description of the model", "network"),
    (23, "Software, libraries, versions", "software"),
    (24, "Initial values of the parameters", "network"),
    (25, "Training: augmentation, hyperparameters, number of models", "training"),
    (26, "How the final model was chosen", "selection"),
    (27, "Ensembles", "ensembles"),
    (28, "Metrics of performance", "metrics"),
    (29, "Uncertainty and significance", "metrics"),
    (30, "Robustness or sensitivity analysis", "subgroups"),
    (31, "Explainability", "attributions"),
    (32, "Evaluation on internal data", "performance"),
    (33, "Testing on external data", ""),
    (34, "Registration of a clinical trial", ""),
    (35, "Numbers included and excluded", ""),
    (36, "Demographic and clinical characteristics of each partition", "cohort"),
    (37, "Performance and its uncertainty", "performance"),
    (38, "Diagnostic performance and its precision", "performance"),
    (39, "Analysis of failures", "failures"),
    (40, "Limitations of the study", ""),
    (41, "Implications for practice", ""),
    (42, "Protocol or further technical details", "record"),
    (43, "Availability of software, model and data", ""),
    (44, "Funding and its role", ""),
)


@dataclass(frozen=True)
class Item:
    """One item of the checklist.

    Attributes:
        number: in the 2024 update.
        words: what it asks for.
        place: id of the element of the page that states it, or "" where the authors must.
        where: what that part of the page is called.
    """

    number: int
    words: str
    place: str
    where: str


def checklist(stated: Mapping[str, tuple[str, str]]) -> list[Item]:
    """Return all items.

    Args:
        stated: for each part of the report that is there, the id of its element and its heading.
    """
    return [Item(number, words, *stated.get(part, ("", ""))) for number, words, part in _ITEMS]


# Which strategy `train.strategy=auto` chose, and what it was compared with: from plan.json.


HEADER = ("Strategy", "", "Predicted update", "Measured", "Memory")


@dataclass(frozen=True)
class StrategyChoice:
    """What the section shows.

    Attributes:
        name: of the strategy that trained last.
        changes: of the mind, in words.
        rows: cells of `HEADER`, the fastest first, what could not be trained last.
    """

    name: str
    changes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def of(story: ReportMaterial) -> StrategyChoice | None:
    """Return the section of a run; None where the configuration named its strategy. Damage is a note."""
    plan = read_json(story, "plan.json")
    if "auto" not in plan:
        return None
    decision = choice.recorded(plan)
    if decision is None:
        story.notes.append("plan.json is damaged, and why the strategy was chosen is left out.")
        return None
    labels = [candidate.label for candidate in decision.candidates]
    ranked = sorted(decision.candidates, key=lambda candidate: candidate.expected_s)
    return StrategyChoice(
        name=decision.now.label,
        changes=tuple(
            f"After update {step} {labels[after]} went on in place of {labels[before]}."
            for step, before, after in decision.changes
        ),
        rows=tuple(_row(candidate, is_chosen=candidate == decision.now) for candidate in ranked),
    )


def _row(candidate: Candidate, *, is_chosen: bool) -> tuple[str, ...]:
    remarks = ["trains"] if is_chosen else []
    if candidate.refused is not None:
        remarks.append(candidate.refused)
    elif not candidate.fits:
        remarks.append("does not fit into memory")
    elif candidate.idle:
        remarks.append(f"{candidate.idle} rank(s) have nothing to do")
    return (
        candidate.label,
        "; ".join(remarks),
        "-" if candidate.step_s is None else duration(candidate.step_s),
        "-" if candidate.measured_s is None else duration(candidate.measured_s),
        "-" if candidate.memory_bytes is None else as_text(candidate.memory_bytes),
    )
