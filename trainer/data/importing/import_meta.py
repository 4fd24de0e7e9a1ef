"""Metadata that an import writes to the index about a set and each of its volumes."""

from __future__ import annotations

from trainer.data.importing.examination import Examined
from trainer.data.importing.import_request import ImportRequest
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.sources.listing import Listing


def of_set(request: ImportRequest, listing: Listing) -> SetMeta:
    """Return what holds for every volume."""
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


def of_volume(image: Examined) -> VolumeMeta:
    """Return the subject of the volume and its source."""
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
