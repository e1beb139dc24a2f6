"""A checkpoint in which no weights are is told so by everything that wants weights alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.faults.damaged_runs import checkpoint, store_of, wide_network
from tests.checkpoint.faults.edited_checkpoints import declare
from treadle.engine import Checkpointer
from treadle.errors import CheckpointError


@pytest.mark.parametrize("structure", [[], {"tracked": 3}, {"tracked": {}}, {"tracked": {"model": {}}}])
def test_a_checkpoint_without_weights_is_named(run: Path, structure: Any) -> None:
    folder = checkpoint(run, 9)
    (folder / "rank_0.json").write_text(json.dumps(structure))
    declare(folder, json.loads((folder / "manifest.json").read_text()))
    for use in (lambda: store_of(run).read_weights(9), lambda: Checkpointer(wide_network(), run).load(folder)):
        with pytest.raises(CheckpointError, match=r"nothing in its state refers to the tensor|holds no weights"):
            use()
