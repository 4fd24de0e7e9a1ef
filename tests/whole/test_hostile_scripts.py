"""Whatever a name, path, argument or variable holds, a rendered script means exactly that, or is refused."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import run_script
import yaml
from draws import draws
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from site_text import site_of
from wording import fails_with

from jobs import containers
from jobs.schedulers.slurm.script import batch_script
from jobs.sites import Site
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError

pytestmark = pytest.mark.drawn

TOKEN = "0123456789abcdef"  # noqa: S105 - names a submission
NASTY = [
    *("", " ", "-", "--", "-rf", "--wrap=id", "*", "~", "~root", "!!", "a b", "it's", '"'),
    *("\\", "\\'", "'; touch PWNED #", '"; touch PWNED #', "$(touch PWNED)"),
    *("`touch PWNED`", "${HOME}", "$HOME", "$'\\x41'", "a\ntouch PWNED\n"),
    *("\n#SBATCH --partition=root\n", "\r\n", "\x1b[2J", "\x7f", "{{ token }}"),
    *("{% raw %}", "{a,b}", "&& touch PWNED", "| tee PWNED", "> PWNED", "<(id)", "%j", "%"),
    *("=", "=x", "A=b", "\xfcn\xefc\xf6d\xe9 \u8133 \u202e \u2028 \x85", "\udcff"),
    *("nul\x00", "x" * 5000, "EOF\n", "#", ":", "a,b:c", ";", "[a-z]?"),
]
hostile = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(NASTY), max_size=3).map("".join),
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.text("'\"\\$`(){}\n\r\t -#%=!*~;&|<>ab", max_size=20),
)
# What a file system and a program can hold at all; the rest is refused, which other tests look at.
possible = hostile.filter(lambda text: "\0" not in text and is_unicode(text))
printable = possible.filter(lambda text: text.isprintable() and "\\" not in text)
variable = st.from_regex(r"V_[A-Z0-9_]{1,6}", fullmatch=True)
numbers = itertools.count()


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return run_script.stubs(tmp_path_factory.mktemp("stubs"))


def parsed(**keys: object) -> Site:
    """A profile through its YAML file, as users write them."""
    return site_of(yaml.safe_dump(keys))


def made(root: Path, text: str) -> Path:
    """A folder of this name, as near as file systems allow."""
    name = text.replace("/", "_").encode()[:200].decode(errors="ignore")
    folder = root / "in" / (f"-{name}" if name in ("", ".", "..") else name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def slurm_options(script: str) -> dict[str, str]:
    """Options of the #SBATCH lines as Slurm reads them: up to the first line that is no comment."""
    head = itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), script.split("\n"))
    lines = [line.removeprefix("#SBATCH ") for line in head if line.startswith("#SBATCH")]
    found = {}
    for line in lines:
        (word,) = shlex.split(line)
        key, _, value = word.partition("=")
        assert key not in found
        found[key] = value
    return found


