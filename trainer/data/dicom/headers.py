"""What headers of DICOM files say: which series a file belongs to, where it lies, and how it was acquired.

Keywords and units are those of DICOM PS3.6.
"""

from __future__ import annotations

import logging
import math
import re
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydicom
from pydicom.errors import InvalidDicomError

from trainer.data.dicom.patient import ScannedPerson, age_of, names_of

# What pydicom raises for values and files that are damaged.
_DAMAGED = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError, OverflowError, OSError,
    EOFError, RecursionError, struct.error,
)  # fmt: skip
_TAGS = (
    "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "Modality", "ImageType", "BodyPartExamined",
    "PatientID", "PatientName", "PatientBirthDate", "PatientSex", "PatientAge", "StudyDate", "StudyTime",
    "SeriesNumber", "InstanceNumber", "SeriesDescription", "ProtocolName", "MRAcquisitionType",
    "RepetitionTime", "EchoTime", "InversionTime", "FlipAngle", "MagneticFieldStrength", "Manufacturer",
    "ManufacturerModelName", "ContrastBolusAgent", "ContrastBolusVolume", "ContrastBolusAgentSequence",
    "SliceThickness", "PixelSpacing", "Rows", "Columns", "ImageOrientationPatient", "ImagePositionPatient",
    "ImagesInAcquisition", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
# The classes of MR images: of one image a file, enhanced, and enhanced in colour.
_MR_IMAGES = ("1.2.840.10008.5.1.4.1.1.4", "1.2.840.10008.5.1.4.1.1.4.1", "1.2.840.10008.5.1.4.1.1.4.3")
_NO_AGENTS = ("", "no", "none", "n", "0", "without", "ohne", "sans")


class SeriesKey(NamedTuple):
    """What the files of one image have in common: a series may hold several echoes and phases."""

    study: str
    series: str
    kind: tuple[str, ...]
    echo_ms: float | None
    orientation: tuple[float, ...]
    rows: int
    columns: int


@dataclass(frozen=True)
class Acquisition:
    """How an image was acquired: times in ms, angles in degrees, sizes in mm; None or empty: not said.

    Attributes:
        number: of the series in its study.
        description: of the series, for people; of the protocol, where the series has none.
        modality: such as MR.
        volume: `3D` or `2D`.
        repetition_ms: time from one excitation to the next, or from one inversion to the next.
        inversion_ms: time from an inversion to the middle of its readings.
        flip_degrees: of an excitation.
        scanner: manufacturer, model and field strength.
        body_part: such as HEAD.
        has_agent: whether a contrast agent was given.
        slice_mm: thickness of a slice.
        pixel_mm: edges of a pixel, down and to the right.
        expected: images of the acquisition.
    """

    number: int | None
    description: str
    modality: str
    volume: str
    repetition_ms: float | None
    inversion_ms: float | None
    flip_degrees: float | None
    scanner: str
    body_part: str
    has_agent: bool
    slice_mm: float | None
    pixel_mm: tuple[float, ...]
    expected: int | None


class SliceFile(NamedTuple):
    """A file: its unique id, its path, and where its images lie along the normal of their plane, in mm.

    `number` counts the images of a series; `stamp` is size and time of change in ns.
    """

    instance: str
    path: str
    positions: tuple[float, ...]
    number: int | None
    stamp: tuple[int, int]


@dataclass
class FolderHeaders:
    """What the files of a folder are.

    Attributes:
        series: by key, who and how, and its files.
        others: how many files are no DICOM images.
        damaged: how many DICOM files cannot be read; their names may be those of people.
        closed: how many folders may not be read.
    """

    series: dict[SeriesKey, tuple[ScannedPerson, Acquisition, list[SliceFile]]] = field(default_factory=dict)
    others: int = 0
    damaged: int = 0
    closed: int = 0

    def add(self, other: FolderHeaders) -> None:
        """Add what another folder has: a series may lie in several."""
        for key, (patient, acquisition, files) in other.series.items():
            self.series.setdefault(key, (patient, acquisition, []))[2].extend(files)
        self.others += other.others
        self.damaged += other.damaged
        self.closed += other.closed


def read_folder(folder: Path) -> FolderHeaders:
    """Read the headers of the files in a folder, not of those below it."""
    headers = FolderHeaders()
    # pydicom tells of odd values and files by their content and path, where names of people may be.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            paths = sorted(path for path in folder.iterdir() if path.is_file())
        except OSError:
            return FolderHeaders(closed=1)
        for path in paths:
            _read(path, headers)
    return headers


def _read(path: Path, headers: FolderHeaders) -> None:
    try:
        with path.open("rb") as file:
            # Old files begin with their first element, of group 8, in place of the preamble.
            is_bare = file.read(2) == b"\x08\x00"
        dataset = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(_TAGS), force=is_bare)
        orientation, positions = _place(dataset)
        key = _key(dataset, orientation)
        if key is None:
            of_class = dataset.file_meta.get("MediaStorageSOPClassUID")
            is_cut = not is_bare and "TransferSyntaxUID" not in dataset.file_meta
            if is_cut or of_class in _MR_IMAGES:
                headers.damaged += 1
            else:  # an index of a disc, a report, a protocol
                headers.others += 1
            return
        if key not in headers.series:
            headers.series[key] = _patient(dataset), _acquisition(dataset), []
        entry, number = path.stat(), _number(dataset, "InstanceNumber")
        whole, stamp = None if number is None else int(number), (entry.st_size, entry.st_mtime_ns)
        slice_file = SliceFile(_text(dataset, "SOPInstanceUID"), str(path), positions, whole, stamp)
        headers.series[key][2].append(slice_file)
    except InvalidDicomError:
        headers.others += 1
    except _DAMAGED:
        headers.damaged += 1


