"""Settings of MPI, UCX and NCCL for a site's network, each with its reason.

Settings that hold on every network, as that the all-reduce is a ring, are in trainer/ranks/launch.py: they
reach ranks that were started without us, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.sites import Site


@dataclass(frozen=True)
class Setting:
    """One environment variable, and why it is set."""

    name: str
    value: str
    reason: str


def settings(site: Site, *, gpus: bool) -> list[Setting]:
    """Return the settings of a site's network, in the order in which a script sets them.

    Those for Infiniband and for NCCL follow the manuals of UCX, Open MPI and NCCL. They were never run on
    such hardware by us.

    Args:
        site: says which fabric and which interfaces.
        gpus: whether the job has GPUs, so that NCCL moves the data.
    """
    found: list[Setting] = []

    def add(name: str, value: str, reason: str) -> None:
        found.append(Setting(name, value, reason))

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
    return found
