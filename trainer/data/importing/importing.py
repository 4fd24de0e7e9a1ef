"""Run an import: list the images, examine each, write the usable ones to shards, report the findings.

Images are examined by several processes and taken in the order of the listing, so that the bytes written
depend neither on the number of processes nor on when an earlier import was stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from trainer.data.images.findings import Finding
from trainer.data.importing import codec_choice, import_state, quality_sheet
from trainer.data.importing.import_request import ImportProgress, ImportRequest, ImportResult, set_meta
from trainer.data.importing.import_work import ImportWork
from trainer.data.shards import codecs
from trainer.data.shards.index import canonical_json
from trainer.data.shards.shard_writer import ShardWriter, checked_layout, write_atomically
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.summary import UNLABELLED
from trainer.data.sources import sources
from trainer.data.sources.listing import SourceListing
from trainer.errors import ConfigError


def run(
    request: ImportRequest,
    on_progress: Callable[[ImportProgress], None] | None = None,
    on_cohort: Callable[[Sequence[Finding]], None] | None = None,
) -> ImportResult:
    """Import a source into a shard set, or report what is wrong with it.

    Args:
        request: what to import.
        on_progress: called with every image.
        on_cohort: called once with the findings about the whole, before the first image is opened.

    Raises:
        CohortError: the source is unusable, or an image is bad and `on_error` is 'fail': all are named.
        ShardError: the target holds something else, or cannot be written.
        CingulumError: the disk is full, or a worker process was killed.
    """
    begun = time.monotonic()
    import_state.check_name(request.target)
    _ = request.recipe  # says what is wrong with it
    listing = sources.find(
        request.source,
        request.label,
        labels=request.labels,
        contrast=request.first_contrast,
        contrasts=request.channels,
        classes=request.allowed,
        maps=request.map_request,
        run=request.run,
        adni=request.adni,
        label_change=request.label_change,
    )
    if on_cohort is not None:
        on_cohort(listing.findings)
    request = request.of_listing(listing)
    on_progress = on_progress or (lambda progress: None)
    if request.part is not None:
        return _prepare_part(request, listing, on_progress, begun)
    if request.dry_run:
        return _rehearse(request, listing, on_progress, begun)
    if request.overwrite:
        import_state.clear(request.target)
    request, choice = codec_choice.as_before(request)
    decisive = request.decisive(listing)
    if import_state.is_finished(request.target, decisive, listing.sha256):
        return _already_done(request, listing, begun, choice)
    if request.codec == codec_choice.AUTO:
        request, choice = codec_choice.choose_for(request, listing)
        decisive = request.decisive(listing)
    work = ImportWork(request, listing, on_progress, choice)
    recipe, meta = request.recipe, set_meta(request, listing)
    # Before anything is written: it knows which codecs and sizes cannot be.
    writer = ShardWriter(request.target, recipe.shape, recipe.dtype, request.codec, request.bricks, meta=meta)
    with import_state.working(request.target, decisive) as folder:
        work.keep_whole_shards(writer, folder)
        work.examine_rest(writer, folder)
        work.mark_outliers()
        quality_sheet.write(request.target, listing, work.examined)
        work.check_usable()
        story = {
            "request": decisive,
            "listing_sha256": listing.sha256,
            "kind": listing.kind,
            "left_out": [
                {
                    "source": image.identity[0],
                    "findings": [f.code for f in image.findings if f.severity == "bad"],
                }
                for image in work.left_out
            ],
            **({"not_taken": listing.left_out} if listing.left_out else {}),
            **({"label_changes": listing.label_changes} if listing.label_changes else {}),
            **({"codec_choice": choice} if choice else {}),
        }
        write_atomically(request.target / import_state.STORY_NAME, (canonical_json(story) + "\n").encode())
        index = writer.finish(work.shards)
        import_state.finished(folder)
    return work.result(begun, index.content_hash)


def _prepare_part(
    request: ImportRequest,
    listing: SourceListing,
    on_progress: Callable[[ImportProgress], None],
    begun: float,
) -> ImportResult:
    """Examine a part of the images, and keep what comes of it for the import that writes the shards.

    Raises:
        ConfigError: it cannot be done in parts.
    """
    for option, is_given in (
        ("--dry-run", request.dry_run),
        ("--overwrite", request.overwrite),
        ("--codec auto", request.codec == codec_choice.AUTO),
    ):
        if is_given:
            raise ConfigError(
                f"--part prepares images only, and {option} is for the whole import.",
                cure=f"Leave {option} to the import without --part, or import in one piece.",
            )
    decisive = request.decisive(listing)
    if import_state.is_finished(request.target, decisive, listing.sha256):
        return _already_done(request, listing, begun, None)
    work = ImportWork(request, listing, on_progress)
    with import_state.working(request.target, decisive, is_alone=False) as folder:
        work.prepare_part(folder)
    return work.result(begun, None)


def _rehearse(
    request: ImportRequest,
    listing: SourceListing,
    on_progress: Callable[[ImportProgress], None],
    begun: float,
) -> ImportResult:
    """Raise the errors that the import would raise, and write nothing. Free disk space is not checked."""
    choice = None
    if request.overwrite:
        import_state.check_clearable(request.target)
    else:
        request, choice = codec_choice.as_before(request)
        if import_state.is_finished(request.target, request.decisive(listing), listing.sha256):
            return _already_done(request, listing, begun, choice)
    recipe, meta = request.recipe, set_meta(request, listing)
    codec = codecs.DEFAULT if request.codec == codec_choice.AUTO else request.codec
    checked_layout(recipe.shape, recipe.dtype, codec, request.bricks, meta.map_classes)
    import_state.check_free(request.target)
    work = ImportWork(request, listing, on_progress, choice)
    work.examine_rest(None, None)
    work.mark_outliers()
    work.check_usable()
    if request.codec == codec_choice.AUTO:
        codec_choice.check_any_usable(listing, [image.status != "bad" for image in work.examined])
    return work.result(begun, None)


def _already_done(
    request: ImportRequest, listing: SourceListing, begun: float, choice: dict[str, Any] | None
) -> ImportResult:
    shards = ShardSet.open(request.target)
    if not request.dry_run and request.part is None:
        import_state.finished(request.target / import_state.WORK_NAME)
    return ImportResult(
        target=request.target,
        volumes=len(shards.volumes),
        classes=dict(sorted(Counter(volume.label or UNLABELLED for volume in shards.volumes).items())),
        left_out=(),
        warnings=0,
        kept=len(shards.volumes),
        seconds=time.monotonic() - begun,
        already_done=True,
        content_hash=shards.content_hash,
        cohort_findings=listing.findings,
        codec=shards.codec,
        codec_choice=choice,
    )