def _key(dataset: Any, orientation: tuple[float, ...]) -> SeriesKey | None:
    """Return what an image belongs to; None for what is no image."""
    rows, columns = _number(dataset, "Rows"), _number(dataset, "Columns")
    series = _text(dataset, "SeriesInstanceUID")
    if not (series and rows and columns and _text(dataset, "SOPInstanceUID")):
        return None
    return SeriesKey(
        _text(dataset, "StudyInstanceUID") or _text(dataset, "StudyDate") or series,
        series,
        _texts(dataset, "ImageType"),
        _echo_ms(dataset),
        tuple(round(number, 3) + 0.0 for number in orientation),
        int(rows),
        int(columns),
    )


def _patient(dataset: Any) -> ScannedPerson:
    patient_id = _text(dataset, "PatientID")
    born, day = (re.sub(r"\.", "", _text(dataset, name)) for name in ("PatientBirthDate", "StudyDate"))
    return ScannedPerson(
        id=patient_id,
        sex=_text(dataset, "PatientSex").upper(),
        age=age_of(_text(dataset, "PatientAge"), born, day),
        names=names_of(_text(dataset, "PatientName"), patient_id),
        born=born,
        scanned=(day, _text(dataset, "StudyTime")),
    )


def _acquisition(dataset: Any) -> Acquisition:
    number, expected = _number(dataset, "SeriesNumber"), _number(dataset, "ImagesInAcquisition")
    tesla = _number(dataset, "MagneticFieldStrength")
    scanner = [_text(dataset, "Manufacturer"), _text(dataset, "ManufacturerModelName")]
    measures = _nested(dataset, "PixelMeasuresSequence") or dataset
    timing = _nested(dataset, "MRTimingAndRelatedParametersSequence") or dataset
    prepared = _nested(dataset, "MRModifierSequence")
    inversion = _number(dataset, "InversionTime") if prepared is None else _number(prepared, "InversionTimes")
    return Acquisition(
        number=None if number is None else int(number),
        description=_text(dataset, "SeriesDescription") or _text(dataset, "ProtocolName"),
        modality=_text(dataset, "Modality"),
        volume=_text(dataset, "MRAcquisitionType"),
        repetition_ms=_number(timing, "RepetitionTime"),
        inversion_ms=inversion,
        flip_degrees=_number(timing, "FlipAngle"),
        scanner=" ".join(" ".join([*scanner, f"{tesla:.3g} T" if tesla else ""]).split()),
        body_part=_text(dataset, "BodyPartExamined").upper(),
        has_agent=_has_agent(dataset),
        slice_mm=_number(measures, "SliceThickness"),
        pixel_mm=_numbers(measures, "PixelSpacing"),
        expected=None if expected is None else int(expected),
    )


def _has_agent(dataset: Any) -> bool:
    if _text(dataset, "ContrastBolusAgent").casefold() not in _NO_AGENTS:
        return True
    return bool((_number(dataset, "ContrastBolusVolume") or 0.0) or dataset.get("ContrastBolusAgentSequence"))


def _place(dataset: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the directions of rows and columns, and where each image lies along the normal, in mm."""
    plane = _nested(dataset, "PlaneOrientationSequence") or dataset
    orientation = _numbers(plane, "ImageOrientationPatient")
    if len(orientation) != 6:
        return (), ()
    normal = np.cross(orientation[:3], orientation[3:])
    frames = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    places = [_item(frame, "PlanePositionSequence") for frame in frames] if frames else [dataset]
    origins = [() if place is None else _numbers(place, "ImagePositionPatient") for place in places]
    return orientation, tuple(float(normal @ origin) for origin in origins if len(origin) == 3)


def _echo_ms(dataset: Any) -> float | None:
    echo = _nested(dataset, "MREchoSequence")
    milliseconds = _number(dataset, "EchoTime") if echo is None else _number(echo, "EffectiveEchoTime")
    return None if milliseconds is None else round(milliseconds, 2)


def _nested(dataset: Any, name: str) -> Any | None:
    """Return an item that files of several images have once for all of them, or in each: then the first."""
    for groups in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        items = dataset.get(groups) or ()
        if items and (item := _item(items[0], name)) is not None:
            return item
    return None


def _item(dataset: Any, name: str) -> Any | None:
    items = dataset.get(name) or ()
    return items[0] if items else None


def _texts(dataset: Any, name: str) -> tuple[str, ...]:
    value = dataset.get(name)
    if value is None:
        return ()
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return tuple(text for one in values if (text := str(one).strip("\0 ")))


def _text(dataset: Any, name: str) -> str:
    return " ".join(_texts(dataset, name))


def _numbers(dataset: Any, name: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, _texts(dataset, name)))
    except ValueError:
        return ()
    return numbers if all(map(math.isfinite, numbers)) else ()


def _number(dataset: Any, name: str) -> float | None:
    numbers = _numbers(dataset, name)
    return numbers[0] if numbers else None
