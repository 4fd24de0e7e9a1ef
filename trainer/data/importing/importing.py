"""Run an import: list the images, examine each, write the usable ones to shards, report the findings.

Images are examined by several processes and taken in the order of the listing, so that the bytes written
depend neither on the number of processes nor on when an earlier import was stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.data.images.findings import Finding, bad
from trainer.data.importing import codec_choice, import_codec, import_meta, import_state, quality_sheet
from trainer.data.importing.examination import Examined, examine
from trainer.data.importing.import_request import ImportRequest, ImportResult, Progress
from trainer.data.shards import codecs
from trainer.data.shards.index import ShardRecord, canonical_json
from trainer.data.shards.shard_writer import ShardWriter, checked_layout, write_atomically
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.summary import UNLABELLED
from trainer.data.sources import sources
from trainer.data.sources.listing import Listing
from trainer.data.sources.map_request import MapRequest
from trainer.data.workers import default_workers, in_order
from trainer.errors import CohortError

# How many bad images an error names; the table names all.
_MOST_NAMED = 20


def run(
    request: ImportRequest,
    on_progress: Callable[[Progress], None] | None = None,
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
    replace(request.recipe, contrasts=request.contrasts)  # says what is wrong with their names
    listing = sources.find(
        request.source,
        request.label,
        labels=request.labels,
        contrast=request.contrast,
        contrasts=request.contrasts,
        classes=request.classes,
        maps=MapRequest.parse(request.maps, request.map_labels) if request.maps else None,
        run=request.run,
    )
    if on_cohort is not None:
        on_cohort(listing.findings)
    request = replace(request, recipe=request.recipe_for(listing))
    on_progress = on_progress or (lambda progress: None)
    if request.dry_run:
        return _rehearse(request, listing, on_progress, begun)
    if request.overwrite:
        import_state.clear(request.target)
    request, choice = import_codec.as_before(request)
    decisive = request.decisive(listing)
    if import_state.is_finished(request.target, decisive, listing.sha256):
        return _already_done(request, listing, begun, choice)
    if request.codec == codec_choice.AUTO:
        request, choice = import_codec.choose(request, listing)
        decisive = request.decisive(listing)
    work = _Import(request, listing, on_progress, choice)
    recipe, meta = request.recipe, import_meta.of_set(request, listing)
    # Before anything is written: it knows which codecs and sizes cannot be.
    writer = ShardWriter(request.target, recipe.shape, recipe.dtype, request.codec, request.bricks, meta=meta)
    with import_state.working(request.target, decisive) as folder:
        work.keep_whole_shards(writer, folder)
        work.examine_rest(writer, folder)
        quality_sheet.write(request.target, listing, work.examined)
        work.complain()
        story = {
            "request": decisive,
            "listing_sha256": listing.sha256,
            "kind": listing.kind,
            "left_out": work.left_out_json(),
            **({"codec_choice": choice} if choice else {}),
        }
        write_atomically(request.target / import_state.STORY_NAME, (canonical_json(story) + "\n").encode())
        index = writer.finish(work.shards)
        import_state.finished(folder)
    return work.result(begun, index.content_hash)


def _rehearse(
    request: ImportRequest, listing: Listing, on_progress: Callable[[Progress], None], begun: float
) -> ImportResult:
    """Refuse what the import would refuse, and write nothing. Free disk space is not checked."""
    choice = None
    if request.overwrite:
        import_state.check_clearable(request.target)
    else:
        request, choice = import_codec.as_before(request)
        if import_state.is_finished(request.target, request.decisive(listing), listing.sha256):
            return _already_done(request, listing, begun, choice)
    recipe, meta = request.recipe, import_meta.of_set(request, listing)
    codec = codecs.DEFAULT if request.codec == codec_choice.AUTO else request.codec
    checked_layout(recipe.shape, recipe.dtype, codec, request.bricks, meta.map_classes)
    import_state.check_free(request.target)
    work = _Import(request, listing, on_progress, choice)
    work.examine_rest(None, None)
    work.complain()
    if request.codec == codec_choice.AUTO:
        import_codec.check_any_usable(listing, [image.status != "bad" for image in work.examined])
    return work.result(begun, None)


@dataclass
class _Import:
    """One import in progress; `examined` holds every image taken so far, without its array."""

    request: ImportRequest
    listing: Listing
    on_progress: Callable[[Progress], None]
    choice: dict[str, Any] | None = None
    examined: list[Examined] = field(default_factory=list)
    shards: list[ShardRecord] = field(default_factory=list)
    contents: dict[str, str] = field(default_factory=dict)
    kept: int = 0

    @property
    def left_out(self) -> tuple[Examined, ...]:
        return tuple(image for image in self.examined if image.status == "bad")

    @property
    def usable(self) -> list[Examined]:
        return [image for image in self.examined if image.status != "bad"]

    def keep_whole_shards(self, writer: ShardWriter, folder: Path) -> None:
        """Keep the shards of an import that was stopped, up to the first invalid one."""
        images = self.listing.images
        while True:
            rest = images[len(self.examined) :]
            records = import_state.load(folder, len(self.shards), rest)
            if not records:
                return
            used = sum(record.status != "bad" for record in records)
            if used != self.request.volumes_per_shard and len(records) != len(rest):
                return  # it was the last one of a shorter list
            shard = writer.whole_shard(len(self.shards), import_state.mark(records))
            if shard is None or len(shard.volumes) != used:
                return
            self.shards.append(shard)
            for record in records:
                self._remember(record)
                self._tell(kept=True)
            self.kept = len(self.examined)

    def examine_rest(self, writer: ShardWriter | None, folder: Path | None) -> None:
        """Examine the images not yet taken; write each shard as soon as it is full."""
        rest = self.listing.images[len(self.examined) :]
        workers = min(self.request.workers or default_workers(), len(rest))
        tasks = ((image, self.request.recipe) for image in rest)
        group: list[Examined] = []
        # A single worker would only cost its start.
        for found in in_order(examine, tasks, workers) if workers > 1 else map(examine, tasks):
            found = self._unless_seen(found)
            self._remember(replace(found, array=None, label_map=None))
            self._tell(kept=False)
            if writer is None or folder is None or (self.request.on_error == "fail" and self.left_out):
                group.clear()  # nothing more will be written; go on looking for bad images
                continue
            group.append(found)
            if sum(image.array is not None for image in group) == self.request.volumes_per_shard:
                self._write(writer, folder, group)
                group = []
        if writer is not None and folder is not None and any(image.array is not None for image in group):
            self._write(writer, folder, group)

    def complain(self) -> None:
        """Raise for bad images unless they may be skipped, and for a cohort that is unusable without them."""
        if self.left_out and self.request.on_error == "fail":
            raise CohortError(self._complaint(), cure=self._cure())
        self.check_classes()

    def check_classes(self) -> None:
        """Raise when fewer than two classes are left, or no image where the task needs label maps."""
        if not self.usable:
            raise CohortError(self._complaint(), cure="Mend them and run the same command again.")
        if self.request.recipe.maps is not None:
            return
        labels = {_label(image) for image in self.usable}
        if len(labels) < 2:
            message = f"{self.listing.name}: all its usable images have the label {labels.pop()!r}."
            cure = "A classifier needs two classes: mend the images left out."
            raise CohortError(f"{message}\n{self._complaint()}", cure=cure)

    def result(self, begun: float, content_hash: str | None) -> ImportResult:
        """Return the result of the import."""
        return ImportResult(
            target=self.request.target,
            volumes=len(self.usable),
            classes=dict(sorted(Counter(_label(image) for image in self.usable).items())),
            left_out=self.left_out,
            warnings=sum(image.status == "warning" for image in self.usable),
            kept=self.kept,
            seconds=time.monotonic() - begun,
            already_done=False,
            content_hash=content_hash,
            cohort_findings=self.listing.findings,
            codec=self.request.codec,
            codec_choice=self.choice,
        )

    def left_out_json(self) -> list[dict[str, Any]]:
        """Return every bad image with its codes."""
        bad_ones = ((image.identity[0], image.findings) for image in self.left_out)
        return [
            {"source": source, "findings": [f.code for f in findings if f.severity == "bad"]}
            for source, findings in bad_ones
        ]

    def _write(self, writer: ShardWriter, folder: Path, group: list[Examined]) -> None:
        rows = [(image.array, import_meta.of_volume(image)) for image in group if image.array is not None]
        maps = [image.label_map for image in group if image.label_map is not None]
        number = len(self.shards)
        self.shards.append(writer.write_shard(number, rows, import_state.mark(group), maps or None))
        import_state.save(folder, number, group, self.shards[-1].sha256)

    def _unless_seen(self, found: Examined) -> Examined:
        """Leave out an image whose voxels are those of an earlier one."""
        content = (found.facts or {}).get("content_sha256", "")
        first = self.contents.get(content)
        if found.status == "bad" or not content or first is None:
            return found
        cure = "Remove one of them, or mend the copy: which subject it is of cannot be known."
        twice = bad("duplicate-content", f"has exactly the voxels of {first}.", cure)
        return replace(found, findings=(*found.findings, twice), array=None, label_map=None)

    def _remember(self, found: Examined) -> None:
        self.examined.append(found)
        if found.status != "bad" and found.facts is not None:
            self.contents[found.facts["content_sha256"]] = found.identity[0]

    def _tell(self, *, kept: bool) -> None:
        last = self.examined[-1]
        self.on_progress(
            Progress(len(self.examined), len(self.listing.images), last.identity[0], last.findings, kept)
        )

    def _complaint(self) -> str:
        return complaint(self.listing.name, self.left_out, len(self.examined))

    def _cure(self) -> str:
        table = "" if self.request.dry_run else f" All of them are in {self.request.target / 'qc.html'}."
        return (
            "Mend or remove them and run the same command again, or leave them out with --on-error skip."
            + table
        )


def complaint(name: str, left_out: Sequence[Examined], total: int) -> str:
    """Return the bad images, each with its reason and its cure."""
    lines = [f"{name}: {len(left_out)} of {total} images cannot be used:"]
    for image in left_out[:_MOST_NAMED]:
        for finding in image.findings:
            if finding.severity == "bad":
                lines.append(f"  {image.identity[0]}: {finding.message} {finding.cure}")
    if len(left_out) > _MOST_NAMED:
        lines.append(f"  ... and {len(left_out) - _MOST_NAMED} more")
    return "\n".join(lines)


def _label(image: Examined) -> str:
    label = image.identity[3]
    return UNLABELLED if label is None else str(label)


def _already_done(
    request: ImportRequest, listing: Listing, begun: float, choice: dict[str, Any] | None
) -> ImportResult:
    shards = ShardSet.open(request.target)
    if not request.dry_run:
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
