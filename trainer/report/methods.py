"""The methods of a run in full sentences, with every number that the run folder knows.

What only the authors know is a blank in square brackets; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer import config as configuration
from trainer.data.images.recipe import XFORMS
from trainer.data.splits import leaks
from trainer.errors import ConfigError
from trainer.report.cohort import SPLITS, CohortGroup
from trainer.report.facts import watt_hours
from trainer.report.methods_training import network, selection, training
from trainer.report.sentences import blank, count, get
from trainer.report.story import ReportMaterial, number
from trainer.run_folder.run_record import Processor


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of the methods: the id of its element, a heading, the text with [blanks]."""

    part: str
    heading: str
    text: str


def paragraphs(
    story: ReportMaterial, groups: Sequence[CohortGroup], explained: Sequence[str]
) -> list[Paragraph]:
    """Return the methods section of a paper about this run.

    Args:
        story: the run.
        groups: the cohort table.
        explained: names of the attribution methods that were applied.
    """
    settings = settings_of(story)
    texts = (
        ("data", "Data", _data(story, settings)),
        ("preprocessing", "Image preprocessing", _preprocessing(story)),
        ("partitions", "Partitions", _partitions(story, settings, groups)),
        ("network", "Network", network(story, settings)),
        ("training", "Training", training(story, settings)),
        ("selection", "Choice of the final model", selection(story, settings)),
        ("metrics", "Evaluation", _evaluation(story, explained)),
        ("software", "Software and hardware", _software(story)),
    )
    return [Paragraph(part, heading, " ".join(s for s in said if s)) for part, heading, said in texts]


def left_to_say(story: ReportMaterial) -> list[str]:
    """Return what CLAIM asks for and no run folder can know."""
    items = [
        "the goal of the study, its hypotheses, and whether it is prospective or retrospective",
        "where, when and by which criteria the participants were recruited; how many were excluded, and why",
        "the scanners and the acquisition protocol",
        "ethics approval, consent and de-identification",
        "how missing data were handled",
        "how the sample size was chosen",
        "testing on external data, if any",
        "limitations, intended use, and implications for practice",
        "where protocol, code, model and data can be had; registration; funding",
    ]
    if story.task.name == "segmentation":
        items.insert(3, "who drew the reference maps, with which tool, and how well raters agree")
    elif story.task.name == "classification":
        items.insert(3, "how, by whom and by which criteria the reference diagnosis was made")
    return items


def settings_of(story: ReportMaterial) -> dict[str, Any]:
    """Return the configuration with its defaults, or what there is of it where another version wrote it."""
    try:
        return configuration.parse(story.config_text).model_dump(mode="json")
    except ConfigError:
        return story.config


def _data(story: ReportMaterial, settings: dict[str, Any]) -> list[str]:
    shards = story.facts.shards
    source = story.shards.source if story.shards is not None else shards.source
    sentences = [f"Images came from {source}." if source else f"Images came from {blank('source')}."]
    if story.is_phantom:
        sentences.append("They are phantoms computed from a template brain, not scans of people.")
    total = shards.volumes
    if story.shards is not None:
        people = len({volume.subject for volume in story.shards.volumes})
        sentences.append(f"The data set holds {count(total, 'volume')} of {count(people, 'subject')}.")
    elif total:
        sentences.append(f"The data set holds {count(total, 'volume')}.")
    task = story.task
    if task.name == "classification":
        label = shards.label_name or task.target or "label"
        sentences.append(f"The task was to tell {' from '.join(task.classes) or blank('classes')} ({label}).")
    elif task.name == "regression":
        sentences.append(f"The task was to predict {task.target or 'age'}{_of(task.unit)} from the image.")
    else:
        sentences.append(
            f"The task was to label each voxel as {', '.join(task.classes) or blank('classes')}."
        )
    covariates = get(settings, "data.covariates")
    if covariates:
        sentences.append(f"The network was also told {' and '.join(map(str, covariates))}.")
    if not story.is_phantom:
        sentences.append(f"{blank('recruitment, eligibility, dates, ethics approval')}.")
    return sentences


def _of(unit: str) -> str:
    return f" (in{unit})" if unit else ""


def _preprocessing(story: ReportMaterial) -> list[str]:
    recipe, volume = story.facts.preprocessing, story.facts.volume
    size, spacing = number(recipe.get("size")), number(recipe.get("spacing"))
    if size is None:
        return [f"{blank('preprocessing')}."]
    grid = f"a cube of {size:.0f} voxels a side"
    grid += "" if spacing is None else f" of {spacing:g} mm"
    registered = recipe.get("prepare") == "linear"
    if registered:
        sentences = [
            "The bias field of each image was removed (N4; Tustison et al. 2010). Images were registered to "
            "the average brain ICBM 2009a (Fonov et al. 2009) by affine transforms that Cingulum found, and "
            f"resampled linearly to {grid} about it."
        ]
    else:
        sentences = [
            f"Images were turned to RAS+ axes, resampled and cut or padded to {grid} about the head."
        ]
    if registered and recipe.get("brain") == "mask":
        sentences.append("Everything outside the brain was masked.")
    if (xform := recipe.get("xform")) in XFORMS:
        sentences.append(f"Where a NIfTI header had both transforms, its {xform} was used.")
    foreground = "brain" if registered else "foreground"
    whole = "brain" if registered and recipe.get("brain") == "mask" else "image"
    low, high = number(recipe.get("low_percentile")), number(recipe.get("high_percentile"))
    if low is not None and high is not None:
        sentences.append(
            f"Intensities were clipped to the {low:g}th percentile of the {whole} and the {high:g}th "
            f"percentile of its {foreground}."
        )
    if recipe.get("normalisation") in ("zscore", "z-score"):
        sentences.append(
            f"The mean of the image's own {foreground} was subtracted, and the result divided by its "
            "standard deviation; no statistic was taken over subjects, so none could pass between partitions."
        )
    if len(volume) == 4:
        sentences.append(f"The network saw {count(volume[3], 'contrast')}.")
    return sentences


