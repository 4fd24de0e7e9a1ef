"""The loader's benchmark: what it computes from times, and that its checks of the readers really check."""

import numpy as np
import pytest
from wording import fails_with

from cingulum.bench import input as input_bench
from cingulum.bench.loader import studies, sweep
from cingulum.bench.loader.processes import ReaderProcess
from trainer.bench.loader import figures, page_cache, worker
from trainer.bench.loader.checking import Epoch, Source, WrongVolumes, marked, sampled
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import KINDS, ReaderKind
from trainer.errors import InputError, WorldError

SIZE = 16


@pytest.fixture
def job(tmp_path) -> LoaderJob:
    """Six volumes of noise, without any reader's files."""
    random = np.random.default_rng(0)
    volumes = random.normal(size=(6, SIZE, SIZE, SIZE, 1)).astype(np.float16)
    for number, volume in enumerate(volumes):
        marked(volume, number)
    volumes.tofile(tmp_path / "volumes.raw")
    samples = np.array([sampled(volume) for volume in volumes])
    np.savez(tmp_path / "expected.npz", samples=samples, largest=np.abs(volumes).max())
    return LoaderJob(folder=str(tmp_path), size=SIZE, volumes=6, batch=2)


def batches(job, numbers):
    """What a reader delivers that takes these volumes."""
    source = Source(job)
    for first in range(0, len(numbers), job.batch):
        some = numbers[first : first + job.batch]
        yield np.stack([source.volume(number) for number in some]).astype(np.float32)


def delivered(job, numbers, **options):
    epoch = Epoch(job, **options)
    for batch in batches(job, numbers):
        epoch.add(batch)
    epoch.close()
    return epoch


@pytest.mark.parametrize("whole", [True, False])
def test_every_volume_once_in_any_order_is_right(job, whole):
    assert not delivered(job, [3, 0, 5, 1, 4, 2], whole=whole).in_stored_order
    assert delivered(job, range(6), whole=whole).in_stored_order


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 5, 5]])
def test_a_volume_that_is_missing_or_comes_twice_is_noticed(job, numbers):
    with pytest.raises(WrongVolumes, match=f"{len(numbers)} volumes came"):
        delivered(job, numbers)


def test_one_wrong_voxel_is_noticed_where_every_voxel_is_compared(job):
    batch = next(batches(job, [0, 1]))
    batch[1, 7, 7, 7] += 0.25
    with fails_with(WrongVolumes):
        Epoch(job, whole=True).add(batch)
    Epoch(job, tolerance=0.3, whole=True).add(batch)  # what a format rounds is allowed


def test_a_volume_of_other_voxels_is_noticed_in_a_timed_epoch(job):
    batch = next(batches(job, [0, 1]))
    batch[1, 4:] = batch[0, 4:]
    with fails_with(WrongVolumes):
        Epoch(job).add(batch)


def test_another_type_or_shape_is_noticed(job):
    batch = next(batches(job, [0, 1]))
    with fails_with(WrongVolumes):
        Epoch(job).add(batch.astype(np.float16))
    with fails_with(WrongVolumes):
        Epoch(job).add(batch[:, :8])
    Epoch(job).add(batch.reshape(2, 1, SIZE, SIZE, SIZE))  # channels first is the same memory


def test_a_reader_that_drops_a_volume_is_never_timed(job, monkeypatch):
    class Dropping:
        def open(self):
            pass

        def files(self):
            return []

        def epoch(self, number):
            return batches(job, [0, 1, 2, 3, 4])

    monkeypatch.setattr(worker.readers, "make", lambda kind, job: Dropping())
    asked = worker._Worker(KINDS["h5py"], job)
    with fails_with(WrongVolumes):
        asked.open()
    with fails_with(WrongVolumes):
        asked.epoch()


def test_a_process_that_fails_says_why(job):
    with ReaderProcess("h5py", job) as process, pytest.raises(WorldError, match=r"index\.json"):
        process.ask("open")


def test_the_limit_is_the_slowest_part():
    assert figures.limit_speed(60, {"read": 0.1, "decode": 0.6, "cast": 0.2}) == 100


def test_ratios_are_those_within_a_repeat_and_the_peer_is_the_fastest_by_its_median():
    found = figures.ratios(
        {"ours": [90, 180, 80], "limit": [100, 200, 100], "h5py": [60, 60, 60], "nibabel": [10, 80, 70]}
    )
    assert (found["limit_ratio"], found["limit_ratio_min"], found["limit_ratio_max"]) == (0.9, 0.8, 0.9)
    assert found["best_peer"] == "nibabel"
    assert found["best_peer_ratio"] == 180 / 80
    assert list(found["best_peers"]) == ["files"]


def test_what_is_kept_in_memory_is_compared_with_our_own_memory_and_the_worse_ratio_counts(monkeypatch):
    monkeypatch.setitem(KINDS, "monai_cache", ReaderKind("MONAI CacheDataset", "no.module", memory=True))
    speeds = {"ours": [90.0], "limit": [100.0], "h5py": [60.0], "monai_cache": [200.0]}
    assert figures.ratios(speeds)["best_peer_ratio"] == 90 / 200
    found = figures.ratios({**speeds, "ours_memory": [400.0]})
    assert found["best_peers"]["memory"]["ratio"] == 2
    assert (found["best_peer"], found["best_peer_ratio"]) == ("h5py", 1.5)


