"""Prepare the array of a network from image files: the same way for import and for prediction.

1. Axes to RAS+ (nearest, no interpolation; sheared ones are resampled to right angles). 2. Resampled to
cubic voxels. 3. A cube cut out, or padded, about the head or brain. 4. Intensities clipped and standardised
over the foreground. 5. Rounded to the stored type.
Further contrasts of the same head are brought onto the grid of the first and standardised each on its own.

A recipe that prepares raw scans puts registration to the average brain (`linear`) in the place of 2 and 3:
the cube is the average brain's, the foreground the scan's brain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from trainer.data.images import contrasts, foreground, quality, reading, resampling
from trainer.data.images.findings import Finding, ImageFault, about, bad, note, warning
from trainer.data.images.linear import average_brain, bias_field, brain, registering, tissue
from trainer.data.images.linear.average_brain import FIELD_OF_VIEW
from trainer.data.images.linear.registering import Registration
from trainer.data.images.reading import Image
from trainer.data.images.recipe import Recipe
from trainer.data.images.resampling import Cut, Registered, filled, placed_on, resample
from trainer.data.shards import stored_types
from trainer.errors import ImageError

# Share of the foreground above the cube's lower face that may be cut off before a person should look.
_MOST_CUT = 0.02

_UNLIKE_A_SCAN = "Check that it is an intensity image, not a mask or a map of labels."


@dataclass(frozen=True)
class PreparedImage:
    """Result of a recipe on an image.

    Attributes:
        array: (D, H, W, C), rounded to the recipe's dtype, float32 where that is bfloat16 or int16; D runs
            left to right, H back to front, W bottom to top.
        affine: (4, 4) float64, from voxel indices (d, h, w) to millimetres in RAS+ space: that of the
            scan, or that of the average brain where the scan was registered to it.
        cut: how the cube was cut from the first image, its axes in RAS+.
        image_grid: shape (X, Y, Z) and affine (4, 4) of the first image as it is stored.
        report: the numbers: clip_low, clip_high, mean, standard_deviation, foreground_ml, cut_share; those of
            further contrasts under their names.
        findings: warnings and notes.
    """

    array: np.ndarray
    affine: np.ndarray
    cut: Cut
    report: dict[str, Any]
    findings: tuple[Finding, ...]
    image_grid: tuple[tuple[int, int, int], np.ndarray]


def prepare(path: Path | Sequence[Path], recipe: Recipe) -> PreparedImage:
    """Return the network's input, from one image file or from one for each contrast.

    Args:
        path: of the image; where the recipe has contrasts, the path of each in their order.
        recipe: what is to be made of it.

    Raises:
        ImageFault: (an ImageError) a file cannot be read or fails quality control.
        ImageError: there are more or fewer files than the recipe has contrasts.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    _check_count(paths, recipe)
    read = [checked(one, recipe) for one in paths]
    for one, (_, findings) in zip(paths, read, strict=True):
        for finding in findings:
            if finding.severity == "bad":
                raise ImageFault(one, finding)
    prepared = prepare_image(paths[0], read[0][0], recipe, [image for image, _ in read[1:]])
    found = [*read[0][1]]
    for name, (_, findings) in zip(recipe.contrasts[1:], read[1:], strict=True):
        found += [about(finding, f"its {name} image") for finding in findings]
    return replace(prepared, findings=(*found, *prepared.findings))


def checked(path: Path, recipe: Recipe) -> tuple[Image, list[Finding]]:
    """Return an image as it was stored, and the findings of quality control.

    Raises:
        ImageFault: it cannot be read.
    """
    image = reading.read(path, volume=recipe.volume, xform=recipe.xform)
    return image, quality.check(image, replace_not_finite=recipe.nan == "zero")


