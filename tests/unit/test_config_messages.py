"""What is said of a bad configuration: plain words, which value, whose."""

from __future__ import annotations

import re
import typing

import pytest
from site_text import site_of
from wording import fails_with

from jobs.schedulers import site_profiles
from trainer import config
from trainer.config.explaining import fields
from trainer.errors import ConfigError, JobError

HEAD = "name: a\ndata: {shards: s}\n"
ASYNCHRONOUS = ["train.strategy=parameter-server", "train.strategy.mode=async"]

# Words of Python and of the library that checks; `.` and quotes are before and behind values.
JARGON = re.compile(
    r"\b(Input|instance|tuple|dict|dictionary|str|string|int|integer|float|bool|boolean|None|NoneType|True"
    r"|False|inf|nan|pydantic|parse|parsed|type|object|attribute|exception|error|validation|valid|\w+Config"
    r"|__\w+__|Literal|Path|cannot be used)\b(?!')"
)

# Values that are wrong for at least one kind of key each.
WRONG = [
    "yes",
    "NO",
    "null",
    "3",
    "-1",
    "2.5",
    ".inf",
    ".nan",
    "1e22",
    "1" + "0" * 30,
    "word",
    "''",
    "'~'",
    "x" * 3000,
    "[]",
    "[1]",
    "[NO, 2, 2.5, null, word, [1]]",
    "[a, b, c, d, e]",
    "{a: 1}",
    "{a: yes}",
    "{1: 2, yes: no}",
    "{}",
    '"a\\0b"',
    '"\\uD800"',
]


def keys() -> list[str]:
    return [key for key, _ in config.fields()]


def test_no_message_holds_the_words_of_python_or_of_pydantic():
    refused = 0
    for key in keys():
        for value in WRONG:
            try:
                config.parse(HEAD, [f"{key}={value}"])
            except ConfigError as error:
                refused += 1
                message = str(error)
                assert message.startswith(("command line: ", "configuration: ")), message
                # What was given is repeated, whatever it is; and so are names of our own keys.
                said = message.replace(value[:200], "").replace(key, "")
                found = JARGON.search(re.sub(r"'[^']*'|\{[^}]*\}", "", said))
                assert not found, f"{found and found[0]!r} in: {message}"
                assert len(message) < 2000
    assert refused > 1000


def test_no_message_about_a_site_profile_does_either():
    refused = 0
    for key in site_profiles.model().model_fields:
        for value in WRONG:
            try:
                site_of(f"{key}: {value}")
            except JobError as error:
                refused += 1
                said = re.sub(r"'[^']*'|\{[^}]*\}", "", error.message.replace(value[:200], ""))
                found = JARGON.search(said)
                assert not found, f"{found and found[0]!r} in: {error.message}"
    assert refused > 200


def _is_numeric(annotation: object) -> bool:
    return annotation in (int, float) or any(_is_numeric(part) for part in typing.get_args(annotation))


NUMERIC = [key for key, field in fields() if _is_numeric(field.annotation)]
WRAPPED = {
    "data.patch.size": "[8, 8, {}]",
    "train.strategy.parts": "[1, 1, {}]",
    "train.strategy.shares": "[1, {}]",
    "train.schedule.step_epochs": "[1, {}]",
    "train.transfer.rate_factors": "{{a: {}}}",
}


@pytest.mark.parametrize("key", NUMERIC)
def test_no_number_is_taken_that_is_beyond_all_sense(key):
    needed = ["data.patch.size=8"] if key.startswith("data.patch.") else []
    if key.rsplit(".", 1)[-1] in ("count", "staleness", "piece_mb"):
        needed = ["train.strategy=parameter-server"]
    if key.rsplit(".", 1)[-1] in ("parts", "replicas"):
        needed = ["train.strategy=spatial"]
    if key.endswith((".shares", ".recalibrate_every")):
        needed = ["train.strategy=filters"]
    if key.endswith((".partitions", ".micro_batches")):
        needed = ["train.strategy=hybrid"]
    if key.endswith((".imbalance", ".granularity")):
        needed = ["train.strategy=hypergraph"]
    if key.endswith(".reconsider_after"):
        needed = ["train.strategy=auto"]
    for value in ("1e22", "1.0e+22", "1" + "0" * 30, ".inf", "-.inf", ".nan", "'inf'", "yes", "-1"):
        if (key, value) == ("data.patch.threshold", "-1"):  # of intensities about 0
            continue
        with pytest.raises(ConfigError, match=r"must be|each edge"):
            config.parse(HEAD, [*needed, f"{key}={WRAPPED.get(key, '{}').format(value)}"])
    assert len(NUMERIC) > 70


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: {shards: s, classes: [NO, AD]}", "data.classes, entry 1: must be text; write 'NO' in quotes"),
        ("data: {shards: s, classes: [AD, yes]}", "YAML reads it as true"),
        ("data: {shards: s, classes: [AD, on]}", "write 'on' in quotes"),
        ("data: {shards: s, classes: [0, 1]}", "write '0' in quotes: YAML reads it as a number"),
        ("data: {shards: off}", "data.shards: must be a path; write 'off' in quotes: YAML reads it as false"),
        ("data: {shards: s, classes: NC}", "data.classes: must be a list, such as [a, b], not 'NC'"),
        ("data: {shards: s, classes: [NC]}", "must have at least 2 entries, not ['NC']"),
        ("data: s", "data: must be a section with keys of its own, not 's'"),
        ("data: {shards: s}\ntrain: 3", "train: must be a section with keys of its own, not 3"),
        ("data: {shards: s, patch: {size: [1, 2]}}", "data.patch.size, entry 3: is missing"),
        ("data: {shards: s}\ntrain: {learning_rate: yes}", "Did you mean 'train.optimizer.learning_rate'"),
        ("data: {shards: s}\ntrain: {optimizer: {learning_rate: yes}}", "must be a number, not true"),
        ("data: {shards: s}\ntrain: {threads: 100000}", "train.threads: must be at most 1024, not 100000"),
        (
            "data: {shards: s}\nno: 2",
            "line 3: the key 'no' is no text as YAML reads it.\n  Write 'no', in quotes.",
        ),
    ],
)
def test_a_value_that_yaml_reads_in_its_own_way_is_told_with_what_to_write(text, said):
    with pytest.raises(ConfigError) as caught:
        config.parse(f"name: a\n{text}\n", source="run.yaml")
    assert str(caught.value).startswith("run.yaml: ")
    assert said in str(caught.value)


