"""How training volumes are changed at random: one section for each kind of change, and presets of them.

Names of the changes as in TorchIO and MONAI. Lengths are in millimetres, so that a configuration means the
same for volumes of any resolution; intensities are in units of the normalised volume, whose foreground has
the standard deviation 1.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainer.config.section import Section

# Cubic B-splines whose coefficients stay below this share of their spacing fold nothing: Choi and Lee,
# Injectivity conditions of 2D and 3D uniform cubic B-spline functions (Graphical Models 2000), 1 / 2.4795.
MOST_ELASTIC = 0.4


class ChangeConfig(Section):
    """A change of some samples only. `words` say in the methods of a paper what happens to an image."""

    probability: float = Field(0.0, ge=0, le=1, description="probability of changing a sample")


class ChannelChange(Section):
    """A change of intensities, drawn for each channel of a sample anew; `words` as of `ChangeConfig`."""

    probability: float = Field(0.0, ge=0, le=1, description="probability of changing a channel of a sample")


class MirrorConfig(Section):
    """Mirrored along each axis independently. Mind labels that name a side."""

    left_right: float = Field(0.0, ge=0, le=1, description="probability of swapping left and right")
    back_front: float = Field(0.0, ge=0, le=1, description="probability of swapping back and front")
    bottom_top: float = Field(0.0, ge=0, le=1, description="probability of swapping bottom and top")


class AffineConfig(ChangeConfig):
    """Rotated, scaled, sheared and moved, about the middle of the volume."""

    words: ClassVar[str] = "rotated, scaled, sheared and moved"

    rotate: float = Field(10.0, ge=0, le=180, description="largest angle about each axis, in degrees")
    scale: float = Field(
        0.1, ge=0, lt=1, description="largest relative change of size along each axis: 0.1 is 1/1.1 to 1.1"
    )
    shear: float = Field(
        0.0, ge=0, lt=1, description="largest shear: displacement along one axis per length along another"
    )
    translate: float = Field(0.0, ge=0, le=1000, description="largest shift along each axis, in mm")


class ElasticConfig(ChangeConfig):
    """Bent smoothly by cubic B-splines; never folded. Resampled once, together with `affine`."""

    words: ClassVar[str] = "bent by B-splines"

    spacing: float = Field(32.0, gt=0, le=1000, description="distance of the control points, in mm")
    displacement: float = Field(
        6.0,
        ge=0,
        le=400,
        description="largest displacement along each axis, in mm; at most 0.4 of the spacing",
    )

    @model_validator(mode="after")
    def _does_not_fold(self) -> ElasticConfig:
        if self.displacement > MOST_ELASTIC * self.spacing:
            raise ValueError(
                f"a displacement of {self.displacement:g} mm could fold tissue onto itself; with control "
                f"points every {self.spacing:g} mm, at most {MOST_ELASTIC * self.spacing:g} mm"
            )
        return self


class MotionConfig(ChannelChange):
    """The head moves while it is scanned: blocks of phase-encode lines come from several positions."""

    words: ClassVar[str] = "given motion artefacts"

    movements: int = Field(2, ge=1, le=16, description="how often the head moves")
    rotate: float = Field(5.0, ge=0, le=180, description="largest angle about each axis, in degrees")
    translate: float = Field(5.0, ge=0, le=1000, description="largest shift along each axis, in mm")


class GhostingConfig(ChannelChange):
    """Faint copies along the phase-encode axis: every n-th line of k-space is weakened."""

    words: ClassVar[str] = "given ghosts"

    ghosts: int = Field(
        6, ge=2, le=100, description="largest number of copies; the number is drawn from 2 to this"
    )
    intensity: float = Field(0.5, ge=0, le=1, description="largest weakening of a line, as a share")
    centre: float = Field(
        0.05, ge=0, lt=1, description="share of lines about the centre that are not changed"
    )


class BlurConfig(ChannelChange):
    """Smoothed by a Gaussian that is as wide along each axis as is drawn for it."""

    words: ClassVar[str] = "blurred by a Gaussian"

    sigma: float = Field(1.5, ge=0, le=100, description="largest standard deviation along each axis, in mm")


class BiasFieldConfig(ChannelChange):
    """Multiplied by the exponential of a smooth polynomial: the shading of a receive coil."""

    words: ClassVar[str] = "shaded by a bias field"

    strength: float = Field(0.3, ge=0, le=1, description="largest departure of the field's logarithm from 0")
    order: int = Field(3, ge=1, le=5, description="degree of the polynomial")


class NoiseConfig(ChannelChange):
    """Noise added to every voxel."""

    deviation: float = Field(
        0.2, ge=0, le=100, description="largest standard deviation, in units of the normalised volume"
    )


class GaussianNoiseConfig(NoiseConfig):
    """Normal noise added to every voxel."""

    words: ClassVar[str] = "overlaid with Gaussian noise"


class RicianNoiseConfig(NoiseConfig):
    """Noise of every voxel as magnitude images have it: it depends on how far the signal is from zero."""

    words: ClassVar[str] = "overlaid with Rician noise"


class GammaConfig(ChannelChange):
    """Intensities between the channel's least and greatest are raised to a power; both stay."""

    words: ClassVar[str] = "changed in contrast by a power"

    log_gamma: float = Field(0.3, ge=0, le=3, description="largest logarithm of the power, up or down")


