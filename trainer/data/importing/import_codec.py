"""Codec of an import with `--codec auto`: its earlier choice, or the best on its first images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any

from trainer.data.importing import codec_choice, import_state
from trainer.data.importing.examination import examine
from trainer.data.importing.import_request import ImportRequest
from trainer.data.shards import codecs
from trainer.data.shards.layout import Layout
from trainer.data.shards.stored_types import stored_dtype
from trainer.data.sources.listing import Listing
from trainer.data.workers import default_workers
from trainer.errors import CohortError

# A codec is chosen by so many volumes, with so many bytes of float32 together, found among the first images.
_MOST_MEASURED, _MEASURED_BYTES, _MOST_TRIED = 4, 256 << 20, 32


def as_before(request: ImportRequest) -> tuple[ImportRequest, dict[str, Any] | None]:
    """Return the request with the codec that an earlier import into its target chose, and that choice.

    Nothing changes where the codec is named or none was chosen.

    Raises:
        ShardError: what the earlier import left cannot be read.
    """
    choice = import_state.codec_choice(request.target) if request.codec == codec_choice.AUTO else None
    return (replace(request, codec=choice["codec"]), choice) if choice else (request, None)


def choose(request: ImportRequest, listing: Listing) -> tuple[ImportRequest, dict[str, Any]]:
    """Return the request with the codec that is the best here for its first usable images, and that choice.

    The choice is kept in the target's work folder, for an import that goes on.

    Raises:
        CohortError: none of the first images can be used.
        ShardError: the target's disk cannot be written or read.
    """
    recipe = request.recipe
    layout = Layout(recipe.shape, stored_dtype(recipe.dtype), codecs.DEFAULT, request.bricks)
    most = max(1, min(_MOST_MEASURED, _MEASURED_BYTES // (4 * prod(recipe.shape))))
    found = (examine((image, recipe)).array for image in listing.images[:_MOST_TRIED])
    arrays = list(islice((array for array in found if array is not None), most))
    check_any_usable(listing, [True] * len(arrays))
    work = request.target / import_state.WORK_NAME
    import_state.make(work)
    choice = codec_choice.choose(arrays, layout, work, request.workers or default_workers()).to_json()
    import_state.keep_codec_choice(work, choice)
    return replace(request, codec=choice["codec"]), choice


def check_any_usable(listing: Listing, usable: Sequence[bool]) -> None:
    """Raise CohortError where none of the first images can be used to choose a codec.

    Raises:
        CohortError: so it is.
    """
    if not any(usable[:_MOST_TRIED]):
        raise CohortError(
            f"{listing.name}: none of its first {_MOST_TRIED} images can be used to choose a codec.",
            cure=f"`--dry-run` says what is wrong with them; or name a codec: --codec {codecs.DEFAULT}.",
        )
