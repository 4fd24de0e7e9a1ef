"""The options of an import, once: those of the command line are made of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ImportOptions(BaseModel):
    """What an import makes of its source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: Annotated[str, Field(description="Column with the class to learn.")] = "diagnosis"
    size: Annotated[int, Field(description="Edge of a volume, in voxels.")] = 96
    spacing: Annotated[float | None, Field(description="Edge of a voxel, in mm; default: 192 / size.")] = None
    dtype: Annotated[
        Literal["float16", "float32", "bfloat16", "int16"],
        Field(description="Type of the stored values; int16 has a scale for each volume."),
    ] = "float16"
    labels: Annotated[
        Path | None,
        Field(description="CSV/TSV with labels by subject or image, for folders without."),
    ] = None
    classes: Annotated[
        str | None, Field(description="Labels allowed, such as AD,NC; others are bad images.")
    ] = None
    contrast: Annotated[str, Field(description="BIDS suffix of the images to take.")] = "T1w"
    contrasts: Annotated[
        str | None,
        Field(
            description="Several contrasts as channels, such as T1w,T2w; the first decides the grid. "
            "BIDS suffixes, or columns of a table."
        ),
    ] = None
    maps: Annotated[
        str | None,
        Field(
            description="Label maps for segmentation: probseg (a probability map per tissue) or dseg (one "
            "map of label numbers) of BIDS derivatives, or column 'map' of a table; KIND:FOLDER:desc-NAME to "
            "choose among several."
        ),
    ] = None
    map_labels: Annotated[
        str | None,
        Field(
            description="Names of the maps' labels: 1=grey,2=white or 1,2,3 or a TSV with columns index, "
            "name; default: the derivatives' dseg.tsv."
        ),
    ] = None
    run: Annotated[
        int | None,
        Field(
            ge=0,
            description="Which of several runs of a BIDS session, such as 1 for run-1; default: a second is "
            "bad.",
        ),
    ] = None
    diagnoses: Annotated[
        Path | None,
        Field(
            description="ADNI: table of diagnoses over visits (DXSUM or ADNIMERGE), which divides MCI into "
            "sMCI and pMCI."
        ),
    ] = None
    within: Annotated[
        int | None,
        Field(ge=6, description="ADNI: months in which MCI must become dementia to be pMCI; default: 36."),
    ] = None
    visits: Annotated[
        Literal["baseline", "all"] | None,
        Field(description="ADNI: the first scan of each subject, or one of each day; default: baseline."),
    ] = None
    label_change: Annotated[
        Literal["keep", "first", "error"],
        Field(
            description="Subjects whose sessions have different labels: keep each session's own, take that "
            "of the subject's first session for all, or refuse; they are counted and named in any case."
        ),
    ] = "keep"
    volume: Annotated[
        int | None, Field(description="Which volume of 4D images, from 0; default: refuse them.")
    ] = None
    nan: Annotated[
        Literal["refuse", "zero"], Field(description="What to do with NaN and infinite values.")
    ] = "refuse"
    xform: Annotated[
        Literal["sform", "qform"] | None,
        Field(
            description="Which transform of a NIfTI header counts where both are set; default: the sform, "
            "with a warning where the qform contradicts it."
        ),
    ] = None
    prepare: Annotated[
        Literal["linear"] | None,
        Field(
            description="Prepare raw T1w scans: correct the bias field (N4), register the head linearly to "
            "the average brain (ICBM 152), standardise over its brain; default: take images as they are."
        ),
    ] = None
    brain: Annotated[
        Literal["head", "mask"] | None,
        Field(
            description="Of prepared scans: keep the whole head, or the brain alone (mask); default: head."
        ),
    ] = None
    workers: Annotated[int | None, Field(ge=1, description="Processes; default: all cores.")] = None
    part: Annotated[
        str | None,
        Field(
            description="Prepare only the 3rd of 50 parts of the images (3/50), for an import without --part "
            "to pack; parts run side by side.",
        ),
    ] = None
    on_error: Annotated[
        Literal["fail", "skip"], Field(description="Bad images: fail naming all, or leave them out.")
    ] = "fail"
    volumes_per_shard: Annotated[int, Field(ge=1, description="Volumes in one HDF5 file.")] = 16
    codec: Annotated[
        Literal["auto", "none", "gzip", "blosc-lz4", "blosc-lz4-bit", "blosc-zstd-bit"],
        Field(description="Compression; auto measures on the first images which one is read fastest here."),
    ] = "blosc-lz4"
    bricks: Annotated[
        int | None,
        Field(
            ge=8,
            description="Store volumes in bricks with this edge, in voxels, for training on patches; "
            "default: each in one piece.",
        ),
    ] = None
    overwrite: Annotated[bool, Field(description="Replace the shard set that is there.")] = False
    dry_run: Annotated[bool, Field(description="Check everything, write nothing.")] = False

    @field_validator("part")
    @classmethod
    def _part_is_one_of_them(cls, part: str | None) -> str | None:
        found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", part or "1/1")
        if found is None or int(found[1]) > int(found[2]):
            raise ValueError(f"must be such as 3/50, the third of fifty, not {part!r}")
        return part

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the contrasts that become channels, where there are several."""
        names = _names(self.contrasts)
        return names if len(names) > 1 else ()

    @property
    def first_contrast(self) -> str:
        """Return the contrast whose image decides the grid."""
        return (*_names(self.contrasts), self.contrast)[0]

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """Return the labels that are allowed; None: all."""
        return _names(self.classes) or None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()
