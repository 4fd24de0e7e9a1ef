"""A phantom cohort in the layout of an archive too, to try what reads a download from there.

ADNI: folders and columns are ADNI's; subjects are of sites that ADNI does not have. Everybody is seen at the
scan and 6, 12, 24, 36 and 48 months later.

Raw: as from a scanner, see `raw_scans`.

IXI, OASIS: names and columns are those of the archive; numbers of subjects are those after its last.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path

import nibabel
import numpy as np

from trainer.data.phantom import bids, dicom_series, files, raw_scans
from trainer.data.phantom.image import TISSUES
from trainer.data.phantom.people import Person
from trainer.errors import InputError

FOLDER = Path("sourcedata")
"""Below the cohort's: BIDS keeps there what is not in its own layout."""

_SITES = {"north": "991", "south": "992", "west": "993"}
_GROUPS = {"AD": "AD", "NC": "CN", "sMCI": "MCI", "pMCI": "MCI"}
_FIRST_DAY = date(2006, 1, 2)
_MONTHS = (0, 6, 12, 24, 36, 48)
_DESCRIPTION = "Phantom_MPRAGE"

_HOSPITALS = {"north": "Guys", "south": "HH", "west": "IOP"}
_FIRST_OF_IXI = 701
_OF_IXI = {"T1w": "T1", "T2w": "T2"}

_FIRST_OF_OASIS = 501
_RATINGS = {"NC": ("0",), "sMCI": ("0.5",), "pMCI": ("0.5",), "AD": ("0.5", "1")}


def write_ixi(cohort: Path, participants: Sequence[Person], contrasts: Sequence[str]) -> None:
    """Write `sourcedata/IXI/`, links to the cohort's images, and IXI.csv.

    Raises:
        InputError: the folder cannot be written.
    """
    for person in participants:
        made = bids.subject_files(person, tuple(contrasts))
        for contrast in contrasts:
            place = f"IXI-{_OF_IXI[contrast]}/{_ixi_name(person)}-{_OF_IXI[contrast]}.nii.gz"
            _link(cohort / made[contrast], cohort / FOLDER / "IXI" / place)
    _write_table(cohort / FOLDER / "IXI.csv", map(_ixi_row, participants))


def _ixi_name(person: Person) -> str:
    number = _FIRST_OF_IXI + person.number
    return f"IXI{number}-{_HOSPITALS[person.site]}-{number + 300:04d}"


def _ixi_row(person: Person) -> dict[str, str]:
    born = _scanned(person) - timedelta(days=round(person.age * 365.25))
    return {
        "IXI_ID": str(_FIRST_OF_IXI + person.number),
        "SEX_ID (1=m, 2=f)": {"M": "1", "F": "2"}[person.sex],
        "HEIGHT": "",
        "WEIGHT": "",
        "ETHNIC_ID": "",
        "MARITAL_ID": "",
        "OCCUPATION_ID": "",
        "QUALIFICATION_ID": "",
        "DOB": born.isoformat(),
        "DATE_AVAILABLE": "1",
        "STUDY_DATE": _scanned(person).isoformat(),
        "AGE": f"{person.age:.2f}",
    }


def write_oasis(cohort: Path, participants: Sequence[Person], contrasts: Sequence[str]) -> None:
    """Write `sourcedata/OASIS/`, the cohort's T1w images in the format Analyze, and OASIS.csv.

    Raises:
        InputError: the folder cannot be written.
    """
    for person in participants:
        name = _oasis_name(person)
        folder = cohort / FOLDER / "OASIS" / f"disc{1 + person.number // 40}" / name
        made = cohort / bids.subject_files(person, ("T1w",))["T1w"]
        _write_analyze(made, folder / "PROCESSED/MPRAGE/T88_111" / f"{name}_mpr_n4_anon_111_t88_masked_gfc")
    _write_table(cohort / FOLDER / "OASIS.csv", map(_oasis_row, participants))


def _oasis_name(person: Person) -> str:
    return f"OAS1_{_FIRST_OF_OASIS + person.number:04d}_MR1"


def _write_analyze(made: Path, to: Path) -> None:
    """Write an image as OASIS does: axes to the left, to the front and up; a fourth one of length 1."""
    upright = nibabel.as_closest_canonical(nibabel.load(made))
    voxels = np.asanyarray(upright.dataobj).astype(np.int16)[::-1, :, :, np.newaxis]
    header = nibabel.AnalyzeHeader()
    header.set_data_dtype(voxels.dtype)
    header.set_data_shape(voxels.shape)
    header.set_zooms((*upright.header.get_zooms()[:3], 1.0))
    files.write(to.with_suffix(".img"), voxels.tobytes(order="F"))
    files.write(to.with_suffix(".hdr"), header.binaryblock)