def _partitions(story: ReportMaterial, settings: dict[str, Any], groups: Sequence[CohortGroup]) -> list[str]:
    folds, seed = get(settings, "data.split.folds"), get(settings, "data.split.seed")
    sentences = [
        "Subjects, not images, were divided, so that all scans of a subject are in the same partition."
    ]
    by_site, fold = get(settings, "data.split.by") == "site", get(settings, "data.split.fold")
    if folds and by_site:
        sentences.append(
            f"The test partition is all subjects of one site, number {fold} of {folds} by name (from 0)."
        )
    elif folds:
        sentences.append(f"The test partition is fold {fold} of {folds} (numbered from 0).")
    strata = get(settings, "data.split.stratify")
    if strata:
        what = "The division of the others" if by_site else "The division"
        sentences.append(f"{what} was stratified by {', '.join(map(str, strata))} (seed {seed}).")
    elif seed is not None:
        by = "stratified by class" if story.task.name == "classification" else "at random"
        sentences.append(f"It was made {by} (seed {seed}).")
    whole = {group.split: group for group in groups if group.label == "all"}
    total = sum(group.scans for group in whole.values())
    parts = []
    for name in SPLITS:
        if name in whole:
            group = whole[name]
            people = "" if group.subjects is None else f" of {count(group.subjects, 'subject')}"
            parts.append(f"{count(group.scans, 'scan')}{people} ({group.scans / total:.0%}) for {_use(name)}")
    if parts:
        sentences.append(f"There were {'; '.join(parts)}.")
    if reserved := leaks.reservation(get(settings, "data.leaks")):
        sentences.append(reserved)
    return sentences


def _use(split: str) -> str:
    return {"train": "training", "validation": "validation", "test": "testing"}[split]


_JACKKNIFE = "whose errors leave one subject out at a time with all scans (jackknife; Efron and Stein 1981)"
# How intervals are made, by task.
INTERVALS = {
    "classification": f"Intervals of 95 % are by subject: of areas on the logit scale, {_JACKKNIFE}, within "
    "classes; of accuracy Wilson's, for the number of scans that are worth as much by the correlation within "
    "subjects.",
    "regression": f"Intervals of 95 % are by subject: Student's, on the logarithmic scale, {_JACKKNIFE}.",
    "segmentation": f"Intervals of 95 % are by subject: Student's, on the logit scale, {_JACKKNIFE}.",
}


def _scans(story: ReportMaterial) -> str:
    """Such as `, over 120 scans of 40 subjects,`; nothing where there are no predictions."""
    found = story.predictions.get(story.judged or "")
    if found is None:
        return ""
    return f", over {count(len(found.rows), 'scan')} of {count(found.people, 'subject')},"


def _evaluation(story: ReportMaterial, explained: Sequence[str]) -> list[str]:
    sentences = {
        "classification": [
            f"Reported are{_scans(story)} the area under the ROC curve (AUC), average precision, "
            "accuracy, balanced accuracy, sensitivity, specificity, the Brier score and the expected "
            f"calibration error in 10 bins. {INTERVALS[story.task.name]}"
        ],
        "regression": [
            f"Reported are{_scans(story)} the mean absolute error, the root mean squared error, R², "
            "Pearson's correlation, and limits of agreement (Bland and Altman 1986). "
            f"{INTERVALS[story.task.name]}"
        ],
        "segmentation": [
            f"Reported are{_scans(story)} Dice's coefficient and the 95th percentile of the "
            f"Hausdorff distance in mm, for each class. {INTERVALS[story.task.name]}"
        ],
    }[story.task.name]
    if story.baseline:
        features = ", ".join(map(str, story.baseline.get("features") or ["tissue volumes"]))
        sentences.append(
            f"For comparison, a logistic regression on {features} was "
            "fitted to the training and validation scans and judged on the same test scans."
        )
    if explained:
        sentences.append(f"Attributions were computed by {', '.join(explained)}.")
    return sentences


def _software(story: ReportMaterial) -> list[str]:
    facts = story.facts
    packages = [f"{name} {version}" for name, version in facts.packages.items()]
    if facts.python:
        packages.insert(0, f"Python {facts.python}")
    version = facts.cingulum or blank("version")
    sentences = [f"Cingulum {version} was used, with {', '.join(packages) or blank('versions')}."]
    cpu, hosts = facts.cpu, facts.hosts
    per_rank = [gpu for gpu in facts.gpus if gpu]
    devices = [name for gpu in per_rank for name in (gpu if isinstance(gpu, list) else [gpu])]
    place = f"Training ran on {count(len(hosts), 'rank')} on {count(len(set(hosts)), 'host')}"
    if hosts and isinstance(cpu, Processor):
        model, cores, gib = ("?" if part is None else part for part in (cpu.model, cpu.cores, cpu.memory_gib))
        place += f" ({model}, {cores} cores, {gib} GiB of memory)"
    if hosts:
        used = ", ".join(f"{devices.count(name)} × {name}" for name in dict.fromkeys(devices))
        sentences.append(f"{place}, on {used}." if devices else f"{place}, without a GPU.")
    speed, energy = (number(story.result.get(key)) for key in ("samples_per_second", "energy_wh"))
    if speed is not None:
        sentences.append(f"It processed {speed:.1f} volumes per second.")
    sentences.append(
        "Energy was not measured." if energy is None else f"It took {watt_hours(energy, story.result)}."
    )
    return sentences
