"""Remove the slow change of brightness over a scan that coils leave.

N4: N. Tustison et al., IEEE Trans. Medical Imaging 29(6), 2010.
"""

from __future__ import annotations

import nibabel
import numpy as np

from trainer.data.images import foreground, resampling
from trainer.data.images.findings import warning

# The field is smooth: it is fitted on voxels of this edge, in mm.
_SPACING = 4.0
_ITERATIONS = (40, 40, 30)
_CONVERGED = 1e-3
# What is darker than all but this many percent of a scan is padding, or a few broken voxels.
_DARKEST = 0.1
# Of fewer voxels nothing is fitted.
_FEWEST = 1000


NOT_REMOVED = warning(
    "bias-field",
    "has no bias field that could be fitted, so that none was removed.",
    "Look at its brightness in qc.html.",
)


def corrected(data: np.ndarray, affine: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return (X, Y, Z) float32 from 0, divided by its bias field, whose mean over the foreground is 1.

    Beside it, whether there was one: where nothing stands out from the background, or no field can be fitted,
    data only come to begin at 0.

    Args:
        data: (X, Y, Z), finite.
        affine: (4, 4) of them, axes at right angles, voxel indices to mm.
    """
    x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(affine))
    raised = np.maximum(data - np.float32(np.percentile(data, _DARKEST)), 0)
    small = resampling.resample(raised, (x, y, z), _SPACING)
    inside = foreground.mask(small)
    if min(small.shape) < 4 or inside.sum() < _FEWEST or inside.all() or not np.ptp(small[inside]) > 0:
        return raised, False
    try:
        # N4 takes logarithms, and asks for values well above 1; the field does not depend on the scale.
        field = _field(small * np.float32(1000 / small[inside].mean(dtype=np.float64)), inside)
    except RuntimeError:  # of SimpleITK: none can be fitted
        return raised, False
    if not np.isfinite(field).all():
        return raised, False
    _divide(raised, field, (x, y, z))
    return raised, True


def _field(small: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the field of a scan on its own grid, float32."""
    import SimpleITK as sitk  # half a second, which only who prepares raw scans needs

    # Sums in one order, so that a scan comes out the same wherever it is prepared. Of the process: filters
    # inside of N4 are not told of the number of its own threads.
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    image, mask = sitk.GetImageFromArray(small), sitk.GetImageFromArray(inside.astype(np.uint8))
    for each in (image, mask):
        each.SetSpacing((_SPACING,) * 3)
    fitting = sitk.N4BiasFieldCorrectionImageFilter()
    fitting.SetMaximumNumberOfIterations(_ITERATIONS)
    fitting.SetConvergenceThreshold(_CONVERGED)
    fitting.Execute(image, mask)
    field = np.exp(sitk.GetArrayFromImage(fitting.GetLogBiasFieldAsImage(image)).astype(np.float32))
    return field / field[inside].mean(dtype=np.float64).astype(np.float32)


def _divide(data: np.ndarray, field: np.ndarray, voxel: tuple[float, float, float]) -> None:
    """Divide data with voxels of `voxel` mm, in place, by a coarse field about the same centre.

    The field is interpolated linearly, plane by plane: no further volume of the data's size is made.
    """
    places = [
        _between(length, size, coarse)
        for length, size, coarse in zip(data.shape, voxel, field.shape, strict=True)
    ]
    for axis in (1, 2):
        first, share = places[axis]
        share = share.reshape([-1 if other == axis else 1 for other in range(3)])
        field = np.take(field, first, axis) * (1 - share) + np.take(field, first + 1, axis) * share
    for plane, (first, share) in enumerate(zip(*places[0], strict=True)):
        data[plane] /= field[first] * (1 - share) + field[first + 1] * share


def _between(length: int, size: float, coarse: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each voxel of an axis the coarse voxel before it, and how far it lies towards the next."""
    places = (np.arange(length) - (length - 1) / 2) * (size / _SPACING) + (coarse - 1) / 2
    places = np.clip(places, 0, coarse - 1)
    first = np.minimum(places.astype(np.int64), coarse - 2)
    return first, (places - first).astype(np.float32)
