"""A phantom cohort in the layout of ADNI's archive too, to try what reads a download from there.

Folders and columns are ADNI's; subjects are of sites that ADNI does not have. Everybody is seen at the scan
and 6, 12, 24, 36 and 48 months later.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path

from trainer.data.phantom import bids, files
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


def write(cohort: Path, participants: Sequence[Person]) -> None:
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
