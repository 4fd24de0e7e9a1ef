"""Profiles of sites: found by name or path, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_text import site_of
from wording import fails_with

from jobs import mpi
from jobs.schedulers import registry, site_profiles
from jobs.sites import HERE, Site
from trainer.errors import JobError, LauncherError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own(monkeypatch, tmp_path) -> Path:
    """The folder of the user's own profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    place = tmp_path / "cingulum" / "sites"
    place.mkdir(parents=True)
    return place


def test_without_a_name_nothing_is_known_of_the_site():
    assert site_profiles.load(None) == HERE


def test_the_users_default_needs_no_name(own):
    (own / "default.yaml").write_text("partition: mine")
    assert site_profiles.load(None) == site_profiles.model()(name="default", partition="mine")


def test_the_users_profile_comes_before_one_of_ours(own):
    assert site_profiles.load("lab").partition == "gpu"
    (own / "lab.yaml").write_text("partition: mine")
    assert site_profiles.load("lab").partition == "mine"
    assert dict(site_profiles.listed())["lab"] == own / "lab.yaml"


def test_a_path_is_read_as_it_is(tmp_path):
    path = tmp_path / "near.yaml"
    path.write_text("name: there\nminutes: 5")
    assert site_profiles.load(str(path)) == site_profiles.model()(name="there", minutes=5)


def test_an_unknown_name_is_answered_with_one_like_it():
    with fails_with(JobError) as caught:
        site_profiles.load("center")
    assert "lab" in str(caught.value)


@pytest.mark.parametrize("name", ["gone.yaml", "./gone", "/", "~no-such-user/x.yaml"])
def test_a_file_that_cannot_be_read_is_named(name):
    with fails_with(JobError):
        site_profiles.load(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partitoin: gpu", "unknown key 'partitoin'. Did you mean 'partition'?"),
        ("partition: [a]", "partition: must be text, not ['a']"),
        ("partition: 'a b'", "partition: "),
        ("launcher: ssh", "launcher: must be 'mpirun' or 'srun', not 'ssh'"),
        ("minutes: 0", "minutes: "),
        ("options: [--constraint='a b']", "without blanks and quotes"),
        ("options: [-p gpu]", "without blanks and quotes"),
        ("launcher: srun\nsrun_options: [-l]", "without blanks and quotes"),
        ("srun_options: [--cpu-bind=none]", "srun_options need launcher: srun"),
        ("modules: ['a; b']", "modules, entry 1: must be letters"),
        ("interfaces: [eth0 eth1]", "interfaces, entry 1: must be letters"),
        ("environment: {A B: c}", "is not the name of a variable"),
        ("environment: {PGPASSWORD: c}", "looks like a secret"),
        ("gpu_request: gpus-per-task", "needs launcher: srun"),
        ("infiniband_devices: [mlx5_0]", "need fabric: infiniband"),
        ("- a", "holds no keys"),
        ("", "holds no keys"),
        ("a: [", "is not YAML"),
        ("!!python/object/apply:os.getcwd []", "line 1: the tag "),
    ],
)
def test_what_a_profile_cannot_hold_is_refused_with_its_key(text, said):
    with pytest.raises(JobError) as caught:
        site_of(text)
    assert caught.value.message.partition("/x.yaml: ")[1]
    assert said in caught.value.message


def test_the_profiles_that_we_ship_say_what_they_are_for():
    ours = [path for _, path in site_profiles.listed() if path.parent == site_profiles.shipped() / "sites"]
    assert len(ours) >= 5
    for path in ours:
        assert site_profiles.load(path.stem).description
        assert path.read_text().startswith("# ")


def test_every_key_is_in_the_reference():
    """That the page is as it is made, test_reference_pages looks at."""
    page = (ROOT / "docs" / "reference" / "site-profile.md").read_text()
    for key, field in Site.model_fields.items():
        assert f"| `{key}` |" in page
        assert field.description


def test_the_folder_at_the_top_is_the_one_that_is_shipped():
    assert (ROOT / "slurm" / "sites").samefile(site_profiles.shipped() / "sites")
    assert not (ROOT / "slurm").is_symlink()


def test_only_what_a_network_needs_is_set():
    assert mpi.settings(HERE, gpus=False) == []
    ethernet = Site(fabric="ethernet", interfaces=("eth0", "eth1"))
    found = {setting.name: setting.value for setting in mpi.settings(ethernet, gpus=False)}
    assert found["OMPI_MCA_btl_tcp_if_include"] == "eth0,eth1"
    assert not any(name.startswith("NCCL") for name in found)
    infiniband = Site(fabric="infiniband", infiniband_devices=("mlx5_0:1",))
    found = {setting.name: setting.value for setting in mpi.settings(infiniband, gpus=True)}
    assert found["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert found["NCCL_IB_HCA"] == "=mlx5_0:1"
    over_ethernet = {setting.name: setting.value for setting in mpi.settings(ethernet, gpus=True)}
    assert (over_ethernet["NCCL_SOCKET_IFNAME"], over_ethernet["NCCL_IB_DISABLE"]) == ("=eth0,eth1", "1")
    assert "OMPI_MCA_btl_tcp_if_include" not in found


def test_every_setting_has_its_reason():
    for kind in ("ethernet", "infiniband"):
        devices = ("mlx5_0",) if kind == "infiniband" else ()
        site = Site(fabric=kind, interfaces=("eth0",), infiniband_devices=devices)
        settings = mpi.settings(site, gpus=True)
        assert len({setting.name for setting in settings}) == len(settings) >= 5
        assert all(setting.reason.endswith(".") for setting in settings)


def test_two_schedulers_with_a_key_of_one_name_are_refused(monkeypatch):
    class OtherSite(Site):
        mpi: str = ""

    class Other:
        name, site = "other", OtherSite

    ours = list(registry.every_scheduler())
    monkeypatch.setattr(registry, "every_scheduler", lambda: [*ours, Other()])
    site_profiles.model.cache_clear()
    with fails_with(LauncherError):
        site_profiles.model()
