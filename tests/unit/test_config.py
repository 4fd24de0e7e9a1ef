import pytest
from wording import fails_with

from trainer import config
from trainer.errors import ConfigError

MINIMAL = "name: a\ndata: {shards: s}\n"


def test_a_minimal_configuration_gets_defaults():
    assert config.parse(MINIMAL).train.global_batch == 8


def test_dump_is_read_back_to_an_equal_value():
    made = config.parse(
        MINIMAL, ["data.classes=[NC, AD]", "train.early_stopping.patience=2", "train.optimizer.ema=0.9"]
    )
    assert config.parse(config.dump(made)) == made


def test_an_override_wins_over_the_file():
    made = config.parse(
        MINIMAL + "train: {epochs: 5}", ["train.epochs=7", "train.optimizer.learning_rate=1e-4"]
    )
    assert (made.train.epochs, made.train.optimizer.learning_rate) == (7, 1e-4)


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        (MINIMAL + "trian: {}", [], "Did you mean 'train'"),
        (MINIMAL, ["train.globl_batch=3"], "Did you mean 'train.global_batch'"),
        (MINIMAL, ["data.split.val=0.1"], "Did you mean 'data.split.validation'"),
        (MINIMAL, ["train.learning_rate=3"], "Did you mean 'train.optimizer.learning_rate'"),
        (MINIMAL, ["train.epochs=many"], "train.epochs"),
        (MINIMAL, ["train.epochs=0"], "command line: train.epochs=0: must be at least 1."),
        (MINIMAL, ["train.epochs"], "key=value"),
        (MINIMAL, ["name.x=1"], "single value"),
        (MINIMAL, ["data.split.test=0.9"], "leave no subject"),
        (MINIMAL, ["data.split.folds=3", "data.split.fold=3"], "numbered 0 to 2"),
        (MINIMAL, ["train.optimizer.clip_norm=1", "train.optimizer.clip_value=1"], "at most one of"),
        (MINIMAL, ["train.optimizer.name=adamm"], "train.optimizer.name"),
        (MINIMAL, ["name=../x"], "name"),
        (MINIMAL, ["model.options.width=8"], "options.width: set model.width instead"),
        (MINIMAL, ["model.options.dense=true"], "options.dense: leave it out"),
        (MINIMAL, ["train.strategy={name: hybrid, plan: p, partitions: 3}"], "leave partitions out"),
        ("data: {shards: s}", [], "'name' is missing"),
        ("just text", [], "holds no keys"),
        ("", [], "holds no keys"),
        ("a: [", [], "is not YAML"),
    ],
)
def test_a_bad_configuration_is_named_with_its_cure(text, overrides, said):
    with pytest.raises(ConfigError, match="(?s)" + said.replace("(", r"\(")):
        config.parse(text, overrides)


def test_a_missing_file_is_named(tmp_path):
    with fails_with(ConfigError):
        config.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "train, overrides",
    [
        ("{strategy: {name: spatial, plan: p.json}}", []),
        ("{strategy: spatial, plan: p.json}", []),
        ("{strategy: filters}", ["train.plan=p.json"]),
        ("{strategy: spatial, plan: other.json}", ["train.strategy.plan=p.json"]),
        ("{strategy: {name: spatial, plan: other.json}}", ["train.plan=p.json"]),
    ],
)
def test_train_plan_is_the_plan_of_the_strategy(train, overrides):
    made = config.parse(f"{MINIMAL}train: {train}", overrides)
    assert str(made.train.strategy.plan) == "p.json" and made.train.plan is None
    assert config.parse(config.dump(made)) == made


@pytest.mark.parametrize(
    "train, said",
    [
        ("{plan: p.json}", "plan is for strategies that divide the network: .* the strategy is data"),
        ("{plan: p.json, strategy: {name: spatial, plan: p.json}}", "plan is given twice"),
        ("{strategy: {name: data, plan: p.json}}", "plan"),
        ("{plan: 3, strategy: spatial}", "train.plan: must be a path"),
        ("{plan: p, strategy: {name: hybrid, profile: f}}", "leave profile=f out"),
        ("{plan: p, strategy: {name: hypergraph, granularity: 3}}", "leave granularity out"),
    ],
)
def test_a_plan_for_no_strategy_or_given_twice_is_refused(train, said):
    with pytest.raises(ConfigError, match=said):
        config.parse(f"{MINIMAL}train: {train}")
