"""Environment of mpirun and its daemons, in the variables of Open MPI 4 and of Open MPI 5.

Open MPI 4 has a runtime of its own (ORTE), Open MPI 5 takes PRRTE, whose parameters have other names. Either
passes over what is meant for the other, so both are always told: which of them a host's mpirun is, a batch
script learns only there. The names are those of `prte_info --all` in Open MPI 5.0.11 (PRRTE 3.0.11). Other
MPIs than Open MPI are refused.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from jobs.supervisor import launching
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
        asked = subprocess.run(
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
    refuse_other(mpirun, asked.stdout)


def refuse_other(mpirun: str, said: str) -> None:
    """Refuse the mpirun of an MPI that its version text identifies as another.

    Raises:
        LauncherError: it is one.
    """
    whose = launching.whose(said)
    if whose is not None:
        raise LauncherError(
            f"{mpirun} belongs to {whose}. Horovod is built with Open MPI here: ranks that another MPI "
            "starts do not see each other, and each would train alone.",
            cure="Load a module with Open MPI, or name its mpirun in the site's profile (`mpirun`).",
        )
