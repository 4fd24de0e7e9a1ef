"""`cingulum import`: convert images to a shard set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.cli.options import options_of
from trainer.data.sources.file_names import first_three
from trainer.errors import CohortError, Stopped

if TYPE_CHECKING:
    from trainer.data.images.findings import Finding
    from trainer.data.importing.import_options import ImportOptions
    from trainer.data.importing.import_request import ImportRequest, ImportResult

_COLOURS = {"bad": "red", "warning": "yellow", "note": ""}


@options_of(options="trainer.data.importing.import_options:ImportOptions")
def import_images(
    source: Annotated[
        Path,
        typer.Argument(
            help="A BIDS folder, ADNI's archive, IXI, OASIS-1, a folder of images, or a CSV/TSV of images.",
            show_default=False,
        ),
    ],
    shards: Annotated[Path, typer.Argument(help="Folder for the shard set.", show_default=False)],
    options: ImportOptions,
    as_json: Annotated[bool, typer.Option("--json", help="The outcome as JSON on standard output.")] = False,
) -> None:
    """Check, preprocess and pack images into a shard set.

    Every image is moved to RAS+, resampled to cubes, cropped or padded about the brain and its intensities
    standardised. SHARDS/qc.html shows all of them, the suspicious ones first. The import may be stopped at
    any moment; the same command goes on where it stopped.

    \b
    Example:
      cingulum import my-bids shards/mine --label diagnosis --size 96
      cingulum import my-bids shards/both --contrasts T1w,T2w
      cingulum import my-bids shards/maps --maps probseg
      cingulum import my-bids shards/fast --codec auto
      cingulum import my-bids shards/raw --prepare linear --part 3/50
      cingulum import ADNI shards/adni --labels collection.csv --diagnoses DXSUM.csv
    """
    from trainer.data.importing.import_request import ImportRequest

    request = ImportRequest(source=source, target=shards, **options.model_dump())
    result = _with_progress(request)
    if as_json:
        typer.echo(json.dumps(_as_json(result), indent=1))
    elif options.part is not None and not result.already_done:
        _tell_part(result, options.part)
    else:
        _tell(result, source if options.dry_run else None)


def _with_progress(request: ImportRequest) -> ImportResult:
    """Run the import under a progress bar; at its end, however it ends, every kind of finding has a line."""
    from trainer.data.images.findings import Finding
    from trainer.data.importing import importing
    from trainer.data.importing.import_request import ImportProgress as News
    from trainer.progress import Counting
    from trainer.ranks.stopping import ended_by_signals

    stopped = Stopped(
        "The import was asked to stop.", cure="Run the same command again: it goes on where it stopped."
    )
    with ended_by_signals(stopped), Counting("checking" if request.dry_run else "importing", "images") as bar:
        findings, cohort = Findings(), list[Finding]()

        def show(news: News) -> None:
            findings.add(news.source, news.findings)
            bar.show(news.done, news.total)

        # Bad images are named by the error, and by what a dry run prints.
        severities = {"warning"} if request.dry_run else {"bad", "warning"}
        try:
            return importing.run(request, show, cohort.extend)
        except CohortError:
            severities = {"warning"}
            raise
        finally:
            for finding in cohort:
                bar.note(f"{finding.severity}: {finding.message} {finding.cure}", _COLOURS[finding.severity])
            for severity, line in findings.lines(*severities):
                bar.note(line, _COLOURS[severity])


def _tell(result: ImportResult, rehearsed: Path | None) -> None:
    """Print what was done, or, for a dry run, what would be done."""
    classes = ", ".join(f"{name} {count}" for name, count in result.classes.items())
    if result.codec_choice is not None:
        _tell_choice(result.codec_choice)
    if result.already_done:
        typer.echo(f"{result.target}: is already done, {result.volumes} volumes ({classes})")
        return
    if rehearsed is not None:
        from trainer.data.importing.import_work import complaint

        if result.left_out:
            total = result.volumes + len(result.left_out)
            typer.echo(complaint(str(rehearsed), result.left_out, total))
        typer.echo(
            f"{result.volumes} images can be imported ({classes}), {len(result.left_out)} cannot; "
            "nothing was written"
        )
        return
    kept = f", {result.kept} of them kept from before" if result.kept else ""
    typer.echo(f"{result.target}: {result.volumes} volumes ({classes}) in {result.seconds:.1f} s{kept}")
    typer.echo(
        f"{len(result.left_out)} images left out, {result.warnings} with warnings: "
        f"{result.target / 'qc.html'}"
    )


def _tell_part(result: ImportResult, part: str) -> None:
    kept = f", {result.kept} of them before" if result.kept else ""
    typer.echo(
        f"{result.target}: part {part}: {result.volumes + len(result.left_out)} images prepared in "
        f"{result.seconds:.1f} s{kept}; {len(result.left_out)} of them are bad"
    )
    typer.echo("When all parts are done, the same command without --part writes the shards.")


def _tell_choice(choice: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("codec", "MiB per volume", "read, ms", "decode, ms", "volumes/s")
    for row in choice["measured"]:
        table.add_row(
            row["codec"],
            f"{row['stored_bytes'] / 2**20:.2f}",
            f"{1e3 * row['read_s']:.2f}",
            f"{1e3 * row['decode_s']:.2f}",
            f"{row['volumes_per_s']:.0f}",
        )
    Console(highlight=False, markup=False).print(table)
    typer.echo(f"codec {choice['why']}")


def _as_json(result: ImportResult) -> dict[str, Any]:
    left_out = [
        {"source": image.identity[0], "findings": [finding.to_json() for finding in image.findings]}
        for image in result.left_out
    ]
    return {
        "shards": str(result.target),
        "volumes": result.volumes,
        "classes": result.classes,
        "left_out": left_out,
        "warnings": result.warnings,
        "kept": result.kept,
        "already_done": result.already_done,
        "seconds": round(result.seconds, 3),
        "content_hash": result.content_hash,
        "codec": result.codec,
        "codec_choice": result.codec_choice,
        "cohort": [finding.to_json() for finding in result.cohort_findings],
    }


class Findings:
    """Findings by kind, in the order of their first appearance."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def add(self, source: str, findings: Sequence[Finding]) -> None:
        """Add a finding about an image; notes are not shown."""
        for finding in findings:
            if finding.severity != "note":
                kind = (finding.severity, finding.code)
                self._kinds.setdefault(kind, []).append((source, finding.message))

    def lines(self, *severities: str) -> Iterator[tuple[str, str]]:
        """Return (severity, line): the count and the first three names; the message is that of the first
        image.
        """
        for (severity, code), images in self._kinds.items():
            if severity not in severities:
                continue
            source, message = images[0]
            if len(images) == 1:
                yield severity, f"{severity}: {source}: {message}"
            else:
                names = first_three(name for name, _ in images)
                alike = "" if len({said for _, said in images}) == 1 else "the first "
                yield severity, f"{severity}: {code}, {len(images)} images ({names}): {alike}{message}"