def _check_count(paths: Sequence[Path], recipe: Recipe) -> None:
    expected = max(1, len(recipe.contrasts))
    if len(paths) != expected:
        named = ", ".join(str(path) for path in paths) or "nothing"
        what = (
            f"one image of each contrast, {', '.join(recipe.contrasts)}" if expected > 1 else "a single image"
        )
        raise ImageError(
            f"{named}: {len(paths)} image{'s' * (len(paths) != 1)} given where the network takes {what}.",
            cure=f"Give {what}" + (", in this order." if expected > 1 else "."),
        )


def prepare_image(path: Path, image: Image, recipe: Recipe, others: Sequence[Image] = ()) -> PreparedImage:
    """Return the network's input from images that passed `quality.check`; `path` names them in errors.

    Args:
        path: of the first image.
        image: of the first contrast, which decides grid and cube.
        recipe: what is to be made of it.
        others: the image of each further contrast, in the recipe's order.
    """
    if recipe.prepare == "linear":
        return _prepare_registered(path, image, recipe, others)
    data, affine = quality.to_canonical(_finite(image, recipe))
    upright, its_affine = resampling.upright(data, affine)
    x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(its_affine))
    everywhere = None
    if upright is not data:  # what a sheared image does not reach must not count
        reached = np.isfinite(upright)
        everywhere = resample(reached.astype(np.float32), (x, y, z), recipe.spacing) > 0.5
        upright = filled(upright)
    resampled = resample(upright, (x, y, z), recipe.spacing)

    inside = foreground.mask(resampled)
    if not inside.any():
        raise ImageFault(
            path, bad("no-foreground", "nothing stands out from the background.", _UNLIKE_A_SCAN)
        )
    numbers = _intensities(path, resampled, inside, recipe, everywhere)
    start = foreground.crop_start(foreground.box(inside), recipe.size)
    cut = Cut(data.shape, affine, recipe.spacing, start, recipe.size)
    report: dict[str, Any] = {
        **numbers,
        "foreground_ml": round(float(inside.sum()) * recipe.spacing**3 / 1000, 3),
        **_cut(inside, start, recipe.size),
    }
    channels = [_standardised(resampled, numbers, cut)]
    findings = _remarks(report)
    for name, other in zip(recipe.contrasts[1:], others, strict=True):
        try:
            channel, report[name], seen = _further(path, name, other, inside, cut, recipe)
        except ImageFault as fault:
            raise ImageFault(path, about(fault.finding, f"its {name} image")) from None
        channels.append(channel)
        findings += seen
    array = stored_types.rounded(np.stack(channels, axis=-1), recipe.dtype)
    i, j, k = image.data.shape
    return PreparedImage(array, cut.cube_affine, cut, report, tuple(findings), ((i, j, k), image.affine))


