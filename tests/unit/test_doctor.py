import subprocess
from types import SimpleNamespace

import pytest

from cingulum import doctor
from trainer import processor
from trainer.errors import WorldError

HEALTHY = {
    "sum": 3.0,
    "megabytes": 8,
    "seconds": 0.01,
    "algorithm": "ring",
    "ours_differs": 0.0,
    "horovods_differs": 0.2,
    "exchange": "compiled",
    "swap_seconds": 0.004,
}


def states(probe):
    return {finding.name: finding.state for finding in doctor._judge_probe(probe)}


def test_a_healthy_probe_needs_no_mending():
    assert states(HEALTHY) == {
        "two ranks": "ok",
        "exchange": "ok",
        "optimizer": "ok",
        "Keras trap": "note",
    }


def test_ranks_that_swap_tensors_through_python_are_worth_a_note():
    probe = HEALTHY | {"exchange": "was not compiled"}
    found = next(one for one in doctor._judge_probe(probe) if one.name == "exchange")
    assert found.state == "note" and "compile_exchange" in (found.cure or "")
    assert "moves tensors between ranks was not compiled: two ranks swap 8 MB in 4 ms" in found.said


@pytest.mark.parametrize(
    ("change", "name"), [({"sum": 1.0}, "two ranks"), ({"ours_differs": 1e-7}, "optimizer")]
)
def test_a_sick_probe_is_bad_and_has_a_cure(change, name):
    findings = {finding.name: finding for finding in doctor._judge_probe(HEALTHY | change)}
    assert findings[name].state == "bad"
    assert findings[name].cure


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "horovod" else "99")
    finding = doctor.check_packages()
    assert finding.state == "bad"
    assert "horovod (missing)" in finding.said


def test_a_package_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "0.1")
    assert "h5py>=" in doctor.check_packages().said


def test_a_missing_compiled_cast_is_worth_a_note(monkeypatch):
    from trainer.data.shards import halves

    assert doctor.check_compiled_cast().state == "ok"
    monkeypatch.setattr(halves, "LIBRARY", None)
    finding = doctor.check_compiled_cast()
    assert finding.state == "note"
    assert "compiler" in (finding.cure or "")


def test_a_missing_mpirun_is_a_finding_and_no_crash(monkeypatch):
    from jobs.local import mpirun

    def nowhere():
        raise WorldError("mpirun was not found.", cure="Run make setup.")

    monkeypatch.setattr(mpirun, "find", nowhere)
    assert doctor.check_mpirun().state == "bad"
    assert [finding.state for finding in doctor.check_two_ranks()] == ["bad"]


@pytest.mark.parametrize("body", ["exit 0", "echo no such library >&2; exit 127"])
def test_an_mpirun_that_says_no_version_is_a_finding_and_no_crash(monkeypatch, tmp_path, body):
    from jobs.local import mpirun

    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(mpirun, "find", lambda: str(program))
    finding = doctor.check_mpirun()
    assert finding.state == "bad" and str(program) in finding.said
    assert ("no such library" in finding.said) == ("127" in body)


def test_root_is_told_what_open_mpi_wants(monkeypatch):
    for name in doctor.ROOT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    finding = doctor.check_mpirun()
    assert finding.state == "note"
    assert finding.cure == "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    for name in doctor.ROOT:
        monkeypatch.setenv(name, "1")
    assert doctor.check_mpirun().state == "ok"
    monkeypatch.delenv(doctor.ROOT[0])
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    assert doctor.check_mpirun().state == "ok"


def test_ranks_that_die_are_a_finding_with_their_last_words(monkeypatch):
    died = SimpleNamespace(returncode=1, stdout="", stderr="no route to host\n")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **kwargs: died)
    (finding,) = doctor.check_two_ranks()
    assert finding.state == "bad"
    assert "no route to host" in finding.said


def test_little_memory_is_bad(monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**29))
    assert doctor.check_memory().state == "bad"


def test_little_shared_memory_is_bad(monkeypatch):
    usage = {"/dev/shm": 2**20}  # noqa: S108
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=usage.get(path, 2**40))
    )
    assert "shm-size" in (doctor.check_disk().cure or "")


@pytest.mark.parametrize(
    ("library", "state"), [(b". HOROVOD_IDLE_CYCLE_TIME .", "ok"), (b"released", "note")]
)
def test_a_horovod_that_polls_is_worth_a_note(tmp_path, monkeypatch, library, state):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "mpi_lib.cpython-311.so").write_bytes(library)
    where = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(doctor, "find_spec", lambda name: where)
    finding = doctor.check_horovod_wakes()
    assert finding.state == state
    assert bool(finding.cure) == (state == "note")


@pytest.mark.parametrize(
    ("onednn", "setting", "state"), [(True, "1", "ok"), (False, "0", "note"), (None, None, "ok")]
)
def test_convolutions_without_onednn_where_it_would_be_faster_are_worth_a_note(
    monkeypatch, onednn, setting, state
):
    here = processor.HostProcessor("AMD EPYC", None if onednn is None else "AVX2", onednn)
    monkeypatch.setattr(processor, "here", lambda: here)
    monkeypatch.setenv(processor.ONEDNN, setting or "")
    finding = doctor.check_processor()
    assert finding.state == state and finding.said.startswith(str(here))
    if state == "note":
        assert "by TF_ENABLE_ONEDNN_OPTS=0: 3D convolutions take several times as long" in finding.said
        assert finding.cure == "unset TF_ENABLE_ONEDNN_OPTS, or set it to 1"


@pytest.mark.parametrize("knows_capability", [True, False])
def test_gpus_are_told_with_the_precisions_that_they_compute_fast(knows_capability, tmp_path, monkeypatch):
    """A program stands in for nvidia-smi, and answers for two GPUs."""
    program = tmp_path / "nvidia-smi"
    refused = "" if knows_capability else 'case "$1" in *compute_cap*) exit 6;; esac\n'
    program.write_text(
        f"#!/bin/sh\n{refused}"
        'case "$1" in *compute_cap*) a=", 9.0" b=", 7.0";; esac\n'
        'echo "NVIDIA H100, 81559 MiB, 580.1$a"\necho "Tesla V100, 16384 MiB, 580.1$b"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ran = subprocess.CompletedProcess([], 0, stdout="[2, true]\n", stderr="")
    monkeypatch.setattr(doctor, "_python", lambda arguments: ran)
    found = doctor.check_gpu()
    assert found.state == "ok"
    told = found.said.partition(";")[0].split(" / ")
    if not knows_capability:
        assert told == ["NVIDIA H100, 81559 MiB, 580.1", "Tesla V100, 16384 MiB, 580.1"]
        return
    fast = "tensor cores for float32 (as TF32), mixed_bfloat16 and mixed_float16"
    assert told[0] == f"NVIDIA H100, 81559 MiB, 580.1, {fast}"
    assert told[1] == "Tesla V100, 16384 MiB, 580.1, tensor cores for mixed_float16 only"


def test_a_gpu_of_before_tensor_cores_has_none():
    assert doctor.fast_precisions("6.1") == "no tensor cores: float32"
    assert doctor.fast_precisions("[N/A]") == "compute capability [N/A]"
