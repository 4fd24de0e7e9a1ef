"""Pictures of maps on anatomy, as PNG: three planes, a mosaic of slices, a glass brain."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from scipy import ndimage

from trainer.explain.group import head

_DPI = 110
_SLICES = 15
_FAINT = 0.15  # of the scale: below, the anatomy shows through untouched


def scale_of(values: np.ndarray) -> float:
    """Return the upper end of the colour scale: the 99.8th percentile of the absolute values but 0; 1 for an
    empty map.
    """
    size = np.abs(values[values != 0])
    return float(np.percentile(size, 99.8)) if size.size else 1.0


def peak(values: np.ndarray, volume: np.ndarray) -> tuple[int, int, int]:
    """Return the voxel inside the brain about which most attribution lies: the maximum of the smoothed map's
    size.

    What a map has outside, the network's borders for example, would cut the head where there is nothing to
    see.

    Args:
        values: (D, H, W) map.
        volume: (D, H, W) anatomy on the same grid.
    """
    smooth = ndimage.gaussian_filter(np.abs(values.astype(np.float64)), 1.5)
    inside = head(volume)
    if inside.any():
        smooth = np.where(inside, smooth, -1.0)
    x, y, z = np.unravel_index(int(smooth.argmax()), smooth.shape)
    return int(x), int(y), int(z)


def three_planes(
    volume: np.ndarray, values: np.ndarray, voxel_size: tuple[float, float, float], title: str, unit: str
) -> bytes:
    """Draw a sagittal, a coronal and an axial slice through the map's peak in the brain; left is the
    subject's left.

    Args:
        volume: (D, H, W) anatomy, in RAS order.
        values: (D, H, W) map on the same grid.
        voxel_size: mm along D, H, W.
        title: above the picture.
        unit: of the map, beside its colour bar.
    """
    x, y, z = peak(values, volume)
    dx, dy, dz = voxel_size
    planes = [
        (volume[x], values[x], dz / dy, "sagittal"),
        (volume[:, y], values[:, y], dz / dx, "coronal"),
        (volume[:, :, z], values[:, :, z], dy / dx, "axial"),
    ]
    figure = Figure(figsize=(10.5, 4.0), facecolor="black")
    boxes = figure.subplots(
        1, 3, gridspec_kw={"left": 0.01, "right": 0.92, "bottom": 0.05, "top": 0.86, "wspace": 0.03}
    )
    look = _Look.of(volume, values)
    for axes, (anatomy, heat, aspect, name) in zip(boxes, planes, strict=True):
        look.draw(axes, anatomy, heat, aspect)
        axes.set_title(name, color="0.7", fontsize=9, pad=3)
        if name != "sagittal":
            for side, place in (("L", 0.03), ("R", 0.97)):
                axes.text(
                    place,
                    0.5,
                    side,
                    transform=axes.transAxes,
                    color="0.7",
                    ha="center",
                    va="center",
                    fontsize=9,
                )
    look.bar(figure, [0.935, 0.15, 0.014, 0.6], unit)
    figure.suptitle(title, color="white", fontsize=12, y=0.975)
    return _png(figure)


def mosaic(
    volume: np.ndarray, values: np.ndarray, voxel_size: tuple[float, float, float], title: str, unit: str
) -> bytes:
    """Return axial slices from the bottom of the brain to its top; arguments as for `three_planes`."""
    occupied = np.flatnonzero((volume > volume.min() + 0.2 * np.ptp(volume)).any(axis=(0, 1)))
    first, last = (int(occupied[0]), int(occupied[-1])) if occupied.size else (0, volume.shape[2] - 1)
    levels = np.linspace(first, last, _SLICES + 2).round().astype(int)[1:-1]
    rows = _SLICES // 5
    figure = Figure(figsize=(10.5, 2.1 * rows + 0.5), facecolor="black")
    boxes = figure.subplots(
        rows,
        5,
        gridspec_kw={
            "left": 0.01,
            "right": 0.92,
            "bottom": 0.01,
            "top": 0.92,
            "hspace": 0.03,
            "wspace": 0.03,
        },
    )
    look = _Look.of(volume, values)
    for axes, z in zip(np.ravel(boxes), levels, strict=True):
        look.draw(axes, volume[:, :, z], values[:, :, z], voxel_size[1] / voxel_size[0])
    look.bar(figure, [0.935, 0.2, 0.014, 0.6], unit)
    figure.suptitle(title, color="white", fontsize=12, y=0.985)
    return _png(figure)


def glass_brain(values: np.ndarray, affine: np.ndarray, title: str) -> bytes:
    """Return the map's extremes seen through a transparent MNI brain, from three sides (nilearn)."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    import nibabel
    from nilearn import plotting

    signed = bool((values < 0).any())
    limit = scale_of(values)
    image = nibabel.nifti1.Nifti1Image(values, affine)
    display = plotting.plot_glass_brain(
        image,
        display_mode="lyrz",
        colorbar=True,
        cmap="cold_hot" if signed else "hot_r",
        threshold=_FAINT * limit,
        vmax=limit,
        vmin=-limit if signed else 0,
        symmetric_cbar=signed,
        plot_abs=not signed,
        title=title,
    )
    file = io.BytesIO()
    display.frame_axes.figure.savefig(file, dpi=_DPI, facecolor="white")
    display.close()
    return file.getvalue()


class _Look:
    """Grey values and colours that all slices of one picture share."""

    def __init__(self, low: float, high: float, limit: float, colours: Colormap, signed: bool) -> None:
        self.grey = Normalize(low, high)
        self.heat = Normalize(-limit if signed else 0, limit)
        self.limit, self.colours = limit, colours

    @classmethod
    def of(cls, volume: np.ndarray, values: np.ndarray) -> _Look:
        low, high = (float(v) for v in np.percentile(volume, [1, 99.5]))
        signed = bool((values < 0).any())
        colours = colormaps["coolwarm" if signed else "inferno"]
        return cls(low, high if high > low else low + 1, scale_of(values), colours, signed)

    def draw(self, axes: Any, anatomy: np.ndarray, heat: np.ndarray, aspect: float) -> None:
        """Draw one slice: rows of the picture run downwards, the array's second axis upwards."""
        axes.imshow(
            anatomy.T, cmap="gray", norm=self.grey, origin="lower", aspect=aspect, interpolation="bilinear"
        )
        strength = np.clip((np.abs(heat.T) / self.limit - _FAINT) / (0.6 - _FAINT), 0, 1)
        coloured = self.colours(self.heat(heat.T))
        coloured[..., 3] = 0.75 * strength
        axes.imshow(coloured, origin="lower", aspect=aspect, interpolation="bilinear")
        axes.set_axis_off()

    def bar(self, figure: Figure, place: list[float], unit: str) -> None:
        """Draw the colour bar."""
        bar = figure.colorbar(ScalarMappable(self.heat, self.colours), cax=figure.add_axes(tuple(place)))  # type: ignore[arg-type]
        bar.ax.tick_params(colors="0.8", labelsize=8)
        bar.ax.set_title(unit, color="0.8", fontsize=8)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(file, dpi=_DPI, facecolor=figure.get_facecolor())
    return file.getvalue()
