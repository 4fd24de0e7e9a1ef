"""`cingulum dicom`: from DICOM files to a BIDS folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from trainer.data.dicom.converting import Conversion
    from trainer.data.dicom.headers import FolderHeaders
    from trainer.data.dicom.people import DicomCohort, DicomSession

_MOST_ROWS = 20


def dicom(
    source: Annotated[
        Path, typer.Argument(help="Folder of DICOM files, with all below it.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="BIDS folder to make or to complete.", show_default=False)],
    subject: Annotated[
        Literal["id", "folder"],
        typer.Option(help="What tells people apart: the patient's id, or their folder in SOURCE."),
    ] = "id",
    subject_table: Annotated[
        Path | None,
        typer.Option(help="CSV from these (column id) to labels (column subject).", show_default=False),
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option(help="Take the series of this description, such as '*MPRAGE*'; the first counts most."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="Also write who is who, with days, to this private CSV.", show_default=False),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be taken; write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The outcome as JSON on standard output.")] = False,
) -> None:
    """Find the T1-weighted series of each study, and convert it to a BIDS folder for `cingulum import`.

    OUT/series.tsv says of every series why it was taken or not. No name and no date is written: sessions are
    numbered, ages are in years. After a stop, the same command goes on.

    \b
    Example:
      cingulum dicom archive bids --dry-run
      cingulum dicom archive bids --subject folder --series '*MPRAGE*'
    """
    import json

    from trainer.data.dicom import converting, people
    from trainer.data.workers import default_workers
    from trainer.errors import CohortError, InputError, Stopped
    from trainer.progress import Counting
    from trainer.ranks.stopping import ended_by_signals

    workers = default_workers() if workers is None else workers
    if workers < 1:
        raise InputError(f"--workers {workers} is less than 1.", cure="Give --workers 1 or more.")
    if key is not None and out.absolute() in key.absolute().parents:
        raise InputError(f"--key {key}: it would be in {out}.", cure="Keep who is who in another folder.")
    stopped = Stopped("It was asked to stop.", cure="Run the same command again: it goes on from there.")
    conversions: list[Conversion] | None = None
    with ended_by_signals(stopped):
        with Counting("reading headers", "folders") as bar:
            headers = _headers(source, workers, bar.show)
        cohort = _cohort(headers, source, subject, subject_table, series or [])
        if not dry_run:
            with Counting("converting", "images") as bar:
                conversions = converting.convert(cohort.sessions, out, workers, bar.show)
            if all(one.failure for one in conversions):
                raise CohortError(
                    f"{source}: no series could be converted: {conversions[0].failure}.",
                    cure="Run dcm2niix on one of them to see what it says.",
                )
            if key is not None:
                people.write_key(cohort.sessions, key)
    warnings = list(_warnings(cohort, headers, conversions, out))
    if as_json:
        typer.echo(json.dumps(_as_json(cohort.sessions, conversions, out, warnings), indent=1))
        return
    for line in warnings:
        typer.secho(f"warning: {line}", fg="yellow", err=True)
    if conversions is None:
        _show(cohort.sessions)
        return
    made = [one for one in conversions if not one.failure]
    subjects, kept = len({one.stem.split("/")[0] for one in made}), sum(one.is_kept for one in made)
    before = f", {kept} of them from before" if kept else ""
    typer.echo(f"{out}: {len(made)} T1w images of {subjects} subjects{before}; {out / 'series.tsv'} says why")


def _headers(source: Path, workers: int, show: Callable[[int, int], None]) -> FolderHeaders:
    from trainer.data.dicom import series
    from trainer.errors import CohortError

    if not source.is_dir():
        cure = "Give a folder of DICOM files."
        raise CohortError(f"{source}: there is no such folder.", cure=cure, path=source)
    headers = series.read(source, workers, show)
    if not headers.series:
        raise CohortError(
            f"{source}: holds no DICOM images; {headers.others} files are others, {headers.damaged} damaged.",
            cure="Give the folder that they are in; `cingulum import` reads NIfTI.",
        )
    return headers


def _cohort(
    headers: FolderHeaders,
    source: Path,
    subject: Literal["id", "folder"],
    table: Path | None,
    patterns: list[str],
) -> DicomCohort:
    """Return the sessions of a folder, of which one has an image at least."""
    from trainer.data.dicom import people, series
    from trainer.errors import CohortError

    listed = series.series_of(headers)
    cohort = people.cohort(listed, source, by=subject, table=table, patterns=patterns)
    if not any(session.taken for session in cohort.sessions):
        raise CohortError(
            f"{source}: none of {len(listed)} series is a T1-weighted image: {_reasons(cohort.sessions)}.",
            cure="Name it, such as --series '*MPRAGE*'; docs/how-to/dicom.md has the rules.",
        )
    return cohort


def _reasons(sessions: Sequence[DicomSession]) -> str:
    verdicts = (verdict for session in sessions for verdict in session.verdicts if not verdict.is_taken)
    counts = Counter(verdict.reason for verdict in verdicts)
    most = ", ".join(f"{count} x {reason}" for reason, count in counts.most_common(3))
    return most + (", ..." if len(counts) > 3 else "")


def _warnings(
    cohort: DicomCohort, headers: FolderHeaders, conversions: list[Conversion] | None, out: Path
) -> Iterator[str]:
    from trainer.data.dicom import converting
    from trainer.data.sources.file_names import first_three

    yield from cohort.doubts
    for count, what in (
        (headers.damaged, "DICOM files cannot be read"),
        (headers.closed, "folders may not be read"),
        (headers.others, "files are no DICOM images"),
    ):
        if count:
            yield f"{count} {what}"
    for one in conversions or ():
        if one.failure:
            yield f"{one.stem.split('/')[-1]}: {one.failure}"
    doubted: dict[str, list[str]] = {}
    for session in cohort.sessions:
        for verdict in session.verdicts:
            if verdict.is_taken and verdict.reason:
                doubted.setdefault(verdict.reason, []).append(session.name)
    for reason, names in doubted.items():
        yield f"{len(names)} images are taken that should be looked at ({first_three(names)}): {reason}"
    without = [session for session in cohort.sessions if session.taken is None]
    if without:
        names = [session.name for session in without]
        yield f"{len(names)} sessions have no T1-weighted image ({first_three(names)}): {_reasons(without)}"
    if conversions is not None and (more := converting.left_behind(cohort.sessions, out)):
        yield f"{len(more)} images in {out} are of files that are no longer there: {first_three(more)}"


def _show(sessions: Sequence[DicomSession]) -> None:
    from rich.console import Console
    from rich.table import Table

    from trainer.data.dicom.converting import described

    table = Table("subject", "session", "series", "description", "slices", "voxel, mm")
    taken = [(session, series) for session in sessions if (series := session.taken) is not None]
    for session, series in taken[:_MOST_ROWS]:
        table.add_row(session.subject, f"{session.number:02d}", *described(series))
    Console(highlight=False, markup=False).print(table)
    more = f", of which {_MOST_ROWS} are shown" if len(taken) > _MOST_ROWS else ""
    typer.echo(f"{len(taken)} images can be converted{more}; nothing was written")
    if reasons := _reasons(sessions):
        typer.echo(f"not taken: {reasons}")


def _as_json(
    sessions: Sequence[DicomSession], conversions: list[Conversion] | None, out: Path, warnings: list[str]
) -> dict[str, Any]:
    from trainer.data.dicom.converting import described, outcomes

    failures = {one.stem: one.failure for one in conversions or ()}
    rows = []
    for session, verdict in outcomes(sessions, failures):
        number, description, slices, voxel = described(verdict.series)
        row = {"subject": session.subject, "session": session.number, "series": number}
        row |= {"description": description, "slices": int(slices), "voxel_mm": voxel}
        rows.append({**row, "taken": verdict.is_taken, "reason": verdict.reason})
    made = sum(not failure for failure in failures.values())
    return {"bids": str(out), "images": made, "series": rows, "warnings": warnings}
