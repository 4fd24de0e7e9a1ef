"""What a checkpoint promises: whole or not there, and everything in it comes back."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from wording import fails_with  # noqa: E402

from trainer.errors import RunError  # noqa: E402
from trainer.run_folder import checkpoint, checkpoint_checks  # noqa: E402
from trainer.run_folder.checkpoint import Cursor  # noqa: E402


def network(units: int = 3) -> keras.Model:
    layers = [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dropout(0.5)]
    return keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(2)])


def trained(
    units: int = 3, seed: int = 0, **optimizer_options
) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    keras.utils.set_random_seed(seed)
    model = network(units)
    optimizer = keras.optimizers.AdamW(1e-2, use_ema=True, gradient_accumulation_steps=2, **optimizer_options)
    optimizer.build(model.trainable_variables)
    random = np.random.default_rng(seed)
    for variable in [*model.variables, *optimizer.variables]:
        values = random.normal(size=tuple(variable.shape)) * 10
        variable.assign(np.abs(values).astype(variable.dtype))
    return model, optimizer


def state(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> list[np.ndarray]:
    return [v.numpy() for v in [*model.variables, *optimizer.variables]]


def save_steps(folder: Path, *steps: int) -> list[Path]:
    model, optimizer = trained()
    return [checkpoint.save(folder, Cursor(step=step, steps_per_epoch=2), model, optimizer) for step in steps]


def test_everything_that_was_saved_comes_back_bit_for_bit(tmp_path):
    model, optimizer = trained(seed=1)
    rows = ({"epoch": 1, "loss": 0.1 + 0.2, "val_auc": None},)
    cursor = Cursor(
        step=7, steps_per_epoch=3, rows=rows, sums=(0.1, 2.0, 3.0), best={"epoch": 1}, best_step=3, waited=1
    )
    path = checkpoint.save(tmp_path, cursor, model, optimizer)
    other_model, other_optimizer = trained(seed=2)

    assert checkpoint.restore(path, other_model, other_optimizer) == cursor
    for saved, restored in zip(state(model, optimizer), state(other_model, other_optimizer), strict=True):
        np.testing.assert_array_equal(saved, restored)


def test_the_state_of_dropout_is_in_the_checkpoint(tmp_path):
    """Keras leaves it out of the .keras file, and a resumed run would drop other units."""
    model, optimizer = trained(seed=1)
    path = checkpoint.save(tmp_path, Cursor(step=1, steps_per_epoch=1), model, optimizer)
    other_model, other_optimizer = trained(seed=2)
    checkpoint.restore(path, other_model, other_optimizer)
    x = np.ones((8, 4), "float32")
    np.testing.assert_array_equal(model(x, training=True), other_model(x, training=True))


def test_the_model_in_a_checkpoint_is_an_ordinary_keras_model(tmp_path):
    model, optimizer = trained()
    path = checkpoint.save(tmp_path, Cursor(step=1, steps_per_epoch=1), model, optimizer)
    loaded = keras.saving.load_model(path / "model.keras", compile=False)
    x = np.ones((2, 4), "float32")
    np.testing.assert_array_equal(model(x, training=False), loaded(x, training=False))


def test_the_newest_checkpoint_is_found(tmp_path):
    paths = save_steps(tmp_path, 2, 10, 4)
    assert checkpoint.find(tmp_path) == checkpoint.NewestCheckpoint(paths[1])


def test_an_empty_folder_holds_no_checkpoint(tmp_path):
    assert checkpoint.find(tmp_path / "none") == checkpoint.NewestCheckpoint(None)


@pytest.mark.parametrize("name", ["model.keras", "optimizer.npz", "rng.npz", "cursor.json"])
def test_a_flipped_bit_in_any_file_makes_the_checkpoint_before_it_count(tmp_path, name):
    older, newest = save_steps(tmp_path, 1, 2)
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / name).write_bytes(content)
    found = checkpoint.find(tmp_path)
    assert found.path == older
    assert found.skipped == ((newest, f"{name} does not match its checksum"),)


def test_missing_files_and_broken_manifests_are_named(tmp_path):
    older, no_manifest, no_file, bad_manifest, newer_format = save_steps(tmp_path, 1, 2, 3, 4, 5)
    (no_manifest / "manifest.json").unlink()
    (no_file / "optimizer.npz").unlink()
    (bad_manifest / "manifest.json").write_text("{")
    manifest = json.loads((newer_format / "manifest.json").read_text())
    (newer_format / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    found = checkpoint.find(tmp_path)
    assert found.path == older
    reasons = dict(found.skipped)
    assert reasons[no_manifest] == "manifest.json is missing"
    assert reasons[no_file] == "optimizer.npz is missing"
    assert "manifest.json cannot be read" in reasons[bad_manifest]
    assert "format is 99" in reasons[newer_format]


def test_a_half_written_checkpoint_is_not_found_and_is_cleared_away(tmp_path):
    (older,) = save_steps(tmp_path, 1)
    shutil.copytree(older, tmp_path / "step-00000002.partial")
    assert checkpoint.find(tmp_path).path == older
    checkpoint.discard_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("failing", ["model", "arrays", "rename"])
def test_a_full_disk_leaves_the_older_checkpoint_and_no_rubbish(tmp_path, monkeypatch, failing):
    (older,) = save_steps(tmp_path, 1)
    model, optimizer = trained()

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    if failing == "model":
        monkeypatch.setattr(model, "save", full)
    elif failing == "arrays":
        monkeypatch.setattr(np, "savez", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, Cursor(step=2, steps_per_epoch=1), model, optimizer)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.check(older) is None


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path):
    (path,) = save_steps(tmp_path, 1)
    (path / "cursor.json").write_text("{}")
    assert save_steps(tmp_path, 1) == [path]
    assert checkpoint.check(path) is None


def test_the_newest_and_the_best_are_kept(tmp_path):
    save_steps(tmp_path, *range(1, 7))
    checkpoint.prune(tmp_path, keep=2, best_step=3)
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == [3, 5, 6]


def test_another_network_or_optimizer_is_refused(tmp_path):
    model, optimizer = trained()
    path = checkpoint.save(tmp_path, Cursor(step=1, steps_per_epoch=1), model, optimizer)
    with fails_with(RunError):
        checkpoint.restore(path, *trained(units=5))
    with fails_with(RunError):
        checkpoint.restore(path, *trained(amsgrad=True))
    path = checkpoint.save(tmp_path, Cursor(step=2, steps_per_epoch=1), *trained(amsgrad=True))
    with fails_with(RunError):
        checkpoint.restore(path, *trained())


@pytest.mark.parametrize("name", ["model.keras", "optimizer.npz", "rng.npz", "cursor.json"])
def test_a_checkpoint_that_verifies_and_cannot_be_used_is_a_named_error(tmp_path, name):
    """Such as one that another version of Keras wrote: nothing is damaged, and no older one would do."""
    (path,) = save_steps(tmp_path, 1)
    content = json.dumps({"step": 1, "rows": [], "of": "a newer version"}).encode()
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = checkpoint_checks.fingerprint(path / name)
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.find(tmp_path).path == path
    with pytest.raises(RunError, match=f"step-00000001.*{'another network' if 'model' in name else name}"):
        checkpoint.restore(path, *trained())


def test_what_lies_in_the_place_of_a_checkpoint_is_replaced(tmp_path):
    (tmp_path / "step-00000001").symlink_to(tmp_path / "nowhere")
    (tmp_path / "step-00000002").write_text("a file")
    for path in save_steps(tmp_path, 1, 2):
        assert checkpoint.check(path) is None


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path):
    (path,) = save_steps(tmp_path, 1)
    for name in ("optimizer.npz", "rng.npz"):
        with np.load(path / name, allow_pickle=False) as arrays:
            assert all(arrays[key].dtype != object for key in arrays.files)
    assert {file.suffix for file in path.iterdir()} == {".keras", ".npz", ".json"}