def _prepare_registered(path: Path, image: Image, recipe: Recipe, others: Sequence[Image]) -> PreparedImage:
    """Return what `prepare_image` does, of raw scans."""
    data, affine = quality.to_canonical(_finite(image, recipe))
    upright, its_affine = resampling.upright(data, affine)
    try:
        place = registering.register(upright, its_affine)
    except np.linalg.LinAlgError:  # of an image in which there is nothing to follow
        raise ImageFault(path, bad("no-brain", "could not be registered.", _UNLIKE_A_SCAN)) from None
    findings = registering.judge(place)
    for finding in findings:
        if finding.severity == "bad":
            raise ImageFault(path, finding)
    cube = average_brain.cube_affine(recipe.size, recipe.spacing)
    cut = Cut(data.shape, affine, recipe.spacing, (0, 0, 0), recipe.size, Registered(place.world, cube))
    brain_on_cube = brain.on_cube(place.brain, recipe.size, cube)
    first = (place.placed, place.corrected, place.world @ its_affine)
    channel, numbers = _of_brain(path, first, place.brain, brain_on_cube, cut, recipe)
    report: dict[str, Any] = {**numbers, **_brain_numbers(place, recipe)}
    channels = [channel]
    fine = (FIELD_OF_VIEW / brain.SIZE, place.brain.shape, average_brain.affine_of(brain.SIZE))
    head = foreground.mask(filled(place.placed))
    for name, other in zip(recipe.contrasts[1:], others, strict=True):
        its_data, own = resampling.upright(*quality.to_canonical(_finite(other, recipe)))
        (corrected, is_corrected), placed = bias_field.corrected(filled(its_data), own), place.world @ own
        if not is_corrected:
            findings.append(about(bias_field.NOT_REMOVED, f"its {name} image"))
        try:
            on_grid = placed_on(corrected, placed, *fine)
            for finding in contrasts.judge(on_grid, head, (slice(None),) * 3, fine[0]):
                if finding.severity == "bad":
                    raise ImageFault(path, finding)
                findings.append(about(finding, f"its {name} image"))
            further = (on_grid, corrected, placed)
            channel, report[name] = _of_brain(path, further, place.brain, brain_on_cube, cut, recipe)
        except ImageFault as fault:
            raise ImageFault(path, about(fault.finding, f"its {name} image")) from None
        channels.append(channel)
    array = stored_types.rounded(np.stack(channels, axis=-1), recipe.dtype)
    i, j, k = image.data.shape
    findings += _remarks(report)
    return PreparedImage(array, cut.cube_affine, cut, report, tuple(findings), ((i, j, k), image.affine))


def _brain_numbers(place: Registration, recipe: Recipe) -> dict[str, Any]:
    """Return the report's numbers of a registered scan."""
    voxel = FIELD_OF_VIEW / brain.SIZE
    off = max(0, int(np.ceil((FIELD_OF_VIEW - recipe.size * recipe.spacing) / (2 * voxel) - 0.5)))
    kept = place.brain[(slice(off, brain.SIZE - off),) * 3].sum()
    total = float(place.brain.sum())
    cut_share = round(1 - float(kept) / max(1.0, total), 4)
    in_scan = total * voxel**3 / abs(float(np.linalg.det(place.world)))
    return {
        "foreground_ml": round(in_scan / 1000, 3),
        "cut_share": cut_share,
        "cut_share_above_neck": cut_share,
        "registration": place.to_json(),
        "tissue": tissue.volumes_ml(place.placed, place.brain, place.world),
    }


def _of_brain(
    path: Path,
    contrast: tuple[np.ndarray, np.ndarray, np.ndarray],
    its_brain: np.ndarray,
    brain_on_cube: np.ndarray,
    cut: Cut,
    recipe: Recipe,
) -> tuple[np.ndarray, dict[str, float]]:
    """Return a contrast on the cube, (D, H, W), standardised over the brain, and the numbers of that.

    Args:
        path: named in errors.
        contrast: on the grid of `brain.SIZE`, NaN outside; as it is stored, (X, Y, Z) without bias field; and
            the affine (4, 4) of that to mm of the average brain.
        its_brain: bool on the grid of `brain.SIZE`, of the first contrast.
        brain_on_cube: bool on the cube.
        cut: of the cube.
        recipe: what is to be made of it.
    """
    # The numbers are those of one grid, whatever the cube is: a larger one gives the same.
    seen, data, placed = contrast
    there = np.isfinite(seen)
    inside = its_brain & there
    if not inside.any():
        raise ImageFault(path, bad("no-brain", "shows no brain where the head lies.", _UNLIKE_A_SCAN))
    counted = inside if recipe.brain == "mask" else there
    numbers = _intensities(path, filled(seen), inside, recipe, everywhere=counted)
    on_cube = placed_on(data, placed, recipe.spacing, brain_on_cube.shape, cut.cube_affine)
    low = np.float32(numbers["clip_low"])
    kept = brain_on_cube if recipe.brain == "mask" else np.isfinite(on_cube)
    return _standardised(np.where(kept & np.isfinite(on_cube), on_cube, low), numbers, cut), numbers


