"""A phantom cohort as a scanner's archive would leave it: DICOM files, with names and dates, of nobody.

Each person has a folder with a study: a localizer, the T1-weighted image and, where the cohort has it, the
T2-weighted one, in sagittal slices.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

from trainer.data.phantom import bids, files
from trainer.data.phantom.people import Person

NAME = "Mustermann^Mara"
"""Of every patient."""

_FIRST_DAY = date(2011, 3, 1)
_LOCALIZER = 3  # slices
_MEASURED: dict[str, dict[str, Any]] = {
    "localizer": {"RepetitionTime": 8.6, "EchoTime": 4.0, "FlipAngle": 20, "MRAcquisitionType": "2D"},
    "t1_mprage_sag": {
        "RepetitionTime": 2300, "EchoTime": 2.98, "InversionTime": 900, "FlipAngle": 9,
        "MRAcquisitionType": "3D",
    },
    "t2_space_sag": {"RepetitionTime": 3200, "EchoTime": 408, "FlipAngle": 120, "MRAcquisitionType": "3D"},
}  # fmt: skip
_SERIES = {"T1w": (2, "t1_mprage_sag"), "T2w": (3, "t2_space_sag")}


def patient_id(person: Person) -> str:
    """Return the id of a person in the headers."""
    return f"PH{person.number + 1:04d}"


def write(folder: Path, cohort: Path, participants: Sequence[Person], contrasts: Sequence[str]) -> None:
    """Write a folder for each person, named by its number, of a cohort that is there.

    Raises:
        InputError: the folder cannot be written.
    """
    for person in participants:
        made = bids.subject_files(person, tuple(contrasts))
        study = folder / f"person{person.number + 1:04d}" / "study"
        for contrast in contrasts:
            number, description = _SERIES[contrast]
            image = nibabel.as_closest_canonical(nibabel.load(cohort / made[contrast]))
            voxels = np.asanyarray(image.dataobj).astype(np.uint16)
            _write_series(study, person, number, description, voxels, image.affine)
            if contrast == "T1w":
                few = np.linspace(0, len(voxels) - 1, _LOCALIZER + 2).astype(int)[1:-1]
                _write_series(study, person, 1, "localizer", voxels, image.affine, few.tolist())


def _write_series(
    study: Path,
    person: Person,
    number: int,
    description: str,
    voxels: np.ndarray,
    affine: np.ndarray,
    slices: Sequence[int] | None = None,
) -> None:
    """Write sagittal slices, from left to right.

    Args:
        study: folder.
        person: who was scanned.
        number: of the series.
        description: of the series.
        voxels: (X, Y, Z) uint16, RAS.
        affine: (4, 4), voxel to mm, RAS.
        slices: which are written; None: all.
    """
    last_y, last_z = voxels.shape[1] - 1, voxels.shape[2] - 1
    for at, x in enumerate(range(len(voxels)) if slices is None else slices):
        place = study / f"series{number}" / f"IM{at + 1:04d}"
        if place.exists():
            continue
        right, front, up = (affine @ [x, last_y, last_z, 1.0])[:3]
        data = _header(person, number, description, at)
        data.ImageType = ["ORIGINAL", "PRIMARY", "M", *(["LOCALIZER"] if slices is not None else ["NORM"])]
        # Columns run to the back, rows down; DICOM counts to the left, to the back and up.
        data.ImageOrientationPatient = [0, 1, 0, 0, 0, -1]
        data.ImagePositionPatient = [_decimal(mm) for mm in (-right, -front, up)]
        edges = np.abs(np.diag(affine)[:3])
        data.PixelSpacing = [_decimal(edges[2]), _decimal(edges[1])]
        data.SliceThickness = _decimal(edges[0])
        pixels = np.ascontiguousarray(voxels[x][::-1, ::-1].T)
        data.Rows, data.Columns = pixels.shape
        data.PixelData = pixels.astype("<u2").tobytes()
        content = io.BytesIO()
        pydicom.dcmwrite(content, data, enforce_file_format=True)
        files.write(place, content.getvalue())


def _header(person: Person, number: int, description: str, at: int) -> Dataset:
    day = _FIRST_DAY + timedelta(days=person.number)
    born = day - timedelta(days=round(person.age * 365.25))
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = MRImageStorage
    data.SOPInstanceUID = _uid(person, number, at)
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    data.StudyInstanceUID, data.SeriesInstanceUID = _uid(person), _uid(person, number)
    data.FrameOfReferenceUID = _uid(person, 0)
    data.PatientName, data.PatientID, data.PatientSex = NAME, patient_id(person), person.sex
    data.PatientBirthDate = f"{born:%Y%m%d}"
    data.StudyDate = data.SeriesDate = data.AcquisitionDate = data.ContentDate = f"{day:%Y%m%d}"
    data.StudyTime = "090000"
    data.SeriesTime = data.AcquisitionTime = data.ContentTime = f"09{number:02d}00"
    data.StudyID, data.AccessionNumber, data.ReferringPhysicianName = "1", "", ""
    data.Modality, data.Manufacturer, data.ManufacturerModelName = "MR", "Cingulum", f"Phantom {person.site}"
    data.MagneticFieldStrength = 3
    data.SeriesNumber, data.AcquisitionNumber, data.InstanceNumber = number, 1, at + 1
    data.SeriesDescription = data.ProtocolName = description
    data.ScanningSequence, data.SequenceVariant, data.ScanOptions = ["GR", "IR"], "SP", ""
    data.PatientPosition = "HFS"
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 0
    for name, value in _MEASURED[description].items():
        setattr(data, name, value)
    return data


def _uid(person: Person, *numbers: int) -> str:
    """The same for the same arguments; the root is pydicom's."""
    return str(generate_uid(entropy_srcs=["phantom", repr(person), *map(str, numbers)]))


def _decimal(number: float) -> str:
    """A number of 16 characters at most, which is DICOM's decimal string."""
    return f"{number:.6f}"
