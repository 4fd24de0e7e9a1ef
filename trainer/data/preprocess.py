"""From an image file to the array a network sees: the one way, for import and for prediction alike.

1. Axes to RAS+ (nearest, no interpolation). 2. Resampled to cubic voxels. 3. A cube cut out, or padded,
about the head or brain. 4. Intensities clipped and standardised over the foreground. 5. Cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from trainer.data import foreground, quality, reading
from trainer.data.findings import Finding, ImageFault, bad, note, warning
from trainer.data.reading import Image
from trainer.data.resampling import resample, resampled_affine
from trainer.errors import ConfigError

# Length of the default cube's edge. An adult brain is at most about 180 mm long (ICBM152: 145 x 180 x 150).
DEFAULT_EXTENT_MM = 192.0

# Share of the foreground above the cube's lower face that may be cut off before a person should look.
_MOST_CUT = 0.02

_UNLIKE_A_SCAN = "Check that it is an intensity image, not a mask or a map of labels."


@dataclass(frozen=True)
class Recipe:
    """All that decides what is made of an image. The same recipe and the same file give the same bytes.

    Attributes:
        size: edge of the cube in voxels: D = H = W.
        spacing: edge of a voxel in mm.
        dtype: type stored, 'float16' or 'float32'.
        normalisation: 'zscore': values are clipped to the `low_percentile` of the resampled image and the
            `high_percentile` of its foreground, then the foreground's mean is subtracted and the result
            divided by the foreground's standard deviation.
        foreground: 'otsu': the largest connected part brighter than Otsu's threshold.
        volume: which volume of four-dimensional images, from 0; None refuses them.
        nan: 'refuse' images with NaN or infinite values, or make them 'zero'.
    """

    size: int
    spacing: float
    dtype: str = "float16"
    normalisation: str = "zscore"
    foreground: str = "otsu"
    low_percentile: float = 0.5
    high_percentile: float = 99.5
    volume: int | None = None
    nan: str = "refuse"
    version: int = 1

    def __post_init__(self) -> None:
        allowed: dict[str, Sequence[Any]] = {
            "dtype": ("float16", "float32"),
            "normalisation": ("zscore",),
            "foreground": ("otsu",),
            "nan": ("refuse", "zero"),
            "version": (1,),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                known = ", ".join(repr(value) for value in values)
                raise ConfigError(
                    f"preprocessing: {name} is {getattr(self, name)!r}; known are {known}.",
                    cure=f"Use {known}.",
                )
        if not 8 <= self.size <= 512:
            raise ConfigError(
                f"preprocessing: size is {self.size}.",
                cure="Give an edge of 8 to 512 voxels, such as --size 96.",
            )
        if not 0.1 <= self.spacing <= 20:
            raise ConfigError(
                f"preprocessing: spacing is {self.spacing} mm.",
                cure="Give 0.1 to 20 mm, such as --spacing 2.",
            )

    @classmethod
    def of_size(cls, size: int, **others: Any) -> Recipe:
        """The recipe whose cube of `size` voxels covers 192 mm."""
        return cls(size=size, spacing=DEFAULT_EXTENT_MM / size if size else 0.0, **others)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(D, H, W, C) of what comes out."""
        return (self.size, self.size, self.size, 1)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Recipe:
        """The inverse of `to_json`.

        Raises:
            ConfigError: an unknown key, or one missing that has no default (made by another version).
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(tree) - known):
            raise ConfigError(
                f"preprocessing: unknown key {unknown[0]!r}.",
                cure="It was made by a newer version: update cingulum, or import again.",
            )
        if missing := sorted({"size", "spacing"} - set(tree)):
            raise ConfigError(f"preprocessing: {missing[0]!r} is missing.", cure="Import the images again.")
        return cls(**tree)


@dataclass(frozen=True)
class Prepared:
    """What a recipe makes of an image.

    Attributes:
        array: (D, H, W, C) of the recipe's dtype; D runs left to right, H back to front, W bottom to top.
        affine: (4, 4) float64, from voxel indices (d, h, w) to millimetres in RAS+ space.
        report: the numbers: clip_low, clip_high, mean, standard_deviation, foreground_ml, cut_share.
        findings: warnings and notes.
    """

    array: np.ndarray
    affine: np.ndarray
    report: dict[str, Any]
    findings: tuple[Finding, ...]


def prepare(path: Path, recipe: Recipe) -> Prepared:
    """Read one image file and make of it what a network sees.

    Raises:
        ImageFault: (an ImageError) the file cannot be read or fails quality control.
    """
    image = reading.read(path, volume=recipe.volume)
    findings = quality.check(image, replace_not_finite=recipe.nan == "zero")
    for finding in findings:
        if finding.severity == "bad":
            raise ImageFault(path, finding)
    prepared = prepare_image(path, image, recipe)
    return Prepared(prepared.array, prepared.affine, prepared.report, (*findings, *prepared.findings))


def prepare_image(path: Path, image: Image, recipe: Recipe) -> Prepared:
    """Like `prepare`, for an image that was read and passed `quality.check`; `path` names it in errors."""
    data, affine = quality.to_canonical(image)
    if recipe.nan == "zero":
        data = np.nan_to_num(data, nan=0.0, posinf=0.0, neginf=0.0)
    x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(affine))
    resampled = resample(data, (x, y, z), recipe.spacing)
    affine = resampled_affine(affine, data.shape, resampled.shape, (x, y, z), recipe.spacing)

    inside = foreground.mask(resampled)
    if not inside.any():
        raise ImageFault(
            path, bad("no-foreground", "nothing stands out from the background.", _UNLIKE_A_SCAN)
        )
    numbers = _intensities(path, resampled, inside, recipe)
    start = foreground.crop_start(foreground.box(inside), recipe.size)
    cube = foreground.crop(resampled, start, recipe.size, numbers["clip_low"])
    cube = np.clip(cube, numbers["clip_low"], numbers["clip_high"])
    cube = (cube - np.float32(numbers["mean"])) / np.float32(numbers["standard_deviation"])
    affine[:3, 3] += affine[:3, :3] @ np.array(start, dtype=np.float64)
    report = {
        **numbers,
        "foreground_ml": round(float(inside.sum()) * recipe.spacing**3 / 1000, 3),
        **_cut(inside, start, recipe.size),
    }
    return Prepared(cube.astype(recipe.dtype)[..., None], affine, report, tuple(_remarks(report)))


def _intensities(path: Path, data: np.ndarray, inside: np.ndarray, recipe: Recipe) -> dict[str, float]:
    """The numbers of the normalisation; over the whole image, so that they do not depend on the crop."""
    low = float(np.percentile(data, recipe.low_percentile))
    high = float(np.percentile(data[inside], recipe.high_percentile))
    values = np.clip(data[inside], low, high).astype(np.float64)
    mean, deviation = float(values.mean()), float(values.std())
    if deviation <= 1e-6 * max(abs(low), abs(high)):
        raise ImageFault(
            path, bad("constant", "its foreground has the same value everywhere.", _UNLIKE_A_SCAN)
        )
    return {"clip_low": low, "clip_high": high, "mean": mean, "standard_deviation": deviation}


def _cut(inside: np.ndarray, start: tuple[int, int, int], size: int) -> dict[str, float]:
    """Which share of the foreground, and of that above the cube's lower face, lies outside the cube."""
    total = int(inside.sum())
    bounds = [slice(max(0, first), max(0, first + size)) for first in start]
    kept = int(inside[tuple(bounds)].sum())
    above = int(inside[:, :, max(0, start[2]) :].sum())
    return {
        "cut_share": round(1 - kept / total, 4),
        "cut_share_above_neck": round(1 - kept / max(1, above), 4),
    }


def _remarks(report: dict[str, Any]) -> list[Finding]:
    if report["cut_share_above_neck"] > _MOST_CUT:
        message = f"{100 * report['cut_share_above_neck']:.0f} % of its foreground lies outside the cube."
        return [
            warning(
                "cropped", message, "Look at it in the sheet; a larger --spacing or --size takes in more."
            )
        ]
    if report["cut_share"] > _MOST_CUT:
        return [
            note(
                "neck",
                f"{100 * report['cut_share']:.0f} % of its foreground, below the cube, was left out (neck).",
            )
        ]
    return []
