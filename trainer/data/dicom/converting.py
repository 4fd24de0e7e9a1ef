"""Convert chosen series by dcm2niix to a BIDS folder, in which no name and no date is left.

Li, Morgan, Ashburner, Smith, Rorden: The first step for neuroimaging data analysis: DICOM to NIfTI conversion
(doi 10.1016/j.jneumeth.2016.03.001).
"""

from __future__ import annotations

import gzip
import io
import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dcm2niix
import nibabel

from trainer import atomic
from trainer.data.dicom.choosing import SeriesVerdict
from trainer.data.dicom.people import DicomSession
from trainer.data.dicom.series import Series
from trainer.data.workers import held_back, in_order
from trainer.errors import InputError

_DESCRIPTION = {
    "Name": "converted from DICOM",
    "BIDSVersion": "1.10.0",
    "DatasetType": "raw",
    "GeneratedBy": [{"Name": "Cingulum", "Description": "cingulum dicom, 1"}],
}
# Of a NIfTI header: texts that dcm2niix fills, with the time of the scan among others.
_TEXTS = ("descrip", "aux_file", "db_name", "intent_name")
_LIMIT_S = 600.0
_HEADER = nibabel.Nifti1Header.template_dtype.itemsize
_JUDGED = ("subject", "session", "series", "description", "slices", "voxel_mm", "taken", "reason")


@dataclass(frozen=True)
class Conversion:
    """What became of a series that was taken.

    Attributes:
        stem: see `DicomSession`.
        failure: why it has no image; empty where it has one.
        is_kept: whether an earlier call made it.
    """

    stem: str
    failure: str = ""
    is_kept: bool = False


def convert(
    sessions: Sequence[DicomSession], out: Path, workers: int, show: Callable[[int, int], None]
) -> list[Conversion]:
    """Write the image of each session that has one, and tables; what is there already stays.

    Args:
        sessions: of all subjects.
        out: BIDS folder to make or to complete.
        workers: processes.
        show: is called with (images done, images).

    Raises:
        InputError: the folder holds something else, or cannot be written.
    """
    _claim(out)
    taken = [(session.stem, series) for session in sessions if (series := session.taken) is not None]
    conversions: list[Conversion] = []
    show(0, len(taken))
    with tempfile.TemporaryDirectory(prefix="cingulum-dicom-") as scratch:
        make = partial(_converted, out, Path(scratch))
        for one in in_order(make, taken, max(1, min(workers, len(taken)))):
            conversions.append(one)
            show(len(conversions), len(taken))
    _write_tables(sessions, {one.stem: one.failure for one in conversions}, out)
    return conversions


def left_behind(sessions: Sequence[DicomSession], out: Path) -> list[str]:
    """Return images of the folder that none of the sessions has: of files that are no longer there."""
    images = {session.stem + ".nii.gz" for session in sessions if session.taken is not None}
    found = (path.relative_to(out).as_posix() for path in out.glob("sub-*/ses-*/anat/*_T1w.nii.gz"))
    return sorted(name for name in found if name not in images)


def _claim(out: Path) -> None:
    """Write what says that the folder is ours.

    Raises:
        InputError: it is not empty, and not ours.
    """
    description, content = out / "dataset_description.json", json.dumps(_DESCRIPTION, indent=2) + "\n"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is no folder.", cure="Choose another one.", path=out)
    out.mkdir(parents=True, exist_ok=True)
    begun = atomic.beside(description)
    is_ours = description.is_file() and description.read_bytes() == content.encode()
    if not is_ours and any(entry != begun for entry in out.iterdir()):
        message = f"{out}: is not empty, and was not made from DICOM."
        raise InputError(message, cure="Choose a new folder.", path=out)
    atomic.write_text(description, content)
    atomic.write_text(out / ".bidsignore", "series.tsv\n")


def _converted(out: Path, scratch: Path, task: tuple[str, Series]) -> Conversion:
    stem, series = task
    image, sidecar = (out / f"{stem}{ending}" for ending in (".nii.gz", ".json"))
    facts = sidecar_of(series)
    if image.is_file() and _stored(sidecar) == facts:
        return Conversion(stem, is_kept=True)
    with held_back(signal.SIGTERM):  # else dcm2niix would go on alone
        content, failure = _by_dcm2niix(series, scratch)
    sidecar.unlink(missing_ok=True)  # it is written last, and says of what the image was made
    if content is None:
        image.unlink(missing_ok=True)  # of other files
        return Conversion(stem, failure)
    image.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(image, content)
    atomic.write_text(sidecar, json.dumps(facts, indent=2) + "\n")
    return Conversion(stem)


