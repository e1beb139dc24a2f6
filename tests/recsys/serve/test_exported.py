"""An exported recommender answers as the one that was exported, without its model and its data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.feather as feather
import pytest
import torch

from tests.recsys.serve.ready import ready
from treadle.checkpoint import read_file, write_file
from treadle.errors import CheckpointError, ConfigError, DataError
from treadle.recsys import Recommender, load_recommender
from treadle.recsys.serve.exported import ExportedRecommender, export_recommender

KINDS = {"BPR": "vectors", "EASE": "history", "DMF": "history", "GRU4Rec": "sequence", "GCMC": "users", "FM": "rows"}
"""A model for each kind of program."""
LONG = ("GRU4Rec", "DMF")
"""Those that the exporter needs more than two seconds for, or whose kind another one shows."""


def answers(recommender: Any, **given: Any) -> Any:
    """Return a list with its scores, or why there is none."""
    try:
        found = recommender.recommend(**{"k": 4, **given})
    except (ConfigError, DataError) as error:
        return str(error)
    return found.items.tolist(), np.round(found.scores, 4).tolist(), found.cold.tolist(), found.because


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.slow if one in LONG else ()) for one in KINDS])
def test_an_export_gives_the_answers_of_its_model(tmp_path: Path, name: str) -> None:
    recommender = ready(name)[1]
    exported = load_recommender(export_recommender(recommender, tmp_path / "out"))
    assert isinstance(exported, ExportedRecommender)
    assert exported.facts["kind"] == KINDS[name]
    asked: list[dict[str, Any]] = [
        {"users": ["u3", "u4", "nobody"]},
        {"users": "u3", "exclude_seen": False, "exclude": ["i1"]},
        {"history": ["i1", "i2"], "explain": 1},
        {"history": ["i1", "x"]},
        {"users": "u3", "filter": ["i1", "i5", "i7"]},
        {"users": "u3", "filter": {"price": {"max": 0.5}}},
    ]
    for one in asked:
        assert answers(exported, **one) == answers(recommender, **one)
    assert exported.similar_items("i4", k=3)["i4"] == recommender.similar_items("i4", k=3)["i4"]


def test_vectors_stand_beside_their_tokens(tmp_path: Path) -> None:
    recommender = ready("BPR")[1]
    folder = export_recommender(recommender, tmp_path / "out")
    for of, field in (("users", "user_id"), ("items", "item_id")):
        table = feather.read_table(folder / f"{of}.arrow")
        vectors = np.array(table["embedding"].to_pylist(), np.float32)
        assert np.array_equal(vectors, recommender.vectors(of.removesuffix("s")).numpy())
        assert table[field].to_pylist() == getattr(recommender, of).tokens.tolist()


def test_an_export_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    recommender = ready("EASE")[1]
    folder = export_recommender(recommender, tmp_path / "out")
    (folder / "old").touch()
    export_recommender(recommender, folder)
    assert sorted(one.name for one in folder.iterdir()) == [
        "data.safetensors",
        "export.json",
        "items.arrow",
        "model.onnx",
        "users.arrow",
    ]
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="mine is there and is no export; name another folder"):
        export_recommender(recommender, tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"format='tf' does not exist; there are onnx, torch\.export"):
        export_recommender(recommender, tmp_path / "tf", "tf")


def test_a_program_of_torch_computes_the_scores_and_is_not_answered_with(tmp_path: Path) -> None:
    run, recommender = ready("EASE")
    folder = export_recommender(recommender, tmp_path / "out", "torch.export")
    program = torch.export.load(folder / "model.pt2").module()
    users = torch.arange(1, 7)
    history = run.model.histories.rows(users)
    torch.testing.assert_close(program(history=history)["output"], recommender.score_users(users), rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match=r"model\.pt2, which torch\.export\.load reads; answers are given with ONNX"):
        load_recommender(folder)


REFUSED = {
    "DIN": "DIN scores an item with a history, one by one",
    "CDAE": "CDAE has something of its own for each of its users, which is in no history",
    "KGCN": "KGCN scores pairs of a user and an item, one by one",
    "UserKNN": "ONNX cannot take a UserKNN: ",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_a_program_says_why_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name]):
        export_recommender(ready(name)[1], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_export_is_told(tmp_path: Path) -> None:
    folder = export_recommender(ready("EASE")[1], tmp_path / "out")
    facts = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**facts, "program": "../model.onnx"}))
    with pytest.raises(CheckpointError, match=r"there is no program '\.\./model\.onnx'; export it again"):
        load_recommender(folder)
    (folder / "export.json").write_text(json.dumps({**facts, "kind": 3}))
    with pytest.raises(CheckpointError, match="its kind is no str; export it again"):
        load_recommender(folder)
    (folder / "export.json").write_text(json.dumps(facts))
    (folder / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"model\.onnx is damaged"):
        load_recommender(folder)


def test_the_state_of_an_export_is_plain_data(tmp_path: Path) -> None:
    recommender: Recommender = ready("DeepFM")[1]
    folder = export_recommender(recommender, tmp_path / "out")
    state = read_file(folder / "data.safetensors")
    write_file(tmp_path / "again.safetensors", state)
    assert set(state["features"]) == {"item_id", "price"}
