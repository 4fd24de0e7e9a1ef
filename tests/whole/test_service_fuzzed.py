"""The whole API against its own description, by made-up requests: no failure, no answer that it lacks."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import booleans
from jobs_to_serve import fill
from served import OURS, client_of

from cingulum.service import outlooks
from jobs.store.store import Store

schemathesis = pytest.importorskip("schemathesis")
CASES = 100 if os.environ.get("CINGULUM_DEEP") else 8
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
MODES = schemathesis.GenerationMode
# They end when the reader goes; the page of figures is text.
LEFT_OUT = ("/events", "/metrics")
# What is wrong may also be too long to be read at all: 413.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]


@pytest.fixture
def operations(slurm, tmp_path, monkeypatch):
    """What the service describes, each method of each address."""
    monkeypatch.setattr(outlooks, "of", lambda *_: "a plan")  # else it takes seconds
    store = Store()
    fill(store, slurm, tmp_path / "runs")
    app = client_of(store, tmp_path / "runs").app
    expecting = schemathesis.Config.from_dict(
        {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
    )
    schema = schemathesis.openapi.from_asgi(
        "/api/v1/openapi.json", app, headers={"Host": "localhost"}, config=expecting
    )
    found = [one.ok() for one in schema.get_all_operations()]
    return [one for one in found if not one.path.endswith(LEFT_OUT)]


@pytest.mark.parametrize("mode", [MODES.POSITIVE, MODES.NEGATIVE])
@pytest.mark.drawn
def test_every_request_gets_an_answer_that_is_described(operations, mode):
    assert len(operations) >= 18
    for operation in operations:

        @given(operation.as_strategy(generation_mode=mode), booleans())
        @settings(
            max_examples=CASES,
            deadline=None,
            derandomize=not os.environ.get("CINGULUM_DEEP"),
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def answers(case, of_a_job):
            if of_a_job and mode == MODES.POSITIVE and "identity" in (case.path_parameters or {}):
                case.path_parameters["identity"] = "4713"
            # A text may be one and no configuration.
            case.call_and_validate(
                base_url="http://localhost", headers=OURS, excluded_checks=[checks.positive_data_acceptance]
            )

        with contextlib.suppress(Unsatisfiable):  # it takes nothing that could be wrong
            answers()