def _stored(sidecar: Path) -> Any:
    try:
        return json.loads(sidecar.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def sidecar_of(series: Series) -> dict[str, Any]:
    """Return what BIDS' sidecar says of a series: how was measured, and nothing of whom or when."""
    acquisition = series.acquisition
    facts = {
        "Modality": acquisition.modality,
        "MRAcquisitionType": acquisition.volume,
        "EchoTime": _seconds(series.key.echo_ms),
        "RepetitionTime": _seconds(acquisition.repetition_ms),
        "InversionTime": _seconds(acquisition.inversion_ms),
        "FlipAngle": acquisition.flip_degrees,
        "SliceThickness": acquisition.slice_mm,
        "Scanner": series.patient.without_names(acquisition.scanner),
        "SourceImages": len(series.files),
        "SourceSha256": series.sha256,
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1e3, 9)


def _by_dcm2niix(series: Series, scratch: Path) -> tuple[bytes | None, str]:
    """Return a compressed NIfTI file of a series, or None and why there is none."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        files, made = Path(folder) / "in", Path(folder) / "out"
        files.mkdir()
        made.mkdir()
        for number, file in enumerate(series.files):
            (files / f"{number:06d}.dcm").symlink_to(Path(file.path).absolute())
        command = [dcm2niix.bin, "-z", "n", "-b", "n", "-f", "image", "-o", str(made), str(files)]
        try:
            # What it prints is not shown: it may have a name in it.
            ended = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return None, f"dcm2niix took longer than {_LIMIT_S:g} s"
        images = sorted(made.glob("*.nii"))
        if len(images) != 1 or ended.returncode != 0:
            return None, f"dcm2niix made {len(images)} images of it, and ended with code {ended.returncode}"
        content = images[0].read_bytes()
        shape = nibabel.Nifti1Header(content[:_HEADER]).get_data_shape()
        if sorted(shape) != sorted((series.key.rows, series.key.columns, series.slices)):
            return None, f"dcm2niix made an image of {' x '.join(map(str, shape))} voxels of it"
        return _without_texts(content), ""


def _without_texts(content: bytes) -> bytes:
    """Return a NIfTI-1 file compressed, without texts and extensions; equal voxels are equal files."""
    header = nibabel.Nifti1Header(content[:_HEADER])
    voxels = content[int(header["vox_offset"]) :]
    for name in _TEXTS:
        header[name] = b""
    header["vox_offset"] = _HEADER + 4
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=packed, mtime=0) as file:
        file.write(header.binaryblock + bytes(4) + voxels)
    return packed.getvalue()


def _write_tables(sessions: Sequence[DicomSession], failures: dict[str, str], out: Path) -> None:
    """Write who was scanned, and what became of each series.

    Args:
        sessions: of all subjects.
        failures: of each series that was taken, why it has no image, or nothing.
        out: the BIDS folder.
    """
    people: dict[str, list[Sequence[str]]] = {}
    judged: list[tuple[str, ...]] = [_JUDGED]
    for session, verdict in outcomes(sessions, failures):
        cells = *described(verdict.series), "yes" if verdict.is_taken else "no", verdict.reason
        judged.append((session.subject, f"{session.number:02d}", *cells))
    for session in sessions:
        series = session.taken
        if series is not None and not failures[session.stem]:
            age, scanner = series.patient.age, series.patient.without_names(series.acquisition.scanner)
            row = series.patient.sex or "n/a", "n/a" if age is None else f"{age:g}", scanner or "n/a"
            people.setdefault(session.subject, []).append((f"ses-{session.number:02d}", *row))
    for subject, visits in people.items():
        rows = [(name, age, scanner) for name, _, age, scanner in visits]
        table = out / f"sub-{subject}" / f"sub-{subject}_sessions.tsv"
        _write(table, [("session_id", "age", "scanner"), *rows])
    _write(out / "series.tsv", judged)
    first = [(f"sub-{subject}", *visits[0][1:]) for subject, visits in people.items()]
    _write(out / "participants.tsv", [("participant_id", "sex", "age", "scanner"), *first])


def outcomes(
    sessions: Sequence[DicomSession], failures: Mapping[str, str]
) -> Iterator[tuple[DicomSession, SeriesVerdict]]:
    """Yield every series of every session, one that could not be converted as not taken.

    Args:
        sessions: of all subjects.
        failures: by the stem of a session, why its series has no image, or nothing.
    """
    for session in sessions:
        for verdict in session.verdicts:
            failure = failures.get(session.stem) if verdict.is_taken else None
            yield (
                session,
                SeriesVerdict(verdict.series, is_taken=False, reason=failure) if failure else verdict,
            )


def described(series: Series) -> tuple[str, str, str, str]:
    """Return number, description, slices and voxels in mm of a series, for people; `n/a` is not known."""
    number, voxel = series.acquisition.number, " x ".join(f"{edge:.3g}" for edge in series.voxel_mm)
    name = series.patient.without_names(series.acquisition.description) or "n/a"
    return "n/a" if number is None else str(number), name, str(series.slices), voxel or "n/a"


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    atomic.write_text(path, "".join("\t".join(row) + "\n" for row in rows))