def _further(
    path: Path, name: str, image: Image, inside: np.ndarray, cut: Cut, recipe: Recipe
) -> tuple[np.ndarray, dict[str, float], list[Finding]]:
    """Return a further contrast in the cube of the first, its numbers, and warnings about its place."""
    aligned = contrasts.align(_finite(image, recipe), inside.shape, cut.grid_affine, recipe.spacing)
    findings = contrasts.judge(aligned, inside, _bounds(cut.start, cut.size), recipe.spacing)
    for finding in findings:
        if finding.severity == "bad":
            raise ImageFault(path, finding)
    there = np.isfinite(aligned)
    aligned = filled(aligned)
    # Over the first's foreground and its own: Otsu's threshold leaves out what is dark in one contrast (CSF
    # in T1w), and may take in nothing else in another.
    both = there & (inside | foreground.mask(aligned))
    numbers = _intensities(path, aligned, both, recipe, everywhere=there)
    channel = _standardised(aligned, numbers, cut)
    return channel, numbers, [about(finding, f"its {name} image") for finding in findings]


def _finite(image: Image, recipe: Recipe) -> Image:
    if recipe.nan != "zero":
        return image
    return replace(image, data=np.nan_to_num(image.data, nan=0.0, posinf=0.0, neginf=0.0))


def _standardised(data: np.ndarray, numbers: dict[str, float], cut: Cut) -> np.ndarray:
    """Return the cube of one contrast, (D, H, W) float32, clipped and standardised."""
    cube = foreground.crop(data, cut.start, cut.size, numbers["clip_low"])
    cube = np.clip(cube, numbers["clip_low"], numbers["clip_high"])
    return (cube - np.float32(numbers["mean"])) / np.float32(numbers["standard_deviation"])


def _intensities(
    path: Path, data: np.ndarray, inside: np.ndarray, recipe: Recipe, everywhere: np.ndarray | None = None
) -> dict[str, float]:
    """Return the numbers of the normalisation, over the whole image: they do not depend on the crop."""
    low = float(np.percentile(data if everywhere is None else data[everywhere], recipe.low_percentile))
    high = float(np.percentile(data[inside], recipe.high_percentile))
    values = np.clip(data[inside], low, high).astype(np.float64)
    mean, deviation = float(values.mean()), float(values.std())
    if deviation <= 1e-6 * max(abs(low), abs(high)):
        raise ImageFault(
            path, bad("constant", "its foreground has the same value everywhere.", _UNLIKE_A_SCAN)
        )
    return {"clip_low": low, "clip_high": high, "mean": mean, "standard_deviation": deviation}


def _cut(inside: np.ndarray, start: tuple[int, int, int], size: int) -> dict[str, float]:
    """Return the share of the foreground, and of that above the cube's lower face, outside the cube."""
    total = int(inside.sum())
    kept = int(inside[_bounds(start, size)].sum())
    above = int(inside[:, :, max(0, start[2]) :].sum())
    return {
        "cut_share": round(1 - kept / total, 4),
        "cut_share_above_neck": round(1 - kept / max(1, above), 4),
    }


def _bounds(start: tuple[int, int, int], size: int) -> tuple[slice, ...]:
    """Return the part of the resampled image that the cube keeps."""
    return tuple(slice(max(0, first), max(0, first + size)) for first in start)


def _remarks(report: dict[str, Any]) -> list[Finding]:
    if report["cut_share_above_neck"] > _MOST_CUT:
        message = f"{100 * report['cut_share_above_neck']:.0f} % of its foreground lies outside the cube."
        return [
            warning("cropped", message, "Look at it in qc.html; a larger --spacing or --size takes in more.")
        ]
    if report["cut_share"] > _MOST_CUT:
        percent = f"{100 * report['cut_share']:.0f} %"
        return [note("neck", f"{percent} of its foreground, below the cube, was left out (neck).")]
    return []