def test_past_the_page_cache_counts_where_it_was_measured():
    speeds = {
        "ours": [60.0, 50.0],
        "ours_past_cache": [95.0, 90.0],
        "limit": [100.0, 100.0],
        "h5py": [30.0, 30.0],
    }
    found = figures.ratios(speeds)
    assert (found["limit_ratio"], found["first_epoch_limit_ratio"]) == (0.925, 0.55)
    assert found["best_peers"]["files"]["ours"] == "ours_past_cache"
    del speeds["ours_past_cache"]
    found = figures.ratios(speeds)
    assert found["limit_ratio"] == 0.55 and "first_epoch_limit_ratio" not in found


def test_past_a_warm_page_cache_there_is_nothing_to_measure():
    assert "ours_past_cache" in studies.checked(**OPTIONS).readers
    assert "ours_past_cache" not in studies.checked(**{**OPTIONS, "cache": "warm"}).readers


def test_without_a_peer_there_is_no_peer_ratio():
    found = figures.ratios({"ours": [90.0], "ours_memory": [95.0], "limit": [100.0]})
    assert (found["best_peer"], found["best_peer_ratio"]) == (None, None)
    assert figures.worst([found], "best_peer_ratio") is None


def test_the_worst_case_is_the_smallest_ratio():
    cases = [{"size": 96, "limit_ratio": 0.95}, {"size": 128, "limit_ratio": 0.91}]
    assert figures.worst(cases, "limit_ratio") == cases[1]


def test_the_page_cache_holds_what_was_written_and_not_what_nobody_read(tmp_path):
    written, unread = tmp_path / "written", tmp_path / "unread"
    written.write_bytes(b"x" * 50_000)
    with unread.open("wb") as file:
        file.truncate(50_000)
    assert page_cache.share([written]) == 1
    assert page_cache.share([unread]) == 0
    assert page_cache.share([written, unread]) == 0.5
    page_cache.fill([written])
    page_cache.drop([written])
    assert written.read_bytes() == b"x" * 50_000


OPTIONS = {
    "sizes": None,
    "volumes": 8,
    "batch": 4,
    "threads": 2,
    "repeats": 1,
    "cache": "both",
    "dtype": "float16",
    "codec": "blosc-lz4",
    "readers": None,
    "data": None,
}


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("sizes", [8], "--size 8"),
        ("volumes", 7, "--volumes 7"),
        ("volumes", 2**16, "--volumes 65536"),
        ("codec", "zip", "--codec zip"),
        ("readers", ["dvd"], "--reader dvd"),
    ],
)
def test_what_cannot_be_measured_is_told(option, value, said):
    studies.checked(**OPTIONS)
    with pytest.raises(InputError, match=said):
        studies.checked(**{**OPTIONS, option: value})


def test_a_study_says_which_readers_are_not_installed(monkeypatch):
    kind = ReaderKind("Zarr", "no.module", python="/nowhere/python", install="make bench-peers")
    monkeypatch.setitem(KINDS, "zarr", kind)
    study = studies.checked(**{**OPTIONS, "readers": ["h5py", "zarr"]})
    lines = studies.told(study, sweeping=False).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        "ours",
        "ours_past_cache",
        "limit",
        "h5py",
        "zarr",
    ]
    assert [line for line in lines if "make bench-peers" in line] == [
        next(line for line in lines if line.startswith("  zarr"))
    ]


def test_a_curve_doubles_up_to_what_there_is():
    found = sweep.points(LoaderJob(folder="", volumes=16, batch=4), cores=2)
    along = {axis: [point.value for point in found if point.axis == axis] for axis in sweep.TITLES}
    assert along == {"volumes": [8, 16], "threads": [1, 2, 4], "ranks": [1, 2]}
    two = next(point.job for point in found if (point.axis, point.value) == ("ranks", 2))
    assert (two.world_size, two.threads) == (2, 1)


def test_waiting_is_a_share_of_the_time_and_the_gain_that_of_neighbouring_blocks():
    def block(kind, seconds, waits):
        return {"kind": kind, "seconds": seconds, "steps": [{"wait_s": wait} for wait in waits]}

    found = input_bench.shares(
        [
            block("real", 10.0, [0.1, 0.1]),
            block("synthetic", 8.0, [0.0, 0.0]),
            block("synthetic", 10.0, [0.0, 0.0]),
            block("real", 11.0, [0.55, 0.55]),
            block("real", 10.0, [0.1, 0.3]),
            block("synthetic", 10.0, [0.0, 0.0]),
        ]
    )
    assert found["input_wait_share"] == pytest.approx(0.04)
    assert found["input_wait_share_max"] == pytest.approx(0.1)
    assert found["synthetic_gain"] == pytest.approx(0.1)
    assert (found["synthetic_gain_min"], found["synthetic_gain_max"]) == pytest.approx((0, 0.25))
    assert found["real_step_s"] == 5
