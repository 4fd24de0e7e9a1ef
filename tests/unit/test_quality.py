"""Quality control finds what is wrong with a readable image, and says how to mend it."""

from __future__ import annotations

import numpy as np
import pytest
from made_images import affine, head, nifti

from trainer.data.images import quality, reading
from trainer.data.images.findings import Finding, bad, note, status, warning
from trainer.data.images.reading import Image


def image(data: np.ndarray | None = None, matrix: np.ndarray | None = None) -> Image:
    voxels = head() if data is None else data
    return Image(voxels, affine() if matrix is None else matrix, "Nifti1Image", voxels.shape, "<f4", True)


def found(checked: Image) -> dict[str, str]:
    return {finding.code: finding.severity for finding in quality.check(checked)}


def scaled(*voxel: float) -> np.ndarray:
    return affine(voxel)


def test_a_usual_image_has_no_findings():
    assert found(image(matrix=scaled(4, 4, 4))) == {}


def with_entry(value: float) -> np.ndarray:
    matrix = affine()
    matrix[0, 0] = value
    return matrix


CASES = {
    "NaN in the affine": (image(matrix=with_entry(np.nan)), "affine", "bad"),
    "infinite affine": (image(matrix=with_entry(np.inf)), "affine", "bad"),
    "singular affine": (image(matrix=with_entry(0.0)), "affine", "bad"),
    "all zero": (image(data=np.zeros((9, 9, 9), np.float32)), "all-zero", "bad"),
    "constant": (image(data=np.full((9, 9, 9), 5, np.float32)), "constant", "bad"),
    "mask": (image(data=(head() > 0).astype(np.float32)), "mask", "bad"),
    "map of labels": (image(data=np.round(head() / 100)), "few-values", "warning"),
    "all NaN": (image(data=np.full((9, 9, 9), np.nan, np.float32)), "not-finite", "bad"),
    "one infinite": (image(data=np.where(head() == head().max(), np.inf, head())), "not-finite", "bad"),
    "voxels in micrometres": (image(matrix=scaled(1000, 1000, 1000)), "extent", "bad"),
    "voxels in metres": (image(matrix=scaled(0.001, 0.001, 0.001)), "extent", "bad"),
    "tiny voxels": (image(matrix=scaled(0.2, 4, 4)), "voxel-size", "warning"),
    "large voxels": (image(matrix=scaled(6, 6, 6)), "voxel-size", "warning"),
    "flat voxels": (image(matrix=scaled(1, 1, 4.5)), "anisotropy", "warning"),
    "small field of view": (image(matrix=scaled(1, 1, 1)), "small-extent", "warning"),
    "left-handed": (image(matrix=scaled(-4, 4, 4)), "left-handed", "note"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_found(case):
    checked, code, severity = CASES[case]
    assert found(checked).get(code) == severity
    finding = next(f for f in quality.check(checked) if f.code == code)
    assert finding.message
    assert finding.cure or severity == "note"


def test_facts_survive_images_without_a_usable_affine_or_value():
    broken = quality.facts(image(data=np.full((9, 9, 9), np.nan, np.float32), matrix=with_entry(np.nan)))
    tree = broken.to_json()
    assert (tree["orientation"], tree["mean"], tree["voxel_mm"], tree["not_finite"]) == (
        "?",
        None,
        [None] * 3,
        729,
    )


def test_a_nifti_without_transform_codes_is_said_to_have_no_orientation(tmp_path):
    path = nifti(tmp_path / "a.nii")
    raw = bytearray(path.read_bytes())
    raw[252:256] = bytes(4)
    path.write_bytes(raw)
    assert "unoriented" in found(reading.read(path))


def test_the_content_hash_tells_images_apart_and_knows_copies():
    assert quality.content_sha256(image()) == quality.content_sha256(image())
    assert quality.content_sha256(image()) != quality.content_sha256(image(head(seed=1)))


def test_the_worst_finding_is_the_status():
    assert status([]) == status([note("a", "b")]) == "ok"
    assert status([note("a", "b"), warning("c", "d", "e")]) == "warning"
    assert status([warning("c", "d", "e"), bad("f", "g", "h")]) == "bad"
    finding = bad("f", "g", "h")
    assert Finding.from_json(finding.to_json()) == finding
