"""`cingulum augment` as typed, and the words that reports have for augmentation."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from shard_sets import make_mapped_set, make_shard_set, volume_of

from cingulum.cli import app
from trainer.config import AugmentConfig
from trainer.config.augment import PRESETS
from trainer.data import augment
from trainer.report.augmentation import phrases
from trainer.report.augmentation_sheet import TOGETHER, rows, single

CHANGES = "{preset: strong, flip: true, noise: 0.1, mirror: {bottom_top: 0.5}}"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"name: look\ndata: {{shards: elsewhere, augment: {CHANGES}}}\ntrain: {{seed: 7}}\n")
    return path


def test_it_draws_a_sheet_and_says_what_each_change_costs(tmp_path, config, capsys):
    make_shard_set(tmp_path / "set")
    target = tmp_path / "new" / "sheet.png"
    assert app.run(["augment", str(tmp_path / "set"), str(config), "--samples=2", "-o", str(target)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(PRESETS["strong"]) + 5
    assert all("ms per volume" in line for line in said[:-1])
    assert said[-1] == f"{target}: 2 versions of sub-00"
    picture = np.asarray(Image.open(io.BytesIO(target.read_bytes())).convert("L"))
    assert picture.shape[0] > 14 * 96 and picture.shape[1] > 3 * 96 * 3
    assert np.unique(picture).size > 50


def test_json_tells_what_training_draws_for_this_volume(tmp_path, config, capsys):
    shards = make_shard_set(tmp_path / "set")
    arguments = [str(shards.path), str(config), "data.augment.flip=false", "data.augment.noise=0"]
    options = ["--subject", "sub-03", "--samples=3", "--json", "-o", str(tmp_path / "s.png")]
    assert app.run(["augment", *arguments, *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["subject"], told["row"], told["seed"]) == ("sub-03", 3, 7)
    changes = AugmentConfig(preset="strong", mirror={"bottom_top": 0.5})
    for epoch, found in enumerate(told["drawn"][TOGETHER]):
        drawn = augment.draw(changes, 7, epoch, 3, shards.shape, shards.voxel_size).to_json()
        assert found == json.loads(json.dumps(drawn))
    assert set(told["settings"]) == {"mirror", *PRESETS["strong"]}
    assert set(told["milliseconds"]) == {*told["settings"], TOGETHER}
    for name in PRESETS["strong"]:  # alone, each happens every time
        assert all(set(one) == {name} for one in told["drawn"][name])


def test_outlines_of_label_maps_are_drawn_in_colour(tmp_path, config):
    shards = make_mapped_set(tmp_path / "set")
    target = tmp_path / "s.png"
    for options, coloured in (([], False), (["--outlines"], True)):
        command = ["augment", str(shards.path), str(config), "--samples=1", "-o", str(target), *options]
        assert app.run(command) == 0
        picture = np.asarray(Image.open(target).convert("RGB")).astype(int)
        assert bool(np.ptp(picture, axis=2).max() > 50) == coloured


@pytest.mark.parametrize(
    ("more", "said", "cure"),
    [
        (["data.augment={}"], "changes nothing", "data.augment.preset=standard"),
        (["--subject", "sub-3"], "no subject 'sub-3'", "'sub-03'"),
        (["--outlines"], "has no label maps", "--maps"),
        (["data.augment.affine.rotat=1"], "unknown key", "data.augment.affine.rotate"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_cure(tmp_path, config, capsys, more, said, cure):
    make_shard_set(tmp_path / "set")
    target = tmp_path / "s.png"
    assert app.run(["augment", str(tmp_path / "set"), str(config), *more, "-o", str(target)]) == 2
    told = capsys.readouterr().err
    assert said in told and cure in told
    assert not target.exists()


def test_a_change_alone_has_the_numbers_that_it_has_among_others():
    config = AugmentConfig(preset="strong")
    volume = volume_of(0, dtype="float32")
    made = {
        row.name: row for row in rows(volume, None, config, seed=1, sample=2, samples=6, voxel_mm=(4, 4, 4))
    }
    assert list(made) == [*PRESETS["strong"], TOGETHER]
    for name in PRESETS["strong"]:
        assert list(single(config)[name].model_dump()) and len(made[name].told) == 6
        for alone, together in zip(made[name].told, made[TOGETHER].told, strict=True):
            assert name not in together or together[name] == alone[name]


def test_words_name_every_change_that_can_happen_and_no_other():
    assert phrases({"flip": False, "shift": 0, "scale": 0.0, "noise": 0.0}) == []  # of an older run
    assert phrases(AugmentConfig().model_dump()) == []
    plain = AugmentConfig(flip=True, shift=2, scale=0.1, noise=0.3)
    assert phrases(plain.model_dump()) == [
        "mirrored left to right with probability 0.5",
        "shifted by up to 2 voxels along each axis",
        "scaled in intensity by up to ±10%",
        "overlaid with Gaussian noise (standard deviation 0.3)",
    ]
    assert len(phrases(AugmentConfig(preset="strong").model_dump())) == len(PRESETS["strong"])
    found = phrases(AugmentConfig(mirror={"back_front": 0.5}, affine={"probability": 1.0}).model_dump())
    assert found == [
        "mirrored back to front with probability 0.5",
        "rotated, scaled, sheared and moved with probability 1 (rotate 10, scale 0.1, shear 0, translate 0)",
    ]
