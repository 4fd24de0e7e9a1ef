"""Bad input that no other test covers; the rest is in the tests of the module that meets it."""

from __future__ import annotations

from made_images import nifti

from cingulum.cli import app


def test_an_image_that_a_table_lists_and_that_is_not_there_is_named(tmp_path, capsys):
    for name in ("a", "b", "c"):
        nifti(tmp_path / f"{name}.nii", seed=ord(name))
    rows = ["image,diagnosis", "a.nii,AD", "b.nii,NC", "gone.nii,AD", "c.nii,NC"]
    (tmp_path / "images.csv").write_text("\n".join(rows))
    target = tmp_path / "set"
    line = ["import", str(tmp_path / "images.csv"), str(target), "--size=16", "--workers=1"]
    assert app.run(line) == 2
    said = capsys.readouterr().err
    assert "gone.nii" in said
    assert "no such file" in said
    assert not (target / "index.json").exists()
    assert app.run([*line, "--on-error=skip"]) == 0
    assert "3 volumes" in capsys.readouterr().out


def test_an_unknown_codec_leaves_nothing_behind(tmp_path, capsys):
    target = tmp_path / "set"
    assert app.run(["import", str(tmp_path), str(target), "--codec=zip"]) == 2
    assert "blosc-lz4" in capsys.readouterr().err
    assert not target.exists()


def test_a_benchmark_of_an_unknown_network_starts_no_process(capsys):
    assert app.run(["bench", "step", "--model=resattnet19"]) == 2
    assert capsys.readouterr().err.startswith("error: There is no network 'resattnet19'. Did you mean")


def test_the_name_of_a_run_is_explained_in_words(tmp_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text("name: a/b\ndata: {shards: nowhere}\n")
    assert app.run(["train", str(config)]) == 2
    assert "name: must be letters, digits" in capsys.readouterr().err


def test_a_folder_for_a_configuration_is_named_with_a_cure(tmp_path, capsys):
    assert app.run(["train", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[1] == "  Name a YAML file, such as examples/demo.yaml"