@settings(max_examples=draws(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=possible,
    arguments=st.lists(possible, max_size=5),
    others=st.lists(possible, max_size=2),
    environment=st.dictionaries(variable, possible, max_size=3),
    of_the_site=st.dictionaries(variable, possible, max_size=2),
    folder=possible,
    job_folder=st.one_of(printable, possible),
    setup=possible,
    scratch=possible.filter(lambda text: "$" not in text),
    launcher=st.sampled_from(["mpirun", "srun", "none"]),
    locale=st.sampled_from(["C", "C.UTF-8"]),
)
@example("n", ["a\r\nb", "'"], ["\n"], {"V_A": "\n'"}, {}, "it's", "it's", "if (", "s c", "mpirun", "C")
def test_the_launcher_gets_what_the_job_says(
    place,
    name,
    arguments,
    others,
    environment,
    of_the_site,
    folder,
    job_folder,
    setup,
    scratch,
    launcher,
    locale,
):
    parallel = launcher != "none"
    program = str(place / "program")
    with TemporaryDirectory(prefix="hostile") as temporary:
        root = Path(temporary).resolve()
        run_in, private = made(root / "work", folder), made(root / "jobs", job_folder)
        try:
            site = parsed(
                launcher=launcher if parallel else "mpirun",
                setup=setup,
                scratch=scratch,
                environment=of_the_site,
                mpirun=str(place / "mpirun"),
            )
            tasks = ((program, *others), (program, *arguments))
            spec = JobSpec(name, "train", tasks, str(run_in), parallel=parallel, environment=environment)
            script = batch_script(spec, site, private, TOKEN)
        except JobError as error:
            if "':'" in error.message:
                assert parallel and any(":" in task for task in tasks)
                return
            assert "Slurm cannot write" in error.message
            assert not (private.name.isprintable() and "\\" not in private.name)
            return
        notes = root / "notes"
        notes.mkdir()
        (private / "out-1.log").touch()
        noted = run_script.run(script, place, notes, task=1, LC_ALL=locale)

        assert noted.code == 0, noted.stderr
        assert not list(root.rglob("PWNED"))
        words = noted.arguments
        assert words[len(words) - 1 - len(arguments) :] == [program, *arguments]
        if launcher == "mpirun":
            launch = words[: -1 - len(arguments)]
            assert launch[:3] == [str(place / "mpirun"), "-np", "2"]
            assert launch[-2:] == ["--bind-to", "none"]
            assert len(launch) < 20
        for key, value in {**of_the_site, **environment}.items():
            assert noted.environment[key] == value
        assert noted.environment["CINGULUM_SCRATCH"] == scratch if scratch else True
        assert noted.folder == str(run_in)
        assert [text.strip() for text in noted.setup] == ([setup.strip()] if setup.strip() else [])
        options = slurm_options(script)
        assert options["--comment"] == f"cingulum:{TOKEN}"
        assert options["--output"].replace("%%", "\0").replace("%a", "1").replace("\0", "%") == (
            f"{private}/out-1.log"
        )
        assert "--partition" not in options
        assert "\r" not in script  # sbatch would refuse it


@settings(max_examples=draws(150))
@given(
    key=st.sampled_from(["partition", "account", "qos", "gpu_type", "mpi"]),
    text=hostile,
)
@example(key="mpi", text="a,b:c")
def test_names_for_slurm_are_plain_or_refused(key, text):
    try:
        site = parsed(launcher="srun", gpu_request="gres", **{key: text})
    except JobError:
        return
    resources = Resources(gpus_per_node=1)
    script = batch_script(JobSpec("n", "train", (("p",),), "/", resources), site, Path("/j"), TOKEN)
    options = slurm_options(script)
    if key == "mpi":
        (line,) = [line for line in script.splitlines() if line.startswith("supervised+=(--requeues=")]
        assert f"--mpi={text}" in shlex.split(line.removeprefix("supervised+=(").removesuffix(")"))
    elif key == "gpu_type":
        assert options["--gres"] == f"gpu:{text}:1"
    else:
        assert options[f"--{key}"] == text


@settings(max_examples=draws(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(["modules", "interfaces", "options"]),
    texts=st.lists(hostile, min_size=1, max_size=3),
)
def test_lists_of_names_are_plain_or_refused(place, tmp_path, key, texts):
    try:
        site = parsed(fabric="ethernet", **{key: texts})
        script = batch_script(JobSpec("n", "train", (("program",),), "/"), site, tmp_path / "j", TOKEN)
    except JobError:
        return
    notes = tmp_path / str(next(numbers))
    notes.mkdir()
    noted = run_script.run(script, place, notes)
    assert noted.code == 0, noted.stderr
    if key == "modules":
        assert noted.modules == [word for text in texts for word in ("load", text)]
    elif key == "interfaces":
        assert noted.environment["OMPI_MCA_btl_tcp_if_include"] == ",".join(texts)
    else:
        assert set(texts) <= {f"{k}={v}" if v else k for k, v in slurm_options(script).items()}


@settings(max_examples=draws(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    image=possible,
    binds=st.lists(possible, max_size=2),
    readonly=st.lists(possible, max_size=2),
    further=st.lists(possible, max_size=2),
    environment=st.dictionaries(variable, possible, max_size=2),
)
def test_a_container_gets_its_image_folders_and_variables(
    place, tmp_path, image, binds, readonly, further, environment
):
    notes = tmp_path / str(next(numbers))
    notes.mkdir()
    image, binds, readonly = f"/{image}", [f"/{path}" for path in binds], [f"/{path}" for path in readonly]
    site = parsed(container="apptainer", container_options=further)
    spec = JobSpec(
        *("n", "train", (("/here/bin/cingulum", "-x"),), "/"),
        image=image,
        binds=tuple(binds),
        readonly=tuple(readonly),
        environment=environment,
    )
    noted = run_script.run(batch_script(spec, site, tmp_path / "j", TOKEN), place, notes)
    line = containers.wrap(
        *(("cingulum", "-x"), image, ["/", str(tmp_path / "j"), *binds], 0, environment),
        readonly=readonly,
        folder="/",
        options=further,
    )
    assert noted.arguments[-len(line) :] == list(line)


@settings(max_examples=draws(150))
@given(st.dictionaries(hostile, hostile, min_size=1, max_size=2))
def test_names_of_variables_are_names_or_refused(environment):
    try:
        JobSpec("n", "train", (("p",),), "/", environment=environment)
    except JobError:
        return
    assert all(name.isidentifier() and name.isascii() for name in environment)


@pytest.mark.parametrize(
    "name",
    ["PATH_X", "IFS", "BASH_ENV", "SLURM_JOB_ID", "UID", "DB_PASSWORD", "HF_TOKEN", "SMTP_PASS", "MYSQL_PWD"],
)
def test_variables_of_the_shell_and_secrets_are_refused(name):
    if name == "PATH_X":  # an ordinary one
        JobSpec("n", "train", (("p",),), "/", environment={name: "1"})
        return
    with pytest.raises(JobError, match=name):
        JobSpec("n", "train", (("p",),), "/", environment={name: "1"})
    with pytest.raises(JobError, match=name):
        parsed(environment={name: "1"})


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "NO_SECRETARY", "MONKEY", "HF_TOKEN_FILE", "PGPASSFILE", "COMPASS"]
)
def test_a_name_that_only_holds_such_letters_or_is_that_of_a_file_is_no_secret(name):
    assert JobSpec("n", "train", (("p",),), "/", environment={name: "1"}).environment == {name: "1"}


@pytest.mark.parametrize(
    "keys",
    [
        {"environment": {"WHERE": "https://me:hunter2@host/"}},
        {"tasks": (("fetch", "ftp://me:hunter2@host/x"),)},
        {"name": "https://:hunter2@host"},
    ],
)
def test_a_url_with_a_password_is_refused_and_not_repeated(keys):
    with fails_with(JobError) as error:
        JobSpec(**{"name": "n", "kind": "train", "tasks": (("p",),), "folder": "/", **keys})
    assert "hunter2" not in str(error.value)
    if "environment" in keys:
        with fails_with(JobError):
            parsed(**keys)


def test_ordinary_addresses_are_no_secrets():
    words = ("fetch", "https://host:8080/a@b", "user@host:/path", "ssh://user@host:22/x")
    JobSpec("n", "train", (words,), "/", environment={"WHERE": "http://h:1/"})


def test_a_word_that_no_program_can_be_given_is_refused():
    JobSpec("n", "train", (("p", "x" * (128 * 1024 - 1)),), "/")
    with fails_with(JobError):
        JobSpec("n", "train", (("p", "x" * (128 * 1024)),), "/")


def test_a_script_larger_than_slurm_takes_is_refused():
    tasks = (("p", *["x" * 100_000] * 50),)
    with fails_with(JobError):
        batch_script(JobSpec("n", "train", tasks, "/"), Site(), Path("/j"), TOKEN)
