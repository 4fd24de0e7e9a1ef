"""Bad input that no other test covers; the rest is in the tests of the module that meets it."""

from __future__ import annotations

from made_images import nifti

from trainer import cli


def test_an_image_that_a_table_lists_and_that_is_not_there_is_named(tmp_path, capsys):
    for name in ("a", "b", "c"):
        nifti(tmp_path / f"{name}.nii", seed=ord(name))
    rows = ["image,diagnosis", "a.nii,AD", "b.nii,NC", "gone.nii,AD", "c.nii,NC"]
    (tmp_path / "images.csv").write_text("\n".join(rows))
    target = tmp_path / "set"
    line = ["import", str(tmp_path / "images.csv"), str(target), "--size=16", "--workers=1"]
    assert cli.run(line) == 2
    said = capsys.readouterr().err
    assert "gone.nii" in said
    assert "no such file" in said
    assert not (target / "index.json").exists()
    assert cli.run([*line, "--on-error=skip"]) == 0
    assert "3 volumes" in capsys.readouterr().out
