"""An import that goes on never lets HDF5 see a shard that is not as it was written."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from made_images import bids
from test_fuzz_shards import DAMAGES

from trainer.data.importing import import_state
from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
from trainer.data.shards.shard_writer import ShardWriter


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A request, its target as an import left it just before the index, and its files when whole."""
    base = tmp_path_factory.mktemp("stopped")
    request = ImportRequest(
        source=bids(base / "cohort", 4), target=base / "set", size=16, workers=1, volumes_per_shard=2
    )
    kept = base / "kept"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_state, "finished", lambda work: shutil.copytree(work.parent, kept))
        run(request)
    (kept / "index.json").unlink()
    shutil.rmtree(request.target / ".import")
    whole = {path.name: path.read_bytes() for path in request.target.iterdir()}
    return request, kept, whole


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_made_again_and_not_opened(stopped, monkeypatch, damage):
    request, kept, whole = stopped
    shutil.rmtree(request.target)
    shutil.copytree(kept, request.target)
    path = request.target / "shard-00001.h5"
    content = bytearray(path.read_bytes())
    random = np.random.default_rng(7)
    while bytes(content) == whole[path.name]:  # zeros over zeros are no damage
        damage(content, random)
    path.write_bytes(content)
    opened, plain = [], ShardWriter.whole_shard

    def whole_shard(self, number, mark=""):
        opened.append(number)
        return plain(self, number, mark)

    monkeypatch.setattr(ShardWriter, "whole_shard", whole_shard)
    assert run(request).kept == 2
    assert opened == [0]
    assert {path.name: path.read_bytes() for path in request.target.iterdir()} == whole


def test_records_of_another_version_are_made_again(stopped):
    request, kept, whole = stopped
    shutil.rmtree(request.target)
    shutil.copytree(kept, request.target)
    (request.target / ".import" / "shard-00000.json").write_text("[]\n")
    assert run(request).kept == 0
    assert {path.name: path.read_bytes() for path in request.target.iterdir()} == whole
