"""MedicalNet's ResNets and SFCN in PyTorch, with random weights: what networks of ours are compared with.

    python published_networks.py resnet18 FOLDER

writes `weights.safetensors`, as users make it of a published file, and `features.npz`: a batch of noise, and
what the network makes of it before its head. Written after the papers and the names and sizes in the files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

# Blocks of each stage, whether they are bottlenecks, and the kind of shortcuts of the published file.
RESNETS = {
    "resnet10": ((1, 1, 1, 1), False, "B"),
    "resnet18": ((2, 2, 2, 2), False, "A"),
    "resnet34": ((3, 4, 6, 3), False, "A"),
    "resnet50": ((3, 4, 6, 3), True, "B"),
}
SFCN = (32, 64, 128, 256, 256, 64)


class Block(nn.Module):
    """A residual block."""

    def __init__(
        self, given: int, width: int, stride: int, dilation: int, is_bottleneck: bool, shortcut: str
    ) -> None:
        super().__init__()
        self.out = width * (4 if is_bottleneck else 1)
        wide = {"padding": dilation, "dilation": dilation, "bias": False}
        if is_bottleneck:
            self.conv1 = nn.Conv3d(given, width, 1, bias=False)
            self.conv2 = nn.Conv3d(width, width, 3, stride=stride, **wide)
            self.conv3 = nn.Conv3d(width, self.out, 1, bias=False)
            self.bn3 = nn.BatchNorm3d(self.out)
        else:
            self.conv1 = nn.Conv3d(given, width, 3, stride=stride, **wide)
            self.conv2 = nn.Conv3d(width, width, 3, **wide)
        self.bn1, self.bn2 = nn.BatchNorm3d(width), nn.BatchNorm3d(width)
        self.stride, self.kind = stride, shortcut if stride != 1 or given != self.out else ""
        if self.kind == "B":
            self.downsample = nn.Sequential(
                nn.Conv3d(given, self.out, 1, stride=stride, bias=False), nn.BatchNorm3d(self.out)
            )

    def forward(self, x: Any) -> Any:
        """See the class."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if hasattr(self, "conv3"):
            y = self.bn3(self.conv3(functional.relu(y)))
        if self.kind == "B":
            x = self.downsample(x)
        elif self.kind == "A":
            x = functional.avg_pool3d(x, kernel_size=1, stride=self.stride)
            x = functional.pad(x, (0, 0, 0, 0, 0, 0, 0, self.out - x.shape[1]))
        return functional.relu(x + y)


class ResNet(nn.Module):
    """MedicalNet's, without its head."""

    def __init__(self, blocks: tuple[int, ...], is_bottleneck: bool, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(1, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm3d(64)
        given = 64
        for stage, (count, stride, dilation) in enumerate(
            zip(blocks, (1, 2, 1, 1), (1, 1, 2, 4), strict=True), start=1
        ):
            made = []
            for number in range(count):
                width = 64 * 2 ** (stage - 1)
                made.append(
                    Block(given, width, stride if not number else 1, dilation, is_bottleneck, shortcut)
                )
                given = made[-1].out
            setattr(self, f"layer{stage}", nn.Sequential(*made))

    def forward(self, x: Any) -> Any:
        """See the class."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.max_pool3d(x, kernel_size=3, stride=2, padding=1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return x


class Sfcn(nn.Module):
    """SFCN's features."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor = nn.Sequential()
        given = 1
        for number, width in enumerate(SFCN):
            is_last = number == len(SFCN) - 1
            parts = [nn.Conv3d(given, width, 1 if is_last else 3, padding=0 if is_last else 1)]
            parts += [nn.BatchNorm3d(width), *([] if is_last else [nn.MaxPool3d(2, stride=2)]), nn.ReLU()]
            self.feature_extractor.add_module(f"conv_{number}", nn.Sequential(*parts))
            given = width

    def forward(self, x: Any) -> Any:
        """See the class."""
        return self.feature_extractor(x)


def main() -> None:
    """Write weights and features."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    network = Sfcn() if name == "sfcn" else ResNet(*RESNETS[name])
    for module in network.modules():
        if isinstance(module, nn.BatchNorm3d):  # as after a training: neither 0 nor 1
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2)
    network.eval()
    # An odd edge, where borders on both sides differ most.
    x = torch.randn(2, 1, *((64, 64, 64) if name == "sfcn" else (41, 48, 56)))
    with torch.no_grad():
        features = network(x)
    state = {f"module.{key}": value.contiguous() for key, value in network.state_dict().items()}
    head = "module.classifier.conv_6" if name == "sfcn" else "module.conv_seg.0"
    state[f"{head}.weight"] = torch.zeros(2, 2)
    save_file(state, folder / "weights.safetensors")
    np.savez(
        folder / "features.npz",
        x=np.moveaxis(x.numpy(), 1, -1),
        features=np.moveaxis(features.numpy(), 1, -1),
    )


if __name__ == "__main__":
    main()