class CutOutConfig(ChangeConfig):
    """Boxes about the middle are overwritten with 0, the foreground's mean, in all channels; no label map."""

    words: ClassVar[str] = "cut out in boxes"

    boxes: int = Field(1, ge=1, le=64, description="how many")
    size: float = Field(
        40.0, gt=0, le=1000, description="longest edge, in mm; each is drawn from half of it to this"
    )


# What a preset stands for. None mirrors: whether left and right may be swapped is a matter of the labels.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "light": {
        "affine": {"probability": 0.5, "rotate": 5.0, "scale": 0.05, "translate": 4.0},
        "gaussian_noise": {"probability": 0.3, "deviation": 0.1},
        "gamma": {"probability": 0.3, "log_gamma": 0.15},
    },
    "standard": {
        "affine": {"probability": 0.7, "rotate": 10.0, "scale": 0.1, "translate": 6.0},
        "elastic": {"probability": 0.3, "spacing": 40.0, "displacement": 6.0},
        "motion": {"probability": 0.05},
        "ghosting": {"probability": 0.05},
        "blur": {"probability": 0.2, "sigma": 1.5},
        "bias_field": {"probability": 0.3, "strength": 0.3},
        "gaussian_noise": {"probability": 0.3, "deviation": 0.15},
        "gamma": {"probability": 0.3, "log_gamma": 0.3},
    },
    "strong": {
        "affine": {"probability": 0.9, "rotate": 20.0, "scale": 0.2, "shear": 0.05, "translate": 10.0},
        "elastic": {"probability": 0.5, "spacing": 32.0, "displacement": 10.0},
        "motion": {"probability": 0.15},
        "ghosting": {"probability": 0.15},
        "blur": {"probability": 0.3, "sigma": 2.5},
        "bias_field": {"probability": 0.5, "strength": 0.5},
        "gaussian_noise": {"probability": 0.4, "deviation": 0.25},
        "gamma": {"probability": 0.5, "log_gamma": 0.4},
        "cut_out": {"probability": 0.3, "size": 40.0},
    },
}


class AugmentConfig(Section):
    """Random changes of training volumes, a pure function of seed, epoch and sample.

    docs/how-to/augment.md shows each of them. Without this section, volumes are mirrored (`flip: true`) and
    moved by a voxel (`shift: 1`); with it, only what it says is done: `augment: {}` leaves them as they are.
    """

    preset: Literal["light", "standard", "strong"] | None = Field(
        None, description="values for the sections below; values given explicitly take precedence"
    )
    flip: bool = Field(False, description="mirror left and right in half of the samples")
    shift: int = Field(0, ge=0, le=1000, description="largest shift along each axis, in voxels")
    scale: float = Field(0.0, ge=0, lt=1, description="largest relative change of intensity")
    noise: float = Field(
        0.0,
        ge=0,
        le=100,
        description="standard deviation of added Gaussian noise, in units of the normalised volume",
    )
    mirror: MirrorConfig = MirrorConfig()
    affine: AffineConfig = AffineConfig()
    elastic: ElasticConfig = ElasticConfig()
    motion: MotionConfig = MotionConfig()
    ghosting: GhostingConfig = GhostingConfig()
    blur: BlurConfig = BlurConfig()
    bias_field: BiasFieldConfig = BiasFieldConfig()
    rician_noise: RicianNoiseConfig = RicianNoiseConfig()
    gaussian_noise: GaussianNoiseConfig = GaussianNoiseConfig()
    gamma: GammaConfig = GammaConfig()
    cut_out: CutOutConfig = CutOutConfig()

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, section: Any) -> Any:
        preset = PRESETS.get(str(section.get("preset"))) if isinstance(section, dict) else None
        if preset is None:
            return section
        expanded = dict(section)
        for name, values in preset.items():
            own = section.get(name, {})
            if isinstance(own, dict):
                expanded[name] = {**values, **own}
        return expanded

    @model_validator(mode="after")
    def _mirrors_once(self) -> AugmentConfig:
        if self.flip and self.mirror.left_right:
            raise ValueError("flip and mirror.left_right do the same; give one of them")
        return self

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ever changed."""
        return not active(self.model_dump())


def active(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the changes that can happen, with their settings; of
    `AugmentConfig.model_dump()`, in its order.
    """
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "mirror":
            value = {axis: probability for axis, probability in value.items() if probability}
        elif isinstance(value, dict) and not value.get("probability"):
            continue
        if name != "preset" and value:
            kept[name] = value
    return kept
