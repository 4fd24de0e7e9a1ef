"""A download from ADNI's archive, made up: folders, the collection's CSV and diagnoses over visits."""

from __future__ import annotations

from pathlib import Path

from made_images import nifti

COLUMNS = (
    "Image Data ID", "Subject", "Group", "Sex", "Age", "Visit", "Modality", "Description", "Type", "Acq Date",
    "Format", "Downloaded",
)  # fmt: skip


def image(root: Path, number: int, subject: str, day="2006-04-18", folder: str | None = None) -> Path:
    """Write the image I<number> of a subject, scanned on a day, where the archive would pack it."""
    place = root / subject / "MP-RAGE" / f"{day}_08_20_30.0" / (folder or f"I{number}")
    return nifti(place / f"ADNI_{subject}_MR_MP-RAGE_Br_S13408_I{number}.nii", seed=number)


def row(number: int, subject: str, group: str, day="4/18/2006", **other: str) -> dict[str, str]:
    """The row of an image in the CSV of its collection."""
    said = dict.fromkeys(COLUMNS, "") | {"Image Data ID": f"I{number}", "Subject": subject, "Group": group}
    return said | {"Sex": "F", "Age": "71", "Modality": "MRI", "Acq Date": day} | other


def collection(path: Path, *rows: dict[str, str]) -> Path:
    """Write the CSV of a collection, all cells in quotes, as the archive does."""
    path.write_text(",".join(f'"{name}"' for name in COLUMNS) + "\n")
    add(path, *rows)
    return path


def add(table: Path, *rows: dict[str, str]) -> None:
    """Add rows to the CSV of a collection."""
    lines = [",".join(f'"{cells[name]}"' for name in COLUMNS) + "\n" for cells in rows]
    table.write_text(table.read_text() + "".join(lines))


def download(folder: Path) -> tuple[Path, Path]:
    """Write a download of AD, CN and MCI, one scan each; returns its folder and its CSV."""
    people = [("002_S_0001", "AD"), ("002_S_0002", "CN"), ("011_S_0003", "MCI"), ("011_S_0004", "LMCI")]
    for number, (subject, _) in enumerate(people, 101):
        image(folder / "ADNI", number, subject)
    rows = [row(number, *person) for number, person in enumerate(people, 101)]
    return folder / "ADNI", collection(folder / "collection.csv", *rows)


def visits(path: Path, *lines: str, columns="RID,VISCODE,EXAMDATE,DIAGNOSIS") -> Path:
    """Write a table of diagnoses over visits."""
    path.write_text("\n".join([columns, *lines]) + "\n")
    return path
