"""Request, progress and result of an import, and the metadata that it writes to the index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainer.data.images.findings import Finding
from trainer.data.images.recipe import Recipe
from trainer.data.importing.examination import Examined
from trainer.data.shards import codecs
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.sources.labels import LabelChange
from trainer.data.sources.listing import SourceListing
from trainer.data.sources.source_adni import AdniRequest


@dataclass(frozen=True)
class ImportRequest:
    """What to import, from where, to where, and how; see `cingulum import --help`.

    `contrasts`, where there are several, stands in place of `contrast`. `maps` and `map_labels` are as typed.
    `codec` may be 'auto'; `run` puts the codec that it chooses in its place.
    """

    source: Path
    target: Path
    label: str
    recipe: Recipe
    labels: Path | None = None
    contrast: str = "T1w"
    contrasts: tuple[str, ...] = ()
    maps: str | None = None
    map_labels: str | None = None
    classes: tuple[str, ...] | None = None
    run: int | None = None
    adni: AdniRequest | None = None
    label_change: LabelChange = "keep"
    workers: int | None = None
    on_error: Literal["fail", "skip"] = "fail"
    volumes_per_shard: int = 16
    codec: str = codecs.DEFAULT
    bricks: int | None = None
    overwrite: bool = False
    dry_run: bool = False

    def recipe_for(self, listing: SourceListing) -> Recipe:
        """Return the recipe with the requested contrasts and the maps that were found."""
        return replace(self.recipe, contrasts=self.contrasts, maps=listing.maps)

    def decisive(self, listing: SourceListing) -> dict[str, Any]:
        """Return the parameters that determine the content of the set, as JSON values."""
        one_contrast = listing.kind == "bids" and not self.contrasts
        return {
            "source": listing.name,
            "label": self.label,
            "contrast": self.contrast if one_contrast else None,
            "classes": list(self.classes) if self.classes else None,
            "volumes_per_shard": self.volumes_per_shard,
            "codec": self.codec,
            **({"bricks": self.bricks} if self.bricks else {}),
            **({"run": self.run} if self.run is not None else {}),
            **({"label_change": self.label_change} if self.label_change != "keep" else {}),
            **(self.adni.decisive if self.adni is not None else {}),
            "recipe": self.recipe_for(listing).to_json(),
        }


@dataclass(frozen=True)
class ImportProgress:
    """Progress of an import: one more image is examined.

    Attributes:
        done: images examined so far.
        kept: whether its result is from an import that was stopped.
    """

    done: int
    total: int
    source: str
    findings: tuple[Finding, ...]
    kept: bool


@dataclass(frozen=True)
class ImportResult:
    """Result of an import.

    Attributes:
        volumes: number of volumes in the set (or that would be, in a dry run).
        classes: number of volumes of each label.
        left_out: bad images with their findings.
        warnings: number of usable images with warnings.
        kept: images taken over from an import that was stopped.
        already_done: the set was whole before; nothing was done.
        codec: of the set; 'auto' in a dry run that does not choose.
        codec_choice: what was measured to choose it (`codec_choice.Choice.to_json`); None where it was named.
    """

    target: Path
    volumes: int
    classes: dict[str, int]
    left_out: tuple[Examined, ...]
    warnings: int
    kept: int
    seconds: float
    already_done: bool
    content_hash: str | None
    cohort_findings: tuple[Finding, ...]
    codec: str
    codec_choice: dict[str, Any] | None


def set_meta(request: ImportRequest, listing: SourceListing) -> SetMeta:
    """Return the metadata of the set, from the request and the listing."""
    recipe = request.recipe
    normalisation = {
        "method": recipe.normalisation,
        "foreground": recipe.foreground,
        "low_percentile": recipe.low_percentile,
        "high_percentile": recipe.high_percentile,
    }
    return SetMeta(
        request.label,
        listing.name,
        (recipe.spacing,) * 3,
        normalisation,
        recipe.to_json(),
        recipe.contrasts,
        recipe.maps.classes if recipe.maps else (),
    )


def volume_meta(image: Examined) -> VolumeMeta:
    """Return the metadata of a volume: its subject and its source files."""
    source, subject, session, label, age, sex, site, *_ = image.identity
    affine = image.affine or []
    return VolumeMeta(
        subject=subject,
        source=source,
        source_sha256=image.sha256,
        affine=affine,
        session=session,
        label=label,
        age=age,
        sex=sex,
        site=site,
        tissue=image.tissue,
        further_sources=image.further or None,
    )
