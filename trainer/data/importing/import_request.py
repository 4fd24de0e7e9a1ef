"""Request, progress and result of an import, and the metadata that it writes to the index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.images.findings import Finding
from trainer.data.images.recipe import MapRecipe, Recipe
from trainer.data.importing.examination import Examined
from trainer.data.importing.import_options import ImportOptions
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.sources.listing import SourceListing
from trainer.data.sources.map_request import MapRequest
from trainer.data.sources.source_adni import AdniRequest
from trainer.errors import ConfigError


class ImportRequest(ImportOptions):
    """What to import, from where, to where, and how.

    `codec` may be 'auto'; `run` puts the codec that it chooses in its place. `found_maps` are those of the
    listing, once there is one.
    """

    source: Path
    target: Path
    found_maps: MapRecipe | None = None

    @property
    def recipe(self) -> Recipe:
        """Return the parameters of preprocessing.

        Raises:
            ConfigError: there are no such.
        """
        others: dict[str, Any] = {
            "dtype": self.dtype,
            "volume": self.volume,
            "nan": self.nan,
            "xform": self.xform,
            "prepare": self.prepare,
            "brain": self._kept_of_the_head,
            "contrasts": self.channels,
            "maps": self.found_maps,
        }
        if self.spacing is None:
            return Recipe.of_size(self.size, **others)
        return Recipe(size=self.size, spacing=self.spacing, **others)

    @property
    def _kept_of_the_head(self) -> str | None:
        if self.prepare is None and self.brain is not None:
            raise ConfigError(
                "--brain says what to keep of prepared scans, and none are to be prepared.",
                cure="Add --prepare linear.",
            )
        return (self.brain or "head") if self.prepare else None

    @property
    def adni(self) -> AdniRequest | None:
        """Return what to take of a download from ADNI; None where nothing was said of it.

        Raises:
            ConfigError: months without diagnoses.
        """
        return AdniRequest.of(self.diagnoses, self.within, self.visits)

    @property
    def map_request(self) -> MapRequest | None:
        """Return which label maps to take; None: none.

        Raises:
            ConfigError: there is no such kind, or labels are named for no maps.
        """
        if self.map_labels is not None and self.maps is None:
            raise ConfigError(
                "--map-labels names the labels of maps, and no maps are asked for.",
                cure="Add --maps dseg or --maps probseg.",
            )
        return MapRequest.parse(self.maps, self.map_labels) if self.maps else None

    def of_listing(self, listing: SourceListing) -> ImportRequest:
        """Return it with the maps that were found."""
        return self.model_copy(update={"found_maps": listing.maps})

    def with_codec(self, codec: str) -> ImportRequest:
        """Return it with the codec that was chosen."""
        return self.model_copy(update={"codec": codec})

    def decisive(self, listing: SourceListing) -> dict[str, Any]:
        """Return the parameters that determine the content of the set, as JSON values."""
        return {
            "source": listing.name,
            "label": self.label,
            "contrast": None if self.channels else listing.contrast,
            "classes": list(self.allowed) if self.allowed else None,
            "volumes_per_shard": self.volumes_per_shard,
            "codec": self.codec,
            **({"bricks": self.bricks} if self.bricks else {}),
            **({"run": self.run} if self.run is not None else {}),
            **({"label_change": self.label_change} if self.label_change != "keep" else {}),
            **(self.adni.decisive if self.adni is not None else {}),
            "recipe": self.of_listing(listing).recipe.to_json(),
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
        "foreground": "brain" if recipe.prepare else recipe.foreground,
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
        registration=(image.report or {}).get("registration"),
    )