def _oasis_row(person: Person) -> dict[str, str]:
    ratings = _RATINGS[person.diagnosis]
    return {
        "ID": _oasis_name(person),
        "M/F": person.sex,
        "Hand": "R",
        "Age": f"{person.age:.0f}",
        "Educ": "",
        "SES": "",
        "MMSE": "",
        "CDR": ratings[person.number // 2 % len(ratings)],
        "eTIV": "",
        "nWBV": "",
        "ASF": "",
        "Delay": "N/A",
    }


def write_adni(cohort: Path, participants: Sequence[Person], contrasts: Sequence[str]) -> None:
    """Write `sourcedata/ADNI/`, links to the cohort's T1w images and tissue maps, and ADNI.csv and DXSUM.csv.

    Raises:
        InputError: the folder cannot be written.
    """
    for person in participants:
        place = _place(person)
        made = bids.subject_files(person, ("T1w",))
        _link(cohort / made["T1w"], cohort / FOLDER / "ADNI" / place / f"{person.name}_T1w.nii.gz")
        maps = cohort / FOLDER / "ADNI" / "derivatives" / "tissue" / place
        for tissue in TISSUES:
            _link(cohort / made[tissue], maps / Path(made[tissue]).name)
    _write_table(cohort / FOLDER / "ADNI.csv", map(_image_row, participants))
    visits = (_visit_row(person, months) for person in participants for months in _MONTHS)
    _write_table(cohort / FOLDER / "DXSUM.csv", visits)


def _subject(person: Person) -> str:
    return f"{_SITES[person.site]}_S_{person.number + 1:04d}"


def _image_id(person: Person) -> str:
    return f"I{9000001 + person.number}"


def _scanned(person: Person) -> date:
    return _FIRST_DAY + timedelta(days=person.number)


def _place(person: Person) -> Path:
    day = f"{_scanned(person).isoformat()}_09_00_00.0"
    return Path(_subject(person)) / _DESCRIPTION / day / _image_id(person)


def _image_row(person: Person) -> dict[str, str]:
    day = _scanned(person)
    return {
        "Image Data ID": _image_id(person),
        "Subject": _subject(person),
        "Group": _GROUPS[person.diagnosis],
        "Sex": person.sex,
        "Age": f"{person.age:.0f}",
        "Visit": "bl",
        "Modality": "MRI",
        "Description": _DESCRIPTION,
        "Type": "Processed",
        "Acq Date": f"{day.month}/{day.day}/{day.year}",
        "Format": "NiFTI",
        "Downloaded": "",
    }


def _visit_row(person: Person, months: int) -> dict[str, str]:
    seen = _scanned(person) + timedelta(days=round(months * 365.25 / 12))
    demented = {"AD": 0, "pMCI": _MONTHS[2 + person.number % 3]}.get(person.diagnosis)
    healthy = "1" if person.diagnosis == "NC" else "2"
    return {
        "PTID": _subject(person),
        "RID": str(person.number + 1),
        "VISCODE": f"m{months:02d}" if months else "bl",
        "EXAMDATE": seen.isoformat(),
        "DIAGNOSIS": "3" if demented is not None and months >= demented else healthy,
    }


def write_dicom(cohort: Path, participants: Sequence[Person], contrasts: Sequence[str]) -> None:
    """Write `sourcedata/DICOM/`, the cohort as a scanner's archive would leave it, and DICOM.csv with labels.

    Raises:
        InputError: the folder cannot be written.
    """
    dicom_series.write(cohort / FOLDER / "DICOM", cohort, participants, contrasts)
    rows = ({"subject": dicom_series.patient_id(one), "diagnosis": one.diagnosis} for one in participants)
    _write_table(cohort / FOLDER / "DICOM.csv", rows)


WRITERS = {
    "adni": write_adni,
    "dicom": write_dicom,
    "ixi": write_ixi,
    "oasis": write_oasis,
    "raw": raw_scans.write_raw,
}
"""What writes a cohort in the layout of an archive too, or as raw scans."""


def _link(made: Path, to: Path) -> None:
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            try:
                os.link(made, to)
            except OSError:  # a disk without hard links
                shutil.copyfile(made, to)
    except OSError as error:
        raise InputError(
            f"cannot write {to}: {error.strerror}", cure="choose a folder you may write to, with room"
        ) from error


def _write_table(path: Path, rows: Iterable[dict[str, str]]) -> None:
    listed = list(rows)
    text = io.StringIO()
    table = csv.DictWriter(text, list(listed[0]), quoting=csv.QUOTE_ALL, lineterminator="\n")
    table.writeheader()
    table.writerows(listed)
    files.write(path, text.getvalue().encode())
