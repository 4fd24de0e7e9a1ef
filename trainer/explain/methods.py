"""The methods of explanation under one call: a network and a volume in, a map and a few figures out."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np

from trainer.explain import MethodName
from trainer.explain.gradcam import choose_layer, grad_cam
from trainer.explain.integrated_gradients import integrated_gradients
from trainer.explain.occlusion import occlusion


@dataclass(frozen=True)
class Method:
    """One method with its settings.

    Attributes:
        name: which.
        layer: of Grad-CAM; None for the last with a spatial output.
        mean: (D, H, W, C) the baseline; None: air, the volume's own least value everywhere.
        steps: of integrated gradients.
    """

    name: MethodName
    layer: str | None = None
    mean: np.ndarray | None = None
    steps: int = 32

    def maps(
        self, model: keras.Model, volume: np.ndarray, target: int | None, covariates: np.ndarray | None
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Return the map (D, H, W) float32 of a volume (D, H, W, C), contrasts summed, and the method's own
        figures.

        For integrated gradients `difference` and `gap`: see `integrated_gradients.Attributions`.
        """
        batch = volume[None]
        if self.name is MethodName.gradcam:
            return grad_cam(model, batch, target, layer=self.layer, covariates=covariates)[0], {}
        baseline = np.full_like(volume, volume.min()) if self.mean is None else self.mean
        if self.name is MethodName.occlusion:
            patch = max(2, min(volume.shape[:3]) // 6)
            falls = occlusion(
                model,
                batch,
                target,
                patch=patch,
                stride=max(1, patch // 2),
                fill=baseline,
                covariates=covariates,
            )
            return falls[0], {}
        parts = integrated_gradients(
            model, batch, target, baseline=baseline, steps=self.steps, covariates=covariates
        )
        figures = {"difference": float(parts.difference[0]), "gap": float(parts.gap[0])}
        return parts.values[0].sum(axis=-1), figures

    def settings(self, model: keras.Model) -> dict[str, str | int]:
        """Return the settings that a reader needs to make the same maps."""
        if self.name is MethodName.gradcam:
            layer = choose_layer(model, self.layer)
            grid = " × ".join(str(n) for n in model.get_layer(layer).output.shape[1:4])
            return {"layer": layer, "grid": grid}
        baseline = "air" if self.mean is None else "mean training volume"
        return {"baseline": baseline, **({"steps": self.steps} if "grad" in self.name.value else {})}
