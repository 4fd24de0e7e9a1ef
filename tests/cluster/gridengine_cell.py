"""A cell of Grid Engine on the hosts of a testbed: qmaster on the first, execd on all; real daemons."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from jobs.testbed import Testbed

PROGRAMS = ("sge_qmaster", "sge_execd", "qsub")
_SHARE, _LIBRARY = Path("/usr/share/gridengine"), Path("/usr/lib/gridengine")
_PE = """\
pe_name cingulum
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule 1
control_slaves FALSE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
_NONE = """load_thresholds suspend_thresholds ckpt_list prolog epilog starter_method suspend_method
resume_method terminate_method owner_list user_lists xuser_lists subordinate_list complex_values projects
xprojects calendar"""
_QUEUE = """\
qname all.q
hostlist @hosts
seq_no 0
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH
pe_list cingulum
rerun TRUE
slots 1
tmpdir /tmp
shell /bin/bash
shell_start_mode unix_behavior
notify 00:00:20
initial_state default
""" + "".join(f"{key} NONE\n" for key in _NONE.split())
_LIMITS = "rt cpu fsize data stack core rss vmem"
_QUEUE += "".join(f"{kind}_{what} INFINITY\n" for kind in "sh" for what in _LIMITS.split())
_BOOTSTRAP = """\
admin_user root
default_domain none
ignore_fqdn false
spooling_method classic
spooling_lib libspoolc
spooling_params {root}/default/common;{root}/spool/qmaster
binary_path /usr/sbin
qmaster_spool_dir {root}/spool/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
# Times for tests: what has ended, and hosts that are silent, are seen within seconds.
_QUICK = {"load_report_time": "00:00:02", "max_unheard": "00:00:10", "reschedule_unknown": "00:00:05"}
_BY_ROOT = {"min_uid": "0", "min_gid": "0"}


class Cell:
    """Grid Engine on a testbed.

    Args:
        testbed: whose hosts it takes.
        root: folder that all hosts see.
    """

    def __init__(self, testbed: Testbed, root: Path) -> None:
        self.testbed, self.root = testbed, root
        ports = {"SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        self.environment = {"SGE_ROOT": str(root), "SGE_CELL": "default", **ports}

    def up(self) -> None:
        """Make the cell and start its daemons."""
        master, common = self.testbed.hosts[0], self.root / "default" / "common"
        for folder in (common, self.root / "spool" / "qmaster", self.root / "spool" / "execd"):
            folder.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self.root / name).symlink_to(Path("/var/lib/gridengine") / name)
        (common / "bootstrap").write_text(_BOOTSTRAP.format(root=self.root))
        (common / "act_qmaster").write_text(f"{master}\n")
        spool = f"{common};{self.root}/spool/qmaster"
        self.run(str(_LIBRARY / "spoolinit"), "classic", "libspoolc", spool, "init")
        defaults = str(_LIBRARY / "spooldefaults")
        known = (_SHARE / "default-configuration").read_text()
        wanted = {**_QUICK, **_BY_ROOT, "execd_spool_dir": f"{self.root}/spool/execd"}
        self.run(defaults, "configuration", self.file("configuration", _changed(known, wanted)))
        self.run(defaults, "complexes", str(_SHARE / "util" / "resources" / "centry"))
        self.run(defaults, "usersets", str(_SHARE / "util" / "resources" / "usersets"))
        self.run(defaults, "managers", "root")
        self.run("/usr/sbin/sge_qmaster")
        others = ",".join(self.testbed.hosts[1:])
        self.run("qconf", "-ah", others)
        self.run("qconf", "-as", f"{master},{others}")
        schedule = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
        self.run("qconf", "-Msconf", self.file("schedule", _changed(self.run("qconf", "-ssconf"), schedule)))
        hosts = {"group_name": "@hosts", "hostlist": " ".join(self.testbed.hosts)}
        self.run("qconf", "-Ahgrp", self.file("hosts", _lines(hosts)))
        self.run("qconf", "-Ap", self.file("pe", _PE))
        self.run("qconf", "-Aq", self.file("queue", _QUEUE))
        for host in self.testbed.hosts:
            self.run("/usr/sbin/sge_execd", host=host)

    def file(self, name: str, text: str) -> str:
        path = self.root / name
        path.write_text(text)
        return str(path)

    def run(self, *command: str, host: str | None = None, **more: str) -> str:
        """Return what a command prints on a host, the master's by default; it must end well."""
        done = self.testbed.exec(
            host or self.testbed.hosts[0],
            command,
            timeout=120,
            cwd="/",
            environment={**self.environment, **more},
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)


def missing() -> str:
    """Which program is not here; "": none."""
    return ", ".join(name for name in PROGRAMS if shutil.which(name, path="/usr/bin:/usr/sbin") is None)


def _lines(values: Mapping[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in values.items())


def _changed(text: str, values: Mapping[str, str]) -> str:
    """The same `key value` lines, some with other values."""
    rows = [line.split(None, 1) for line in text.splitlines() if line.strip() and line[0] not in "# "]
    return _lines({**{row[0]: row[1] if len(row) > 1 else "NONE" for row in rows}, **values})
