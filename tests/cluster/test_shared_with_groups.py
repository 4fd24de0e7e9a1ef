"""Several users over one PostgreSQL, each with a service of their own: a group sees what is shared with it.

Users and groups are real to all programs: they run where /etc/passwd and /etc/group are files of the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from postgresql import url
from starlette.routing import Route
from test_store_postgresql import database, empty  # noqa: F401  (a fixture)

from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket
from cingulum.service.jobs_now import JobsNow
from jobs.store.store import Store

ROOT = Path(__file__).parents[2]
USERS = "root:x:0:0::/root:/bin/sh\nada:x:7001:7001::{0}/ada:/bin/sh\nben:x:7002:7002::{0}/ben:/bin/sh\n"
USERS += "eve:x:7003:7003::{0}/eve:/bin/sh\n"
GROUPS = "root:x:0:\nada:x:7001:\nben:x:7002:\neve:x:7003:\nneuro:x:7100:{members}\n"
# As ada, a job with a run folder and a log, which a group may read, and one for herself.
SUBMITS = """
import sys
from pathlib import Path
sys.path.insert(0, {helpers!r})
from jobs_to_serve import add, write_run
from jobs.schedulers.base import TaskState
from jobs.store.store import Store
class Slurm:
    jobs = {{}}
running, failed = TaskState(0, "RUNNING", hosts=("n1",), started=1.7e9), TaskState(0, "FAILED", 1)
for name, state in (("shown", running), ("hidden", failed)):
    job = add(Store(), Slurm, name, state, run=write_run(Path({runs!r}) / name, 5))
    (Path(job.folder) / "out-0.log").rename(Path(job.folder) / "out.log")
"""


@dataclass
class Site:
    """A host with users, who share a store."""

    folder: Path
    store: str

    def words(self, user: str, *words: object) -> list[str]:
        """Return a command line that runs as this user, who finds the site's users and groups."""
        files = [self.folder / name for name in ("passwd", "group")]
        inside = " && ".join(f"mount --bind {path} /etc/{path.name}" for path in files)
        become = f"exec setpriv --reuid {user} --regid {user} --init-groups --"
        return ["unshare", "--mount", "sh", "-c", f'{inside} && {become} "$@"', "sh", *map(str, words)]

    def environment(self, user: str) -> dict[str, str]:
        home = self.folder / user
        own = {"HOME": str(home), "CINGULUM_HOME": str(home / "cingulum"), "CINGULUM_STORE": self.store}
        return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, user: str, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(user, sys.executable, *words),
            env=self.environment(user),
            cwd=self.folder / user,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def cingulum(self, user: str, *words: object) -> subprocess.CompletedProcess[str]:
        return self.run(user, "-m", "cingulum", *words)

    def members(self, *names: str) -> None:
        """Change who is in the group, in the very file that is seen as /etc/group."""
        (self.folder / "group").write_text(GROUPS.format(members=",".join(names)))


