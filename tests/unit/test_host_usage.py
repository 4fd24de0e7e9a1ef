"""What a run takes of its hosts: interfaces, processors, GPUs, energy, and how readings are joined."""

from __future__ import annotations

import errno
import threading
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trainer.telemetry import host_usage
from trainer.telemetry.host_usage import Gpus, HostUsage, by_host


def test_infiniband_counts_in_words_of_four_bytes(tmp_path):
    counters = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    (counters / "port_xmit_data").write_text("100\n")
    (counters / "port_rcv_data").write_text("7\n")
    (tmp_path / "mlx5_0" / "ports" / "2").mkdir()
    found = host_usage.read(tmp_path)
    assert found["mlx5_0/1"] == (400, 28) and "mlx5_0/2" not in found and "lo" in found


def test_only_interfaces_that_moved_something_are_told():
    found = host_usage.between(
        {"eth0": (5, 5), "idle": (3, 3)}, {"eth0": (9, 5), "idle": (3, 3), "new": (1, 2)}
    )
    assert found == {"eth0": {"sent": 4, "received": 0}, "new": {"sent": 1, "received": 2}}


def zone(root, name, label, joules, most=1000):
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text(label)
    (folder / "energy_uj").write_text(str(int(joules * 1e6)))
    (folder / "max_energy_range_uj").write_text(str(int(most * 1e6) - 1))


def test_energy_counters_may_run_over(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 990)
    zone(tmp_path, "intel-rapl:0:0", "dram", 10)
    zone(tmp_path, "intel-rapl:0:1", "core", 10)
    counter = host_usage.Counter(tmp_path)
    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    zone(tmp_path, "intel-rapl:0:0", "dram", 12)
    zone(tmp_path, "intel-rapl:0:1", "core", 500)  # part of the package
    assert counter.is_there and counter.sample() == pytest.approx(15 + 2)


def test_without_counters_energy_is_not_known_and_of_a_gpu_alone_it_is_the_gpus():
    (host,) = by_host(1, 4, [reading(seconds=10.0, cpu_s=5.0, cores=[0, 1])])
    assert (host.energy_j, host.energy_source) == (None, None)
    gpu = {"uuid": "u", "name": "G", "utilisation": 50.0, "memory_bytes": 9, "power_w": 5.0, "energy_j": 7.0}
    (host,) = by_host(1, 4, [reading(gpus=[gpu])])
    assert (host.energy_j, host.energy_source) == (7.0, host_usage.GPUS)


def test_a_counter_that_may_not_be_read_is_none(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert not host_usage.Counter(tmp_path).is_there
    assert not host_usage.Counter(tmp_path / "none").is_there


def reading(**changes: Any) -> dict[str, Any]:
    return {
        "host": "a", "is_first": True, "seconds": 2.0, "cpu_s": 1.0, "cores": [0], "rss_bytes": 10,
        "memory_bytes": 100, "interfaces": {"eth0": {"sent": 1, "received": 2}}, "joules": None, "gpus": [],
        **changes,
    }  # fmt: skip


def test_ranks_of_a_host_are_joined():
    gpu = {"uuid": "u", "name": "G", "utilisation": 50.0, "memory_bytes": 9, "power_w": 5.0, "energy_j": 7.0}
    second = reading(is_first=False, cores=[0, 1], interfaces={}, cpu_s=3.0, gpus=[gpu])
    first, other = by_host(2, 8, [reading(joules=30.0, gpus=[gpu]), reading(host="b"), second])
    assert (first.host, first.ranks, first.cores, first.rss_bytes) == ("a", (0, 2), 2, 20)
    assert first.cpu_percent == 200.0 and first.interfaces == {"eth0": {"sent": 1, "received": 2}}
    assert first.energy_j == 37.0  # the GPU that both ranks see, once
    assert first.energy_source == f"{host_usage.COUNTED}; {host_usage.GPUS}"
    assert first.gpus == ({"name": "G", "utilisation": 50.0, "memory_bytes": 9, "power_w": 5.0},)
    assert (other.host, other.ranks) == ("b", (1,))


def test_a_process_sees_its_own_work(monkeypatch):
    monkeypatch.setattr(host_usage, "_SAMPLE_S", 0.01)
    usage = HostUsage("here", is_first=True)
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    found = usage.end()
    usage.close()
    assert found["cpu_s"] >= 0.08 and found["seconds"] >= 0.1 and found["rss_bytes"] > 10**6
    usage.begin()
    assert usage.end()["cpu_s"] < 0.08


class Refused(Exception):
    """What the library raises."""


def library(**changes: Any) -> SimpleNamespace:
    """NVIDIA's module with two made-up GPUs."""

    def refuse(device):
        raise Refused

    calls = {
        "NVMLError": Refused,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda device: f"GPU-{device}abc",
        "nvmlDeviceGetName": lambda device: "Made-up",
        "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=40 + device),
        "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=1000),
        "nvmlDeviceGetPowerUsage": lambda device: 250_000,
        "nvmlDeviceGetTotalEnergyConsumption": refuse,
    }
    return SimpleNamespace(**{**calls, **changes})


def test_gpus_tell_what_they_can():
    (first, second) = Gpus(library(), {}).read()
    assert (first["utilisation"], second["utilisation"]) == (40.0, 41.0)
    assert (first["power_w"], first["memory_bytes"], first["energy_j"]) == (250.0, 1000, None)


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("1", 1), ("GPU-0a", 1), ("0,1", 2), ("MIG-x", 0)])
def test_only_visible_gpus_are_watched(visible, count):
    assert len(Gpus(library(), {"CUDA_VISIBLE_DEVICES": visible})) == count


