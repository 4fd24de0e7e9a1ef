"""What a report tells for a paper: methods with every number, CLAIM, cohort, subgroups, attributions."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up_run import make_run

from trainer.metrics import subgroups
from trainer.report import attributions, cohort, facts, methods, run_page
from trainer.report.page import blanks
from trainer.report.run_page import render
from trainer.report.slices import png
from trainer.report.story import read


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made-up", subjects=80)


@pytest.fixture
def run(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


def told(run: Path) -> str:
    story = read(run)
    return " ".join(p.text for p in methods.paragraphs(story, cohort.groups(story), ["Grad-CAM"]))


def test_the_methods_state_the_numbers_of_the_run(run):
    text = told(run)
    for part in (
        "80 volumes of 80 subjects",
        "38 scans of 38 subjects (48%) for training; 10 scans of 10 subjects (12%) for validation; "
        "32 scans of 32 subjects (40%) for testing",
        "Subjects, not images, were divided",
        "resattnet18 with 16 channels in its first stage (2,105,346 parameters)",
        "AdamW, at a learning rate of 0.003",
        "The batch was 8 over all 4 ranks; 12 epochs were trained (72 updates)",
        "rose linearly over 1 epoch and fell along a cosine",
        "Training minimised the cross entropy with classes weighted equally, by AdamW",
        "the lowest validation loss, which is the function that was trained, were kept (epoch 10 of 12)",
        "over 32 scans of 32 subjects, the area under the ROC curve",
        "Intervals of 95 % are by subject",
        "logistic regression on",
        "Attributions were computed by Grad-CAM.",
        "Cingulum 0.1.0 was used, with Python 3.11.2, tensorflow-cpu 2.21.0",
        "4 ranks on 2 hosts (Made-up CPU, 2 cores, 24.0 GiB of memory), without a GPU",
        "21.4 volumes per second",
        "Energy was not measured.",
        "(seed 0)",
    ):
        assert part in text, part


def test_what_the_configuration_changes_changes_the_methods(run):
    config = (run / "config.yaml").read_text()
    changed = config.replace("global_batch: 8", "global_batch: 32, label_smoothing: 0.1, seed: 7").replace(
        "data:\n", "data:\n  augment: {flip: true, shift: 2}\n  split: {folds: 5, fold: 2}\n"
    )
    (run / "config.yaml").write_text(changed)
    text = told(run)
    for part in (
        "The batch was 32",
        "smoothed by 0.1",
        "at random (seed 7)",
        "mirrored left to right with probability 0.5, shifted by up to 2 voxels",
        "fold 2 of 5",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("setting", "said"), [("warn", "did not stop the training"), ("ignore", "not looked into")]
)
def test_leaks_that_were_let_through_are_told_in_the_methods_and_above_the_figures(run, setting, said):
    assert said not in told(run) + "".join(read(run).notes)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("data:\n", f"data:\n  leaks: {setting}\n"))
    assert told(run).count(said) == 1 and f"data.leaks={setting}" in told(run)
    assert [note for note in read(run).notes if said in note]


def test_the_processor_of_each_host_and_its_use_of_onednn_are_stated(run):
    assert {place["processor"] for place in facts.places(read(run))} == {"not recorded"}  # a run of before
    known = json.loads((run / "run.json").read_text())
    fast = {"model": "Xeon", "instructions": "AVX-512 VNNI", "onednn": True}
    slow = {"model": "EPYC", "instructions": "AVX2", "onednn": False}
    (run / "run.json").write_text(json.dumps({**known, "processors": [fast, fast, slow, slow]}))
    assert [place["processor"] for place in facts.places(read(run))] == [
        "Xeon, AVX-512 VNNI, with oneDNN",
        "EPYC, AVX2, without oneDNN",
    ]


def test_gpus_and_energy_are_stated_where_known(run):
    known = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**known, "gpus": [["A100"], ["A100"], ["A100"], ["A100"]]}))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "energy_wh": 412.3}))
    text = told(run)
    assert "on 4 × A100." in text and "It took 412 Wh." in text and "not measured" not in text
    assert ("Energy", "412 Wh") in facts.run_facts(read(run))


def test_what_only_the_authors_know_is_a_blank_and_never_made_up(run):
    (run / "run.json").unlink()
    text = told(run)
    assert "[to be filled in: source]" in text and "[to be filled in: preprocessing]" in text
    assert "without a GPU" not in text and "for training" not in text
    html = render(read(run)).html
    assert '<mark class="blank">[to be filled in: source]</mark>' in html


def test_blanks_are_marked_and_markup_is_not_obeyed():
    assert blanks("a [to be filled in: b] c [0, 1]") == (
        'a <mark class="blank">[to be filled in: b]</mark> c [0, 1]'
    )
    assert "<b>" not in blanks("<b>[to be filled in: <i>]</b>")


def test_the_checklist_is_whole_and_leads_to_parts_of_the_page(run):
    html = render(read(run)).html
    ids = set(re.findall(r' id="([^"]+)"', html))
    table = html.partition('<div class="scroll"><table class="claim">')[2].partition("</table>")[0]
    assert re.findall(r'<td class="n">(\d+)</td>', table) == [str(n) for n in range(1, 45)]
    targets = re.findall(r'href="#([^"]+)"', table)
    assert len(targets) >= 15 and set(targets) <= ids
    assert table.count("to be stated by the authors") == 44 - len(targets)


def test_an_item_counts_as_stated_only_where_the_page_has_it(run):
    places = {
        item.number: item.place for item in run_page.checklist({"subgroups": ("subgroups", "Subgroups")})
    }
    assert places[30] == "subgroups" and not any(place for n, place in places.items() if n != 30)
    shutil.rmtree(run / "evaluation")
    assert 'href="#performance"' not in render(read(run)).html


def test_the_cohort_counts_people_once_and_scans_each(whole):
    story = read(whole)
    volumes = list(story.shards.volumes)
    rows = story.facts.split["test"]
    # Two scans of one person: the second, at a later age, does not count in the mean.
    for row, age in ((rows[0], 70.0), (rows[1], 90.0)):
        changed = {"subject": "sub-twice", "age": age, "sex": "F", "site": "west", "label": "AD"}
        volumes[row] = type(volumes[row])(**{**vars(volumes[row]), **changed})
    story.shards.volumes = tuple(volumes)
    groups = {(group.split, group.label): group for group in cohort.groups(story)}
    test = groups["test", "all"]
    assert (test.scans, test.subjects) == (32, 31)
    people = {volumes[row].subject: volumes[row] for row in reversed(rows)}
    ages = [volume.age for volume in people.values()]
    assert test.age == pytest.approx((np.mean(ages), np.std(ages, ddof=1)))
    assert sum(n for _, n in test.sex) == 31 and dict(test.sites)["west"] == 1
    assert groups["test", "NC"].scans + groups["test", "AD"].scans == 32


def test_unknown_ages_and_sites_are_dashes(tmp_path):
    group = cohort.CohortGroup("test", "all", 3, 3)
    assert (group.age_words, group.sex_words, group.site_words) == ("–", "–", "–")


def test_subgroups_are_told_with_their_sizes(run):
    rows = render(read(run)).tables["subgroups"].splitlines()
    assert rows[0].startswith("by,group,n,accuracy,accuracy_low,accuracy_high")
    by_sex = [line.split(",") for line in rows[1:] if line.startswith("sex")]
    assert sum(int(line[2]) for line in by_sex) == 32


def test_a_table_of_groups_that_are_all_too_small_is_left_out(run, monkeypatch):
    group = {"group": "F", "by": "sex", "n": 4, "subjects": 4, "metrics": None}
    known = {**group, "by": "age", "group": "60-69", "metrics": {"accuracy": 0.8}}
    monkeypatch.setattr(subgroups, "subgroup_table", lambda *_: [group, known])
    rows = render(read(run)).tables["subgroups"].splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["age"]
    monkeypatch.setattr(subgroups, "subgroup_table", lambda *_: [group])
    assert "subgroups" not in render(read(run)).tables


def test_the_record_names_command_hashes_and_seed(run):
    record = dict(facts.record(read(run)))
    assert record["Command"] == "mpirun -np 4 cingulum train made-up.yaml"
    assert len(record["Configuration, sha256"]) == 64 and record["Data hash"] in render(read(run)).html


def test_attributions_are_embedded_and_damaged_ones_are_notes(run):
    folder = run / "explanations" / "gradcam"
    folder.mkdir(parents=True)
    for k in range(8):
        (folder / f"sub-{k}.png").write_bytes(png(np.zeros((4, 4))))
    (folder / "fake.png").write_text("no picture")
    (folder / "summary.json").write_text(
        json.dumps({"method": "gradcam", "share_inside": 0.4321, "rows": [1]})
    )
    broken = run / "explanations" / "occlusion"
    broken.mkdir()
    (broken / "summary.json").write_text("{")
    story = read(run)
    (found,) = attributions.read(story)
    assert found.name == "Grad-CAM" and found.facts == (("Share inside", "0.432"),)
    assert [caption for caption, _ in found.pictures] == [f"sub-{k}" for k in range(6)]
    assert found.left_out == 3
    assert any("occlusion/summary.json is damaged" in note for note in story.notes)
    html = render(read(run)).html
    assert 'id="attributions"' in html and 'href="#attributions"' in html
    assert "Attributions were computed by Grad-CAM." in html


def test_means_of_classes_come_first_and_other_weights_are_told(run):
    folder = run / "explanations" / "occlusion"
    folder.mkdir(parents=True)
    for name in ("a.png", "a_mosaic.png", "mean_AD_glass.png"):
        (folder / name).write_bytes(png(np.zeros((4, 4))))
    summary = {
        "method": "occlusion",
        "weights_sha256": "of another run",
        "groups": [{"name": "AD", "n": 3, "pictures": ["mean_AD_glass.png"]}],
        "subjects": [{"subject": "a", "label": "AD", "predicted": "NC", "picture": "a.png"}],
        "regions": {"pooled": {"share": 0.31}},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "best_weights_sha256": "of this one"}))
    story = read(run)
    (found,) = attributions.read(story)
    assert [caption for caption, _ in found.pictures] == ["mean of 3 scans, AD", "a: is AD, called NC"]
    assert (found.name, found.facts, found.left_out) == (
        "Occlusion",
        (("Regions, pooled, share", "0.310"),),
        1,
    )
    assert any("explains other weights" in note for note in story.notes)
