"""Two series of Open MPI are told the same, and other MPIs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import run_script
from site_text import site_of
from wording import fails_with

from jobs import mpi as open_mpi
from jobs.local import surviving
from jobs.local.mpirun import DETECTION
from jobs.schedulers.slurm.script import batch_script
from jobs.schedulers.slurm.site_keys import SlurmSite
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import JobError, LauncherError, LaunchError
from trainer.ranks import launch

TOKEN = "0123456789abcdef"  # noqa: S105 - names a submission
# The first lines of what `mpirun --version` says.
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"
OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"


def test_all_that_the_daemons_of_open_mpi_4_are_told_has_a_name_in_prrte():
    told = open_mpi.for_prrte({**DETECTION, "OMPI_MCA_oob_tcp_if_include": "eth0", "OMPI_MCA_btl": "tcp"})
    assert len(told) == len(DETECTION) + 1
    assert told["PRTE_MCA_plm_ssh_args"] == DETECTION["OMPI_MCA_plm_rsh_args"]
    assert told["PRTE_MCA_prte_if_include"] == "eth0"


def test_what_prrte_is_told_itself_stays():
    told = {"OMPI_MCA_oob_tcp_keepalive_time": "10", "PRTE_MCA_oob_tcp_keepalive_time": "60"}
    assert open_mpi.for_prrte(told) == {}


def script(site: Site, **keys: object) -> str:
    return batch_script(JobSpec("s", "train", (("program",),), "/", **keys), site, Path("/j"), TOKEN)  # type: ignore[arg-type]


def test_a_batch_script_tells_both_series(tmp_path):
    site = Site(interfaces=("eth0",), environment={"OMPI_MCA_oob_tcp_keepalive_probes": "7"})
    place = run_script.stubs(tmp_path)
    found = run_script.run(script(site).replace("job_folder=/j", f"job_folder={tmp_path}"), place, tmp_path)
    told = {key: value for key, value in found.environment.items() if key.startswith("PRTE_")}
    assert told.pop("PRTE_MCA_prte_launch_agent") in ("env prted", "env --block-signal=TERM prted")
    assert told == {
        "PRTE_MCA_oob_tcp_keepalive_time": "10",
        "PRTE_MCA_oob_tcp_keepalive_intvl": "10",
        "PRTE_MCA_oob_tcp_keepalive_probes": "7",
        "PRTE_MCA_prte_if_include": "eth0",
    }
    assert surviving.RECOVERY == {"PRTE_MCA_state_base_recoverable": "1"}
    assert "PRTE_" not in script(SlurmSite(launcher="srun"))


@pytest.mark.parametrize(("said", "whose"), [(INTEL, "Intel MPI"), (MPICH, "MPICH")])
def test_another_mpis_mpirun_is_refused_with_the_reason(tmp_path, said, whose):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\ncat <<'E'\n{said}E\n")
    mpirun.chmod(0o755)
    with pytest.raises(LauncherError, match=rf"mpirun belongs to {whose}.* each would train alone"):
        open_mpi.check(str(mpirun))


@pytest.mark.parametrize("said", [OPEN_MPI, "mpirun (Open MPI) 4.1.8\n", ""])
def test_open_mpis_mpirun_is_taken(tmp_path, said):
    open_mpi.refuse_other("mpirun", said)
    open_mpi.check(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("said", [INTEL, MPICH])
def test_a_batch_script_refuses_another_mpis_mpirun(tmp_path, said):
    place = run_script.stubs(tmp_path)
    text = script(Site()).replace("job_folder=/j", f"job_folder={tmp_path}")
    found = run_script.run(text, place, tmp_path, STUB_VERSION=said)
    assert (found.code, found.arguments) == (2, [])
    assert "belongs to MPICH, Cray MPICH or Intel MPI. Horovod is built with Open MPI" in found.stderr


@pytest.mark.parametrize(
    ("mpi", "why"), [("cray_shasta", "starts ranks of Cray MPICH"), ("pmi2", "is not for")]
)
def test_what_srun_starts_for_other_mpis_is_refused_with_the_reason(mpi, why):
    with pytest.raises(JobError, match=f"mpi: {mpi} {why}.*Horovod is built with Open MPI"):
        site_of(f"launcher: srun\nmpi: {mpi}")
    assert site_of("mpi: pmix_v4").mpi == "pmix_v4"


def test_ranks_that_another_mpi_started_do_not_train_alone_side_by_side(monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_SIZE", "4")
    with fails_with(LaunchError) as refused:
        launch.expected_size()
    assert refused.value.exit_code == 2  # never tried again
    monkeypatch.setenv("PMI_SIZE", "1")
    assert launch.expected_size() == 1
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert launch.expected_size() == 2