def test_a_library_without_a_driver_is_no_error():
    def no_driver():
        raise Refused

    assert len(Gpus(library(nvmlInit=no_driver), {})) == 0


def test_without_an_energy_counter_a_gpus_power_over_time_counts():
    samples = [Gpus(library(), {}).read()] * 2
    assert host_usage._gpus(samples, 4.0)[0]["energy_j"] == 1000.0
    counted = [
        [{**sample[0], "energy_j": joules}] for sample, joules in zip(samples, (5.0, 9.0), strict=True)
    ]
    assert host_usage._gpus(counted, 4.0)[0]["energy_j"] == 4.0


def test_one_reading_that_fails_ends_neither_the_readings_nor_the_run(monkeypatch, capsys):
    monkeypatch.setattr(host_usage, "_SAMPLE_S", 0.01)
    failures = [OSError(errno.EIO, "Input/output error"), RuntimeError("the driver is being reset")]
    read, plain = [], Gpus.read

    def gpus(self) -> list[dict[str, Any]]:
        if failures and threading.current_thread().name == "telemetry":
            raise failures.pop()
        read.append(threading.current_thread().name)
        return plain(Gpus(library(), {"CUDA_VISIBLE_DEVICES": "0"}))

    monkeypatch.setattr(Gpus, "read", gpus)
    monkeypatch.setattr(Gpus, "__len__", lambda self: 1)
    usage = HostUsage("here", is_first=True)
    until = time.monotonic() + 20
    while failures or read.count("telemetry") < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    usage.close()
    assert usage.end()["gpus"][0]["power_w"] == 250.0
    assert capsys.readouterr().err.count("could not be read") == 1


def test_a_process_without_a_free_descriptor_keeps_what_it_read_of_its_host_before(monkeypatch):
    usage = HostUsage("here", is_first=True)
    before = usage.end()

    def no_descriptor(*arguments, **options):
        raise OSError(errno.EMFILE, "Too many open files")

    for owner, name in ((psutil, "virtual_memory"), (psutil, "net_io_counters")):
        monkeypatch.setattr(owner, name, no_descriptor)
    for name in ("cpu_times", "memory_info"):
        monkeypatch.setattr(psutil.Process, name, no_descriptor)
    usage.begin()
    after = usage.end()
    usage.close()
    assert (after["rss_bytes"], after["memory_bytes"]) == (before["rss_bytes"], before["memory_bytes"])
    assert after["cpu_s"] == 0 and after["interfaces"] == {}


def test_one_missing_reading_of_a_gpu_leaves_its_energy_counted():
    (sample, *_) = Gpus(library(), {}).read()
    rows = [[{**sample, "energy_j": joules}] for joules in (5.0, None, 9.0)]
    assert host_usage._gpus([*rows[:2], [], rows[2]], 4.0)[0]["energy_j"] == 4.0
