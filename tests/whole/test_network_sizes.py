"""Numbers of parameters: against the published ones, with their source, and against counts by formula."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from trainer import models


def outline(name: str, channels: int, outputs: int, side: int = 96, **options: object) -> keras.Model:
    """The network at its published width, without values in its weights."""
    network = models.describe(name)
    sides = (1, side, side) if network.dimensions == 2 else (side,) * 3
    return models.outline(name, (*sides, channels), outputs, dense=bool(network.dense), **options)


def trainable(model: keras.Model) -> int:
    """Without the moving statistics of batch normalisation, as PyTorch counts parameters."""
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


# torchvision documents r3d_18 with 33,371,472 parameters: 3 channels, 400 classes, a 3x7x7 stem where
# ours is 7x7x7.
TORCHVISION_R3D_18 = 33_371_472
STEM_DIFFERENCE = 64 * 3 * (7 * 7 * 7 - 3 * 7 * 7)


def test_resnet18_has_the_published_number_of_parameters():
    assert trainable(outline("resnet18", 3, 400)) == TORCHVISION_R3D_18 + STEM_DIFFERENCE


def normalised(kernel: int, before: int, after: int) -> int:
    """A convolution of `kernel` values for each pair of channels, without bias, then batch normalisation."""
    return kernel * before * after + 2 * after


def test_the_number_of_r3d_18_follows_from_its_layers():
    # Tran et al., arXiv 1711.11248, table 1, R3D of 18 layers.
    total, before = normalised(3 * 7 * 7, 3, 64), 64
    for after in (64, 128, 256, 512):
        total += normalised(27, before, after) + 3 * normalised(27, after, after)
        total += normalised(1, before, after) if before != after else 0
        before = after
    assert total + (512 + 1) * 400 == TORCHVISION_R3D_18


# README of github.com/Tencent/MedicalNet, "Computational Cost": millions of values in the files of weights,
# so with the moving statistics, for 1 channel and without a head. ResNet-18 and -34 have shortcuts of type A
# there, which have no weights.
@pytest.mark.parametrize(
    ("name", "millions", "shortcuts"),
    [("resnet10", 14.36, "B"), ("resnet18", 32.99, "A"), ("resnet34", 63.31, "A"), ("resnet50", 46.21, "B")],
)
def test_resnets_have_the_parameters_that_medicalnet_publishes(name, millions, shortcuts):
    model = outline(name, 1, 2)
    left_out = ["head_logits"] + ["_shortcut_"] * (shortcuts == "A")
    counted = sum(
        layer.count_params() for layer in model.layers if not any(part in layer.name for part in left_out)
    )
    assert round(counted / 1e6, 2) == millions


def test_moving_statistics_are_two_values_per_normalised_channel():
    model = outline("resnet18", 3, 400)
    # Stem; per stage four convolutions, and a shortcut in the last three.
    channels = 64 + 4 * 64 + 5 * (128 + 256 + 512)
    assert model.count_params() - trainable(model) == 2 * channels


# Cicek et al., arXiv 1606.06650, section 2: "The architecture has 19069955 parameters in total", for 3
# channels and 3 labels. That is one bias for each kernel and no scale: what we have without normalisation.
def test_the_3d_unet_has_the_published_number_of_parameters():
    assert trainable(outline("unet3d", 3, 3, normalisation="none")) == 19_069_955


def test_normalisation_gives_the_3d_unet_a_scale_for_each_channel_beside_the_shift():
    channels = 32 + 64 + 64 + 128 + 128 + 256 + 256 + 512 + 2 * (256 + 128 + 64)
    for kind in ("batch", "instance", "group"):
        assert trainable(outline("unet3d", 3, 3, normalisation=kind)) == 19_069_955 + channels


@pytest.mark.parametrize(
    ("width", "depth", "channels", "classes"), [(32, 3, 1, 4), (8, 4, 2, 3), (4, 1, 1, 2)]
)
def test_the_residual_unet_has_the_parameters_that_its_description_gives(width, depth, channels, classes):
    def block(before: int, after: int) -> int:
        shortcut = before * after + 2 * after if before != after else 0
        return 27 * before * after + 27 * after * after + 4 * after + shortcut

    levels = [width * 2**level for level in range(depth + 1)]
    down = sum(block(before, after) for before, after in zip([channels, *levels], levels, strict=False))
    grow = sum(8 * level * level for level in levels[1:])
    up = sum(block(upper + below, upper) for upper, below in itertools.pairwise(levels))
    model = outline("unet3d_residual", channels, classes, width=width, depth=depth)
    assert trainable(model) == down + grow + up + (width + 1) * classes


# torchvision documents densenet121 with 7,978,856 parameters, in two dimensions, for 3 channels and 1000
# classes. A third axis makes 7 of its stem's kernels' one and 3 of each 3x3 kernel's one; the rest stays.
TORCHVISION_DENSENET_121 = 7_978_856


def test_the_number_of_densenet121_follows_from_its_layers():
    # arXiv 1608.06993, table 1: each layer and each transition normalises what comes in, then convolves.
    total, channels = normalised(7 * 7, 3, 64), 64
    for block, count in enumerate((6, 12, 24, 16), start=1):
        for _ in range(count):
            total += 2 * channels + normalised(1, channels, 4 * 32) + 9 * 4 * 32 * 32
            channels += 32
        if block < 4:
            total += 2 * channels + channels * (channels // 2)
            channels //= 2
    assert total + 2 * channels + (channels + 1) * 1000 == TORCHVISION_DENSENET_121


def test_densenet121_has_the_published_number_of_parameters_and_a_third_axis():
    layers, growth = 6 + 12 + 24 + 16, 32
    third_axis = (7 - 1) * 49 * 3 * 64 + (3 - 1) * 9 * layers * 4 * growth * growth
    assert trainable(outline("densenet121", 3, 1000)) == TORCHVISION_DENSENET_121 + third_axis


@pytest.mark.parametrize(
    ("width", "options"),
    [(8, {}), (16, {"growth_rate": 12, "compression": 1.0}), (10, {"compression": 0.3, "blocks": [2, 3]})],
)
def test_densenet_has_the_parameters_that_its_description_gives(width, options):
    growth = options.get("growth_rate", width // 2)
    blocks = options.get("blocks", [6, 12, 24, 16])
    total, channels = 343 * width + 2 * width, width
    for number, count in enumerate(blocks, start=1):
        for _ in range(count):
            total += 2 * channels + channels * 4 * growth + 2 * 4 * growth + 27 * 4 * growth * growth
            channels += growth
        if number < len(blocks):
            kept = int(options.get("compression", 0.5) * channels)
            total += 2 * channels + channels * kept
            channels = kept
    total += 2 * channels + (channels + 1) * 2
    assert trainable(outline("densenet121", 1, 2, width=width, **options)) == total


# torchvision documents these, in two dimensions, for 3 channels and 1000 classes, without normalisation.
TORCHVISION_VGG = {11: 132_863_336, 13: 133_047_848, 16: 138_357_544, 19: 143_667_240}
TORCHVISION_ALEXNET = 61_100_840


def dense_layers(features: int) -> int:
    return (features + 1) * 4096 + 4097 * 4096 + 4097 * 1000


@pytest.mark.parametrize("depth", TORCHVISION_VGG)
def test_the_number_of_vgg_follows_from_its_layers(depth):
    # arXiv 1409.1556, table 1: columns A, B, D and E.
    deeper = {11: (0, 0, 1, 1, 1), 13: (1, 1, 1, 1, 1), 16: (1, 1, 2, 2, 2), 19: (1, 1, 3, 3, 3)}[depth]
    total, before = dense_layers(7 * 7 * 512), 3
    for after, more in zip((64, 128, 256, 512, 512), deeper, strict=True):
        total += (9 * before + 1) * after + more * (9 * after + 1) * after
        before = after
    assert total == TORCHVISION_VGG[depth]


def test_the_number_of_alexnet_follows_from_its_layers():
    # arXiv 1404.5997 in a single tower: side of the kernel, channels before and after.
    layers = ((11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256))
    convolutions = sum((side**2 * before + 1) * after for side, before, after in layers)
    assert convolutions + dense_layers(6 * 6 * 256) == TORCHVISION_ALEXNET


@pytest.mark.parametrize("depth", TORCHVISION_VGG)
def test_vgg_has_the_published_number_of_parameters_and_a_third_axis(depth):
    published = TORCHVISION_VGG[depth] - dense_layers(7 * 7 * 512)
    stages = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[depth]
    biases = sum(n * channels for n, channels in zip(stages, (64, 128, 256, 512, 512), strict=True))
    expected = 3 * (published - biases) + biases + dense_layers(512)
    assert trainable(outline("vgg", 3, 1000, depth=depth, hidden=4096, normalisation="none")) == expected


def test_alexnet_has_the_published_number_of_parameters_and_a_third_axis():
    kernels = [
        (11, 3 * 64),
        (5, 64 * 192),
        (3, 192 * 384),
        (3, 384 * 256),
        (3, 256 * 256),
    ]
    third_axis = sum((side - 1) * side**2 * count for side, count in kernels)
    expected = TORCHVISION_ALEXNET + third_axis - dense_layers(6 * 6 * 256) + dense_layers(256)
    assert trainable(outline("alexnet", 3, 1000, hidden=4096, normalisation="none")) == expected


# Peng et al. 2021 (Medical Image Analysis 68, 101871) speak of 3 million. The formula is for their code,
# github.com/ha-ha-ha-han/UKBiobank_deep_pretrain, whose convolutions have a bias that their batch
# normalisation takes away again; ours have none.
def test_sfcn_has_the_parameters_of_its_published_code():
    channels = (1, 32, 64, 128, 256, 256, 64)
    kernels = (27, 27, 27, 27, 27, 1)
    pairs = zip(kernels, itertools.pairwise(channels), strict=True)
    theirs = sum(kernel * before * after + 3 * after for kernel, (before, after) in pairs) + (64 + 1) * 40
    assert round(theirs / 1e6) == 3
    assert trainable(outline("sfcn", 1, 40)) == theirs - sum(channels[1:])


# No number is published; the pages of system 2 count 125, 600, 1500 and 3750 million multiplications and
# additions of the second layer on 32x32x3 images, which are two for each use of a weight.
@pytest.mark.parametrize(
    ("first", "second", "millions"), [(50, 500, 125), (150, 800, 600), (300, 1000, 1500), (500, 1500, 3750)]
)
def test_conv2_has_the_parameters_and_the_work_of_its_description(first, second, millions):
    model = models.outline("conv2", (32, 32, 3), 10, width=first, second=second)
    sizes = (75 * first + first, 25 * first * second + second, 5 * 5 * second * 10 + 10)
    assert trainable(model) == sum(sizes)
    layer = model.get_layer("stage2_conv")
    positions = int(np.prod(layer.output.shape[1:3]))
    assert 2 * positions * int(np.prod(layer.kernel.shape)) == millions * 10**6


def test_tiny_has_the_parameters_that_a_hand_count_gives():
    weights = 27 * (1 * 8 + 8 * 16 + 16 * 32) + 2 * (8 + 16 + 32) + 32 * 3 + 3
    assert trainable(outline("tiny", 1, 3)) == weights


@pytest.mark.parametrize("name", models.names())
def test_an_outline_has_the_layers_and_weights_of_the_network(name):
    network = models.describe(name)
    sides = (1, 32, 32) if network.dimensions == 2 else (32,) * 3
    shape = (*sides, 1)
    drawn = models.outline(name, shape, 2, width=2, dense=bool(network.dense))
    built = models.build(name, shape, 2, width=2, dense=bool(network.dense))
    assert [v.path for v in drawn.weights] == [v.path for v in built.weights]
    assert [v.shape for v in drawn.weights] == [v.shape for v in built.weights]


def test_the_weights_of_an_outline_never_get_values():
    """Keras gives what waits for values in one scope values at the end of the next: of width 4096, 20 GB."""
    weights = models.outline("tiny", (16, 16, 16, 1), 2, width=8).weights
    with keras.StatelessScope():
        pass
    assert len(weights) > 0
    assert all(weight._value is None for weight in weights)