def test_quotes_on_the_command_line_are_told_with_those_that_the_shell_takes():
    with fails_with(ConfigError):
        config.parse(HEAD, ["data.classes=[NO, AD]"])
    with pytest.raises(ConfigError) as caught:
        config.parse(HEAD, ["data.classes=[NO, AD]"])
    assert "at least 2 entries" not in str(caught.value)
    assert config.parse(HEAD, ["data.classes=['NO', AD]"]).data.classes == ("NO", "AD")


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("", ["train.epochs=abc"], "command line: train.epochs=abc: must be a whole number."),
        ("train: {epochs: abc}", [], "run.yaml: train.epochs: must be a whole number, not 'abc'."),
        ("train: {epochs: abc}", ["train.seed=1"], "run.yaml: train.epochs: must"),
        ("train: {epochs: abc}", ["train.epochs=no"], "command line: train.epochs=no: must"),
        ("", ["train.epoch=3"], "command line: train.epoch=3: unknown key 'train.epoch'. Did you mean"),
        ("", ["data.classes=[a, 1]"], "command line: data.classes=[a, 1]: data.classes, entry 2: must"),
        ("", ["train={epochs: 0}"], "command line: train={epochs: 0}: train.epochs: must be at least 1"),
        ("", ["data.split.test=0.9"], "command line: data.split.test=0.9: data.split: validation and test"),
        ("task: {name: regression, target: age}", ["task.name=segmentation"], "command line: task.name="),
        (
            "train: {strategy: {name: parameter-server, staleness: 3}}",
            ["train.strategy.count=2"],
            "run.yaml: train.strategy: staleness is for mode=async",
        ),
        ("", ["name=" + "a" * 300], "command line: name=aaa"),
        ("", ["train.epochs=" + "9" * 5000], "command line: train.epochs=999"),
    ],
)
def test_a_value_is_blamed_on_the_file_or_the_command_line_that_gave_it(text, changes, said):
    with pytest.raises(ConfigError) as caught:
        config.parse(f"{HEAD}{text}\n", changes, source="run.yaml")
    message = str(caught.value)
    assert message.startswith(said)
    assert len(message) < 600


def test_a_key_that_is_missing_is_the_files():
    with fails_with(ConfigError):
        config.parse("data: {shards: s}", ["train.seed=3"], source="run.yaml")
    assert config.parse(HEAD, [*ASYNCHRONOUS, "train.strategy.staleness=3"])


@pytest.mark.parametrize(
    ("train", "changes", "key", "value"),
    [
        ("{strategy: {bucket_mb: 2, compression: float16}}", [], "compression", "float16"),
        ("{strategy: parameter-server}", ["train.strategy.count=3"], "count", 3),
        ("{strategy: {bucket_mb: 2}}", ["train.strategy.bucket_mb=3"], "bucket_mb", 3.0),
        ("{strategy: {name: data, bucket_mb: 2}}", ["train.strategy=parameter-server"], "count", 1),
    ],
)
def test_a_strategy_is_a_name_or_a_section(train, changes, key, value):
    made = config.parse(f"{HEAD}train: {train}", changes)
    assert getattr(made.train.strategy, key) == value
    assert config.parse(config.dump(made)) == made


@pytest.mark.parametrize(
    ("train", "changes", "said"),
    [
        (
            "{strategy: dat}",
            [],
            "must be 'data', 'parameter-server', 'spatial', 'filters', 'hybrid', 'hypergraph', 'auto', or "
            "'file.py:Class' of your own, not 'dat'",
        ),
        ("{}", ["train.strategy.count=2"], "of the strategy data; it is one of parameter-server."),
        ("{strategy: {bucket_md: 2}}", [], "Did you mean 'train.strategy.bucket_mb'?"),
        (
            "{strategy: 'own.py:Own'}",
            ["train.strategy.evry=2"],
            "of the strategy of your own; its keys go into",
        ),
        ("{strategy: 'own.py:'}", [], "train.strategy.name: must be"),
        ("{strategy: [data]}", [], "train.strategy: must be a section"),
    ],
)
def test_a_wrong_strategy_is_told_with_its_cure(train, changes, said):
    with pytest.raises(ConfigError) as caught:
        config.parse(f"{HEAD}train: {train}", changes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("{name: 3, micro_batches: 2}", []),
        ("{name: 'own.py:', micro_batches: 2}", []),
        ("{name: hybrid, micro_batches: 2}", ["train.strategy.name=3"]),
    ],
)
def test_a_strategy_whose_name_is_wrong_is_not_told_of_its_keys_too(strategy, changes):
    with pytest.raises(ConfigError) as caught:
        config.parse(f"{HEAD}train: {{strategy: {strategy}}}", changes)
    assert "micro_batches" not in caught.value.message.replace(strategy, "")
