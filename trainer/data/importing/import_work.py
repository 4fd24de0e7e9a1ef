"""One import in progress: examine the images, write the shards, refuse what cannot be used."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.data.images.findings import bad
from trainer.data.images.linear import outliers
from trainer.data.importing import import_state, kept_images
from trainer.data.importing.examination import Examined, examine
from trainer.data.importing.import_request import ImportProgress, ImportRequest, ImportResult, volume_meta
from trainer.data.importing.kept_images import KeptExamination, examine_once
from trainer.data.shards.index import ShardRecord
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.summary import UNLABELLED
from trainer.data.sources.listing import SourceImage, SourceListing
from trainer.data.workers import default_workers, in_order
from trainer.errors import CohortError

# How many bad images an error names; the table names all.
_MOST_NAMED = 20


@dataclass
class ImportWork:
    """State of an import in progress.

    Attributes:
        request: what to import.
        listing: the images of its source.
        on_progress: called with every image.
        choice: what was measured to choose the codec; None where it was named.
        examined: every image examined so far, without its array.
        shards: the whole shards so far.
        kept: number of images taken over from an import that was stopped.
    """

    request: ImportRequest
    listing: SourceListing
    on_progress: Callable[[ImportProgress], None]
    choice: dict[str, Any] | None = None
    examined: list[Examined] = field(default_factory=list)
    shards: list[ShardRecord] = field(default_factory=list)
    kept: int = 0
    _first_with: dict[str, str] = field(default_factory=dict)  # source by SHA-256 of its voxels

    @property
    def images(self) -> Sequence[SourceImage]:
        """Return those of the listing, or of the part that is asked for."""
        if self.request.part is None:
            return self.listing.images
        number, parts = map(int, self.request.part.split("/"))
        return self.listing.images[number - 1 :: parts]

    @property
    def left_out(self) -> tuple[Examined, ...]:
        """Return the bad images."""
        return tuple(image for image in self.examined if image.status == "bad")

    @property
    def usable(self) -> list[Examined]:
        """Return the images that are not bad."""
        return [image for image in self.examined if image.status != "bad"]

    def keep_whole_shards(self, writer: ShardWriter, folder: Path) -> None:
        """Keep the shards of an import that was stopped, up to the first invalid one."""
        while True:
            rest = self.listing.images[len(self.examined) :]
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
                self._add(record, kept=True)
            self.kept = len(self.examined)

    def examine_rest(self, writer: ShardWriter | None, folder: Path | None) -> None:
        """Examine the remaining images; write each shard as soon as it is full (none without a writer)."""
        rest = self.listing.images[len(self.examined) :]
        group: list[Examined] = []
        for examined, was_there in self._each(rest, folder):
            examined = self._unless_duplicate(examined)
            self._add(replace(examined, array=None, label_map=None), kept=was_there)
            self.kept += was_there
            if writer is None or folder is None or (self.request.on_error == "fail" and self.left_out):
                group.clear()  # nothing more will be written; go on looking for bad images
                continue
            group.append(examined)
            if sum(image.array is not None for image in group) == self.request.volumes_per_shard:
                self._write(writer, folder, group)
                group = []
        if writer is not None and folder is not None and any(image.array is not None for image in group):
            self._write(writer, folder, group)

    def mark_outliers(self) -> None:
        """Add a finding to each registered scan that lies apart from the others."""
        registered = [
            None if image.status == "bad" else (image.report or {}).get("registration")
            for image in self.examined
        ]
        for number, finding in outliers.outliers(registered).items():
            image = self.examined[number]
            self.examined[number] = replace(image, findings=(*image.findings, finding))
            done = len(self.examined)
            self.on_progress(ImportProgress(done, done, image.identity[0], (finding,), kept=True))

    def prepare_part(self, folder: Path) -> None:
        """Examine the images of the request's part, and keep them for the import that writes shards."""
        for examined, was_there in self._each(self.images, folder, only_kept=True):
            self._add(examined, kept=was_there)
            self.kept += was_there

    def _each(
        self, images: Sequence[SourceImage], folder: Path | None, *, only_kept: bool = False
    ) -> Iterator[tuple[Examined, bool]]:
        """Examine images, in their order; those that take long, or are of a part, are kept in the folder."""
        workers, recipe = min(self.request.workers or default_workers(), len(images)), self.request.recipe
        if folder is not None and (only_kept or recipe.prepare or (folder / kept_images.FOLDER).is_dir()):
            place = folder / kept_images.FOLDER
            import_state.make(place)
            kept = (KeptExamination(image, recipe, place, only_kept) for image in images)
            # A single worker would only cost its start.
            yield from in_order(examine_once, kept, workers) if workers > 1 else map(examine_once, kept)
            return
        tasks = ((image, recipe) for image in images)
        found = in_order(examine, tasks, workers) if workers > 1 else map(examine, tasks)
        yield from ((examined, False) for examined in found)

    def check_usable(self) -> None:
        """Check that the set may be made of the usable images.

        Raises:
            CohortError: an image is bad and none may be skipped, no image is usable, or a classifier would
                have one class only.
        """
        what = complaint(self.listing.name, self.left_out, len(self.examined))
        if self.left_out and self.request.on_error == "fail":
            cure = (
                "Correct or remove them and run the same command again, or leave them out: --on-error skip."
            )
            if not self.request.dry_run:
                cure += f" All of them are in {self.request.target / 'qc.html'}."
            raise CohortError(what, cure=cure)
        if not self.usable:
            raise CohortError(what, cure="Correct them and run the same command again.")
        labels = {_label(image) for image in self.usable}
        if self.request.recipe.maps is None and len(labels) < 2:
            raise CohortError(
                f"{self.listing.name}: all its usable images have the label {labels.pop()!r}.\n{what}",
                cure="A classifier needs two classes: correct the images left out.",
            )

    def result(self, begun: float, content_hash: str | None) -> ImportResult:
        """Return the result of the import, which began at `begun` by `time.monotonic`."""
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

    def _write(self, writer: ShardWriter, folder: Path, group: list[Examined]) -> None:
        rows = [(image.array, volume_meta(image)) for image in group if image.array is not None]
        maps = [image.label_map for image in group if image.label_map is not None]
        number = len(self.shards)
        self.shards.append(writer.write_shard(number, rows, import_state.mark(group), maps or None))
        import_state.save(folder, number, group, self.shards[-1].sha256)

    def _unless_duplicate(self, examined: Examined) -> Examined:
        """Return the image, as a bad one where its voxels are those of an earlier image."""
        first = self._first_with.get((examined.facts or {}).get("content_sha256", ""))
        if examined.status == "bad" or first is None:
            return examined
        cure = "Remove one of them, or replace the copy: its subject cannot be known."
        twice = bad("duplicate-content", f"has exactly the voxels of {first}.", cure)
        return replace(examined, findings=(*examined.findings, twice), array=None, label_map=None)

    def _add(self, examined: Examined, *, kept: bool) -> None:
        self.examined.append(examined)
        source = examined.identity[0]
        if examined.status != "bad" and examined.facts is not None and examined.facts["content_sha256"]:
            self._first_with[examined.facts["content_sha256"]] = source
        done, total = len(self.examined), len(self.images)
        self.on_progress(ImportProgress(done, total, source, examined.findings, kept))


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
