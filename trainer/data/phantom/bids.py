"""The cohort's folder: its files and their texts (BIDS 1.10)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.phantom import files
from trainer.data.phantom.disease import GroundTruth
from trainer.data.phantom.image import CONTRASTS, TISSUES, Phantom
from trainer.data.phantom.people import Person
from trainer.data.phantom.template import Template
from trainer.errors import typed

RECIPE = 1
"""Increased whenever the same arguments would give other images, so that two recipes never share a folder."""

_NAME = "cingulum phantom"
_MM_STEP = 0.01  # in which displacements are stored

README = """\
Phantom cohort: these are not people
====================================

Every image in this folder was made by a program, `cingulum phantom`, from one average brain. Ages, sexes,
diagnoses and sites were drawn at random. Nothing here says anything about any person or about Alzheimer's
disease, and a model trained on it must never be used on a patient. It is for trying out software.

What is here
  participants.tsv            age (years), sex, diagnosis (AD, NC, sMCI, pMCI), site
  sub-*/anat/*_T1w.nii.gz     T1-weighted image, RAS, skull-stripped, arbitrary units
  sub-*/anat/*_T2w.nii.gz     T2-weighted image on the same grid, where the command says --contrasts T1w,T2w
  derivatives/tissue/         share of grey matter, white matter and CSF in every voxel, before noise
  derivatives/disease/        region.nii.gz: where the disease moves tissue, in the average brain's space
                              truth.tsv: stage of the disease, and mm of tissue lost in each region
                              sub-*/anat/*_desc-disease_displacement.nii.gz: mm by which the disease has
                              moved what is seen in a voxel of that subject's own image; of NC, by which
                              AD (stage 1) would have moved it

How it was made: {command}
The same command makes the same files, byte for byte. The recipe: docs/explanation/phantom.md of Cingulum.

The average brain is ICBM 152 2009a nonlinear, copyright (C) 1993-2009 Louis Collins, McConnell Brain Imaging
Centre, Montreal Neurological Institute, McGill University (Fonov et al., NeuroImage 47, 2009, S102), as
shipped by nilearn.
"""

_COLUMNS = {
    "age": {"Description": "age, drawn from the same distribution in every group", "Units": "years"},
    "sex": {"Description": "sex", "Levels": {"F": "female", "M": "male"}},
    "diagnosis": {
        "Description": "group; made up, as everything here",
        "Levels": {
            "AD": "Alzheimer's disease",
            "NC": "normal cognition",
            "sMCI": "mild cognitive impairment that stays stable",
            "pMCI": "mild cognitive impairment that progresses to Alzheimer's disease",
        },
    },
    "site": {
        "Description": "made-up scanner: brightness, contrast and noise differ; independent of the group"
    },
}


def command(parameters: dict[str, Any]) -> str:
    """Return the command line that makes a cohort with these parameters."""
    lists = {key: ",".join(parameters[key]) for key in ("groups", "contrasts")}
    options = {**parameters, **lists}
    del options["recipe"]
    words = [f"--{name} {typed(value)}" for name, value in options.items()]
    return " ".join(["cingulum phantom OUT", *words])


def displacement_file(name: str) -> str:
    """Return the path within the cohort of the displacement map of subject `name`, such as `sub-0001`."""
    return f"derivatives/disease/{name}/anat/{name}_desc-disease_displacement.nii.gz"


def subject_files(person: Person, contrasts: Sequence[str] = ("T1w",)) -> dict[str, str]:
    """Return the paths of a subject's images: each contrast, `GM`, `WM`, `CSF`, `displacement`."""
    maps = {
        t: f"derivatives/tissue/{person.name}/anat/{person.name}_label-{t}_probseg.nii.gz" for t in TISSUES
    }
    images = {contrast: f"{person.name}/anat/{person.name}_{contrast}.nii.gz" for contrast in contrasts}
    return {**images, **maps, "displacement": displacement_file(person.name)}


def write_subject(out: Path, person: Person, phantom: Phantom, affine: np.ndarray) -> None:
    """Write a subject's images, the T1 last: where it exists, the others do too."""
    paths = subject_files(person, CONTRASTS)
    for tissue, values in zip(TISSUES, phantom.tissue, strict=True):
        content = files.nifti(values, affine, slope=1 / 255, description=f"phantom, share of {tissue}")
        files.write(out / paths[tissue], content)
    moved = np.round(phantom.moved / _MM_STEP).astype(np.int16)
    content = files.nifti(moved, affine, slope=_MM_STEP, description="phantom, mm moved by disease")
    files.write(out / paths["displacement"], content)
    if phantom.t2 is not None:
        files.write(out / paths["T2w"], files.nifti(phantom.t2, affine, description="phantom, not a person"))
    files.write(out / paths["T1w"], files.nifti(phantom.t1, affine, description="phantom, not a person"))


def describe(out: Path, parameters: dict[str, Any]) -> None:
    """Write what is known before any image is made; first the description, which claims the folder."""
    description = {
        "Name": "Cingulum phantom cohort (not people)",
        "BIDSVersion": "1.10.0",
        "DatasetType": "raw",
        "GeneratedBy": [{"Name": _NAME, "Version": str(RECIPE), "Parameters": parameters}],
    }
    _write_json(out / "dataset_description.json", description)
    files.write(out / "README", README.format(command=command(parameters)).encode())
    _write_json(out / "participants.json", _COLUMNS)
    for contrast in parameters["contrasts"]:
        _write_json(
            out / f"{contrast}.json",
            {"Modality": "MR", "SkullStripped": True, "Manufacturer": "none: a phantom"},
        )
    _write_json(
        out / "derivatives" / "disease" / "desc-disease_displacement.json",
        {
            "Description": "distance by which the disease moved what a voxel shows; of NC: AD would have",
            "Units": "mm",
        },
    )
    derived = {
        "BIDSVersion": "1.10.0",
        "DatasetType": "derivative",
        "GeneratedBy": description["GeneratedBy"],
    }
    for folder, name in (("tissue", "Tissue shares of the phantoms"), ("disease", "What the disease does")):
        _write_json(out / "derivatives" / folder / "dataset_description.json", {"Name": name, **derived})


def write_region(out: Path, template: Template, region: np.ndarray) -> None:
    """Write where the disease moves tissue, in the average brain's space, 0 to 1."""
    stored = np.round(region * 255).astype(np.uint8)
    content = files.nifti(
        stored, template.affine, slope=1 / 255, description="disease region, template space"
    )
    files.write(out / "derivatives" / "disease" / "region.nii.gz", content)


def write_participants(out: Path, people: Sequence[Person]) -> None:
    """Write `participants.tsv`, the last file of a whole cohort."""
    rows = [f"{p.name}\t{p.age:.1f}\t{p.sex}\t{p.diagnosis}\t{p.site}\n" for p in people]
    files.write(
        out / "participants.tsv", "".join(["participant_id\tage\tsex\tdiagnosis\tsite\n", *rows]).encode()
    )


def write_truth(
    out: Path, people: Sequence[Person], truths: Sequence[GroundTruth], regions: Sequence[str]
) -> None:
    """Write each subject's stage of the disease and mm of tissue lost per region."""
    header = "\t".join(["participant_id", "stage", *(f"{region}_mm" for region in regions)]) + "\n"
    rows = [
        "\t".join([p.name, f"{truth.stage:.4f}", *(f"{mm:.4f}" for mm in truth.recession)]) + "\n"
        for p, truth in zip(people, truths, strict=True)
    ]
    files.write(out / "derivatives" / "disease" / "truth.tsv", "".join([header, *rows]).encode())


def parameters_of(out: Path) -> dict[str, Any] | None:
    """Return the parameters of the phantom cohort in a folder; None where there is none."""
    try:
        description = json.loads((out / "dataset_description.json").read_text(encoding="utf-8"))
        made_by = description["GeneratedBy"][0]
        # Cohorts made before there was a choice have T1-weighted images alone and the diffuse disease.
        return (
            {"contrasts": ["T1w"], "disease": "diffuse", **made_by["Parameters"]}
            if made_by["Name"] == _NAME
            else None
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None  # some other folder: the caller says what is wrong with it


def _write_json(path: Path, content: dict[str, Any]) -> None:
    files.write(path, (json.dumps(content, indent=2) + "\n").encode())
