"""Too few processes for parameter servers: said before anything is loaded, with exit code 2."""

from __future__ import annotations

import pytest

from cingulum.cli import app


@pytest.mark.parametrize(
    ("placement", "count", "said"),
    [("separate", 1, "no process is left for a worker"), ("colocated", 2, "need as many ranks; there are 1")],
)
def test_one_process_is_told_what_to_launch(tmp_path, capsys, monkeypatch, placement, count, said):
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    config = tmp_path / "run.yaml"
    config.write_text("name: a\ndata: {shards: nowhere}\ntrain: {strategy: parameter-server}\n")
    server = f"train.strategy={{name: parameter-server, count: {count}, placement: {placement}}}"
    assert app.run(["train", str(config), server]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: train.strategy.count:") and said in told and "aunch" in told
