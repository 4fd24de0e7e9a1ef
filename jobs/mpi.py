"""Environment of mpirun and its daemons, in the variables of Open MPI 4 and of Open MPI 5.

Open MPI 4 has a runtime of its own (ORTE), Open MPI 5 takes PRRTE, whose parameters have other names. Either
passes over what is meant for the other, so both are always told: which of them a host's mpirun is, a batch
script learns only there. The names are those of `prte_info --all` in Open MPI 5.0.11 (PRRTE 3.0.11). Other
MPIs than Open MPI are refused.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.sites import Site
from jobs.supervisor import mpirun_command
from trainer.errors import LauncherError

TIMEOUT_S = 20.0
_PRRTE = {
    **{
        f"OMPI_MCA_oob_tcp_keepalive_{what}": f"PRTE_MCA_oob_tcp_keepalive_{what}"
        for what in ("time", "intvl", "probes")
    },
    "OMPI_MCA_oob_tcp_if_include": "PRTE_MCA_prte_if_include",
    "OMPI_MCA_oob_tcp_if_exclude": "PRTE_MCA_prte_if_exclude",
    "OMPI_MCA_plm_rsh_args": "PRTE_MCA_plm_ssh_args",
    "OMPI_MCA_plm_rsh_agent": "PRTE_MCA_plm_ssh_agent",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "PRTE_MCA_plm_ssh_no_tree_spawn",
    "OMPI_MCA_orte_enable_recovery": "PRTE_MCA_state_base_recoverable",
}
# Variables that mpirun reads itself and hands to its daemons: it complains when told to send them (-x).
ITS_OWN = ("OMPI_", "PRTE_", "PMIX_")


def for_prrte(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Open MPI 4's daemons under PRRTE's names, except those set already."""
    return {
        ours: environment[theirs]
        for theirs, ours in _PRRTE.items()
        if theirs in environment and ours not in environment
    }


def check(mpirun: str) -> None:
    """Check that this is Open MPI's mpirun; one that does not answer is reported when it starts.

    Raises:
        LauncherError: it is that of another MPI.
    """
    try:
        answer = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    refuse_other(mpirun, answer.stdout)


def refuse_other(mpirun: str, output: str) -> None:
    """Refuse the mpirun of an MPI that its version text identifies as another.

    Raises:
        LauncherError: it is one.
    """
    whose = mpirun_command.whose(output)
    if whose is not None:
        raise LauncherError(
            f"{mpirun} belongs to {whose}. Horovod is built with Open MPI here: ranks that another MPI "
            "starts do not see each other, and each would train alone.",
            cure="Load a module with Open MPI, or name its mpirun in the site's profile (`mpirun`).",
        )


# Settings that hold on every network, as that the all-reduce is a ring, are in trainer/ranks/launch.py: they
# reach ranks that were started without us, too.


@dataclass(frozen=True)
class EnvironmentSetting:
    """One environment variable, and why it is set."""

    name: str
    value: str
    reason: str


def settings(site: Site, *, gpus: bool) -> list[EnvironmentSetting]:
    """Return the settings of a site's network, in the order in which a script sets them.

    Those for Infiniband and for NCCL follow the manuals of UCX, Open MPI and NCCL. They were never run on
    such hardware by us.

    Args:
        site: says which fabric and which interfaces.
        gpus: whether the job has GPUs, so that NCCL moves the data.
    """
    variables: list[EnvironmentSetting] = []

    def add(name: str, value: str, reason: str) -> None:
        variables.append(EnvironmentSetting(name, value, reason))

    if site.interfaces:
        names = ",".join(site.interfaces)
        # Open MPI looks at each interface that is up, and hangs where one leads nowhere (docker0, virbr0).
        add("OMPI_MCA_oob_tcp_if_include", names, "mpirun's daemons talk over these networks only.")
        if site.fabric != "infiniband":
            add("OMPI_MCA_btl_tcp_if_include", names, "Ranks talk over these networks only, not docker0.")
    if site.fabric == "ethernet":
        add("OMPI_MCA_pml", "ob1", "Over TCP, Open MPI's own protocol: our settings are measured with it.")
        add("OMPI_MCA_btl", "self,vader,tcp", "Shared memory in a host, TCP between: nothing else is tried.")
    if site.fabric == "infiniband":
        add("OMPI_MCA_pml", "ucx", "Infiniband through UCX, or an error: never silently TCP.")
        add(
            "OMPI_MCA_btl",
            "^openib,uct",
            "UCX does it all; openib is out of use and warns at each start.",
        )
        if site.infiniband_devices:
            devices = ",".join(site.infiniband_devices)
            add("UCX_NET_DEVICES", devices, "These ports only: others may be storage or management.")
    if gpus:
        add("NCCL_DEBUG", "WARN", "NCCL says why when it fails, and nothing else.")
        if site.interfaces:
            add("NCCL_SOCKET_IFNAME", "=" + ",".join(site.interfaces), "NCCL finds its peers by these only.")
        if site.fabric == "ethernet":
            add("NCCL_IB_DISABLE", "1", "There is no Infiniband: NCCL skips the search for it.")
        if site.fabric == "infiniband" and site.infiniband_devices:
            devices = "=" + ",".join(site.infiniband_devices)
            add("NCCL_IB_HCA", devices, "The same ports for NCCL; = : these names exactly.")
    return variables