@pytest.fixture(scope="module")
def site(database) -> Iterator[Site]:  # noqa: F811
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))):
        why = "needs root, unshare and setpriv, to run as several users"
        if os.environ.get("CINGULUM_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"CINGULUM_REQUIRE_CLUSTER=1, and the test {why}")
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="cingulum-site-"))
    try:
        folder.chmod(0o755)
        site = Site(folder, url(database.folder))
        (folder / "passwd").write_text(USERS.format(folder))
        site.members("ada", "ben")
        for number, user in enumerate(("ada", "ben", "eve"), 7001):
            (folder / user).mkdir(mode=0o755)
            os.chown(folder / user, number, number)
        empty(database.folder)
        text = SUBMITS.format(helpers=str(ROOT / "tests" / "helpers"), runs=str(folder / "ada" / "runs"))
        assert (made := site.run("ada", "-c", text)).returncode == 0, made.stderr
        yield site
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def clients(site) -> Iterator[dict[str, httpx2.Client]]:
    """A client of the service of each user."""
    with ExitStack() as stack:
        found, started = {}, {}
        for user in ("ada", "ben", "eve"):
            words = site.words(user, sys.executable, "-m", "cingulum", "serve", "--json")
            started[user] = stack.enter_context(
                subprocess.Popen(
                    words,
                    env=site.environment(user),
                    cwd=site.folder / user,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(started[user].terminate)
        for user, process in started.items():
            socket = json.loads(process.stdout.readline())["socket"]
            client = httpx2.Client(
                transport=httpx2.HTTPTransport(uds=socket),
                base_url="http://localhost",
                headers={"X-Cingulum": "1"},
                timeout=60,
            )
            found[user] = stack.enter_context(client)
        yield found


@pytest.fixture
def shown(site) -> Iterator[str]:
    """The key of ada's job, shared with the group."""
    job = Store(site.store).get("4711")
    shared = site.cingulum("ada", "share", "4711", "neuro")
    assert shared.stdout == "4711 is shared with neuro\n", shared.stderr
    yield job.key
    site.members("ada", "ben")
    site.cingulum("ada", "share", "4711", "neuro", "--stop")


def about_a_job() -> list[tuple[str, str]]:
    """Every method and address of one job."""

    def flat(routes) -> list[Route]:
        inner = [(route, getattr(route, "original_router", None)) for route in routes]
        return [
            one for route, router in inner for one in ([route] if router is None else flat(router.routes))
        ]

    from served import checks

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(JobsNow(Store(Path(folder) / "jobs.db")), AtSocket("me"), looks=checks()).app
    return [
        (method, route.path)
        for route in flat(app.routes)
        for method in sorted(route.methods or ())
        if "/jobs/{identity}" in route.path
    ]


def asked(client: httpx2.Client, method: str, path: str, key: str) -> tuple[int, str]:
    """Return the status of an answer, and the code of an error; of a stream of events its beginning."""
    body = {"/nice": {"by": 1}, "/share": {"groups": ["neuro"]}}.get(
        path.removeprefix("/api/v1/jobs/{identity}")
    )
    address = path.replace("{identity}", key) + ("?text=x" if path.endswith("/search") else "")
    with client.stream(method, address, json=body) as answer:
        if answer.status_code == 200:
            return 200, next(answer.iter_lines()) if path.endswith("/events") else ""
        answer.read()
        return answer.status_code, answer.json()["error"]["code"]


def test_without_a_group_of_theirs_others_find_no_job_at_any_address(clients, shown, site) -> None:
    site.members("ada", "ben")
    addresses = about_a_job()
    assert len(addresses) >= 18
    hidden = Store(site.store).get("4712").key
    for user, key in (("eve", shown), ("ben", hidden)):
        for method, path in addresses:
            for name in (key, "4711" if user == "eve" else "4712"):
                # A stream of events only says that there is no such job, as of any other id.
                expected = (200, "event: changed") if path.endswith("/events") else (404, "NOT_FOUND")
                assert asked(clients[user], method, path, name) == expected, (path, user)
        assert clients[user].get(f"/api/v1/compare?runs={key}").json()["runs"] == []
    assert clients["eve"].get("/api/v1/jobs").json()["total"] == 0
    assert "shown" not in clients["eve"].get("/api/v1/jobs").text + clients["eve"].get("/metrics").text
    for command in ("show", "cancel", "share"):
        said = site.cingulum("eve", command, "4711")
        assert said.returncode == 2 and "There is no job '4711'" in said.stderr, said


def test_a_member_may_read_all_of_a_shared_job_and_change_nothing(clients, shown, site) -> None:
    before = Store(site.store).get(shown)
    for method, path in about_a_job():
        status, code = asked(clients["ben"], method, path, shown)
        if method not in ("GET", "HEAD"):
            assert (status, code) == (403, "NOT_YOURS"), path
        elif path.endswith(("/log", "/log/search")):
            assert (status, code) == (403, "UNREADABLE"), path  # in ada's private home
        elif path.endswith(("/time", "/placement", "/report", "/submission")):
            assert status in (400, 404), (path, code)  # this run has none
        else:
            assert status == 200, (path, code)
    page = clients["ben"].get("/api/v1/jobs").json()
    assert [(one["name"], one["user"], one["mine"]) for one in page["jobs"]] == [("shown", "ada", False)]
    assert page["jobs"][0]["best"]["metric"] == "val_loss"
    assert clients["ben"].get("/api/v1/jobs?whose=mine").json()["total"] == 0
    assert clients["ada"].get("/api/v1/jobs?whose=shared").json()["total"] == 0
    html = clients["ben"].get(f"/jobs/{shown}").text
    assert 'id="cancel"' not in html and 'id="acts"' not in html
    for command in (("cancel", "4711"), ("share", "4711", "neuro")):
        said = site.cingulum("ben", *command)
        assert said.returncode == 2 and "is ada's, and only shared with you" in said.stderr, said
    after = Store(site.store).get(shown)
    assert after.state == before.state and after.tasks == before.tasks
    assert {one.who.split()[0] for one in Store(site.store).actions(shown)} == {"ada"}


def test_the_log_is_read_where_its_permissions_allow_it(clients, shown, site) -> None:
    folder = Path(Store(site.store).get(shown).folder)
    opened = [folder, *folder.parents[:2]]
    try:
        for path in opened:
            path.chmod(0o711)
        assert "epoch 1 loss" in clients["ben"].get(f"/api/v1/jobs/{shown}/log").json()["text"]
        assert "epoch 1 loss" in site.cingulum("ben", "logs", "4711").stdout
        # A pipe in its place keeps nobody waiting.
        (folder / "out.log").rename(folder / "kept")
        os.mkfifo(folder / "out.log")
        assert clients["ben"].get(f"/api/v1/jobs/{shown}/log").status_code == 404
        (folder / "kept").rename(folder / "out.log")
    finally:
        for path in opened:
            path.chmod(0o700)


def test_who_leaves_the_group_or_is_no_longer_shared_with_sees_nothing_at_the_next_request(
    clients, shown, site
) -> None:
    address = f"/api/v1/jobs/{shown}"
    assert clients["ben"].get(address).status_code == 200
    site.members("ada")
    assert clients["ben"].get(address).status_code == 404
    assert clients["ben"].get("/api/v1/jobs").json()["total"] == 0
    site.members("ada", "ben", "eve")
    assert clients["eve"].get(address).json()["shared_with"] == ["neuro"]
    stopped = clients["ada"].post(f"{address}/share", json={"groups": ["neuro"], "stop": True})
    assert (stopped.status_code, stopped.json()["shared_with"]) == (200, [])
    assert [clients[user].get(address).status_code for user in ("ada", "ben", "eve")] == [200, 404, 404]
    told = [(one.action, one.who) for one in Store(site.store).actions(shown)][-2:]
    assert told == [
        ("share with neuro", "ada (command line)"),
        ("stop sharing with neuro", "ada (service, own socket)"),
    ]


def test_one_shares_only_with_own_groups(clients, site) -> None:
    said = site.cingulum("eve", "share", "4711", "neuro")
    assert said.returncode == 2
    said = site.cingulum("ada", "share", "4711", "eve")
    assert said.returncode == 2 and "'eve' is not a group of ada" in said.stderr
    assert "Your groups: ada, neuro." in said.stderr
    answer = clients["ada"].post("/api/v1/jobs/4711/share", json={"groups": ["root"]})
    assert answer.status_code == 400 and Store(site.store).shared_with(Store(site.store).get("4711")) == []
