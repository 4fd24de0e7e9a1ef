import json
import os
import subprocess
import sys

import pytest

from trainer.strategies import registry

PROGRAM = (
    "import os; from trainer.quiet import import_tensorflow; import_tensorflow(); os.write(2, b'after\\n')"
)
STAND_IN = (
    "import os; from trainer.quiet import _without_notes\n"
    "with _without_notes(): os.write(2, b'I0000 00:00:1.1 9 port.cc:153] note\\nE0000 trouble\\n')\n"
    "os.write(2, b'after\\n')"
)


def said(program, **environment):
    env = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"} | environment
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True
    ).stderr


def test_tensorflow_starts_without_a_word():
    assert said(PROGRAM) == "after\n"


def test_its_notes_are_shown_to_who_asks_for_them():
    assert "oneDNN" in said(PROGRAM, TF_CPP_MIN_LOG_LEVEL="0")


def test_what_is_no_note_is_passed_on():
    assert said(STAND_IN) == "E0000 trouble\nafter\n"


def test_what_keras_can_do_without_is_left_out_of_tensorflows_import_alone_and_garbage_is_not_looked_for():
    program = (
        "import gc, sys; begun = []; gc.callbacks.append(lambda phase, _: begun.append(phase))\n"
        "from trainer import quiet; quiet.leave_out_what_keras_can_do_without(); begun.clear()\n"
        "quiet.import_tensorflow(); found = [begun[:], gc.isenabled(), gc.get_freeze_count() > 0]\n"
        "left = {'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "import pandas, sklearn.metrics, matplotlib.figure\n"
        "print(sorted(left), *found, file=sys.stderr)"
    )
    assert said(program) == "[] [] True True\n"
    of_a_user = said(program.replace("quiet.leave_out_what_keras_can_do_without(); ", ""))
    assert not of_a_user.startswith("[]") and of_a_user.endswith("True False\n")


def test_no_rank_imports_scikit_learn_to_train_and_to_report():
    """It would cost each of them a second, in which all others wait for rank 0's report."""
    program = (
        "import sys; from trainer import quiet; quiet.leave_out_what_keras_can_do_without()\n"
        "quiet.import_tensorflow(); import trainer.run\n"
        "print({'sklearn', 'pandas', 'matplotlib', 'scipy.stats'} & set(sys.modules), file=sys.stderr)\n"
        "import trainer.report.baseline, trainer.report.run_page\n"
        "print({'sklearn', 'pandas', 'scipy.stats'} & set(sys.modules), file=sys.stderr)"
    )
    assert said(program) == "set()\nset()\n"


@pytest.mark.parametrize("name", registry._OURS)
def test_a_strategy_is_chosen_before_anything_imports_keras(name):
    """What Keras can do without is left out of TensorFlow's own import only; so are its notes."""
    name, _, mode = name.partition(" ")
    strategy = {"name": name, **({"mode": mode} if mode else {})}
    tree = {"name": "a", "data": {"shards": "b"}, "train": {"global_batch": 4, "strategy": strategy}}
    program = (
        "import sys; from trainer import config; from trainer.ranks import starting\n"
        "from trainer.strategies import registry\n"
        f"found = registry.of(config.parse({json.dumps(json.dumps(tree))}, []))\n"
        "found.environment(); found.members(4)\n"
        "print({'keras', 'tensorflow'} & set(sys.modules), file=sys.stderr)"
    )
    assert said(program) == "set()\n"
