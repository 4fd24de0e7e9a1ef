"""Images of unsupported formats: listed beside the supported ones, so that none is left out unnoticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer.data.images.findings import Finding, warning
from trainer.data.sources.file_names import first_three

_DICOM = "DICOM"
_ITK = "Convert to NIfTI (ITK-SNAP, 3D Slicer, or SimpleITK's ReadImage and WriteImage) and import that."
# Suffixes of a format's files, and how to convert them. Of a header and its data only the header is listed.
_FORMATS: dict[str, tuple[tuple[str, ...], str]] = {
    _DICOM: ((".dcm", ".ima", ".dicom"), "Convert with `cingulum dicom DICOM-FOLDER BIDS` and import that."),
    "MetaImage (.mha, .mhd)": ((".mha", ".mhd"), _ITK),
    "NRRD (.nrrd, .nhdr)": ((".nrrd", ".nhdr"), _ITK),
    "Philips PAR/REC": ((".par",), "Convert with `dcm2niix -o FOLDER FILE.PAR` and import that."),
    "AFNI (.HEAD, .BRIK)": ((".head",), "Convert with AFNI's `3dAFNItoNIFTI` and import that."),
    "MRtrix (.mif)": ((".mif", ".mif.gz", ".mih"), "Convert with `mrconvert FILE.mif FILE.nii.gz`."),
    "ECAT (.v)": ((".v",), "Convert to NIfTI (FreeSurfer's `mri_convert`) and import that."),
    "archives (.zip, .tar)": ((".zip", ".tar", ".tar.gz", ".tgz", ".7z"), "Unpack them and import again."),
}
# DICOM's magic word stands after a preamble of 128 bytes (DICOM PS3.10, 7.1).
_MAGIC_AT, _MAGIC = 128, b"DICM"


def unread_formats(folders: Iterable[Path], root: Path) -> list[Finding]:
    """Return a warning for each unsupported format in the folders, the most frequent first.

    Args:
        folders: looked through with all below them; hidden files and folders are not.
        root: names are given relative to it.
    """
    by_format: dict[str, list[str]] = {}
    for folder in folders:
        for path in _files(folder):
            kind = _format(path)
            if kind is not None:
                by_format.setdefault(kind, []).append(path.relative_to(root).as_posix())
    ordered = sorted(by_format.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_said(kind, sorted(names)) for kind, names in ordered]


def _said(kind: str, names: list[str]) -> Finding:
    several = len(names) > 1
    what = f"{len(names)} file{'s' * several} of {kind} {'are' if several else 'is'} not read"
    return warning(
        "other-format", f"{what}: {first_three(names)}{'' if len(names) > 3 else '.'}", _FORMATS[kind][1]
    )


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file():
            yield path


def _format(path: Path) -> str | None:
    name = path.name.lower()
    for kind, (endings, _) in _FORMATS.items():
        if name.endswith(endings):
            return kind
    # Scanners leave DICOM files without a suffix, or with part of a number in its place.
    ending = path.suffix[1:]
    return _DICOM if (not ending or ending.isdigit()) and _starts_like_dicom(path) else None


def _starts_like_dicom(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(_MAGIC_AT)
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:  # what cannot be read is not known to be an image
        return False
