"""Checkpoints of RecBole give their weights and settings, and nothing in them is run."""

import io
import os
import pickle
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.recsys.trainer.runs import graph, interactions, settings
from treadle.checkpoint.format.safe_unpickler import Record, read_torch_file
from treadle.errors import CheckpointError
from treadle.recsys import Config, compat, create_dataset, get_model


class Marker:
    """Says whether somebody ran it."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("it_was_run",)


def saved(path: Path, config_class: Any, weights: Any, **more: Any) -> Path:
    """Write a checkpoint as RecBole 1.2.1 does: an object of its own, in a pickle of protocol 4."""
    config = config_class()
    config.model, config.dataset = "BPR", "toy"
    config.external_config_dict = {"embedding_size": 4, "topk": [5], "model": "BPR", "device": torch.device("cpu")}
    config.final_config_dict = {"device": torch.device("cpu"), "kind": np.float64(0.5)}
    state = {
        "config": config,
        "epoch": 7,
        "cur_step": 0,
        "best_valid_score": np.float64(0.25),
        "state_dict": weights,
        "other_parameter": {"restore_user_e": torch.ones(2, 3), "odd": config},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.001, "params": [0]}]},
        **more,
    }
    torch.save(state, path, pickle_protocol=4)
    return path


def test_weights_and_settings_are_imported_without_the_class(
    tmp_path: Path, config_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = OrderedDict(a=torch.arange(6.0).view(2, 3), b=torch.tensor([1, 2]), c=torch.ones(3, dtype=torch.bfloat16))
    path = saved(tmp_path / "BPR.pth", config_class, weights)
    for name in ("recbole", "recbole.config", "recbole.config.configurator"):
        monkeypatch.delitem(sys.modules, name)
    found = compat.import_checkpoint(path)
    assert (found.model, found.dataset, found.epoch) == ("BPR", "toy", 7)
    # The device is no plain data, and the name of the model is known already.
    assert found.settings == {"embedding_size": 4, "topk": [5]}
    assert list(found.state_dict) == ["a", "b", "c"]
    assert all(found.state_dict[name].equal(weight) for name, weight in weights.items())
    assert list(found.other_parameter) == ["restore_user_e"]
    assert "recbole" not in sys.modules


def test_the_best_score_is_read_if_it_is_a_number(tmp_path: Path, config_class: Any) -> None:
    weights = {"a": torch.ones(1)}
    assert compat.import_checkpoint(saved(tmp_path / "a.pth", config_class, weights)).best_valid_score == 0.25
    path = saved(tmp_path / "b.pth", config_class, weights, best_valid_score=0.5)
    assert compat.import_checkpoint(path).best_valid_score == 0.5


def test_a_model_gets_the_weights(tmp_path: Path, config_class: Any) -> None:
    config = Config("BPR", "toy", config_dict=settings(tmp_path, embedding_size=4))
    dataset = create_dataset(config, inter=interactions())
    theirs, ours = (get_model("BPR")(config, dataset) for _ in range(2))
    with torch.no_grad():
        theirs.user_embedding.weight.fill_(2.0)
    compat.import_checkpoint(saved(tmp_path / "BPR.pth", config_class, theirs.state_dict()), ours)
    assert ours.user_embedding.weight.eq(2.0).all()
    assert ours.item_embedding.weight.equal(theirs.item_embedding.weight)


def test_weights_of_another_model_are_refused(tmp_path: Path, config_class: Any) -> None:
    path = saved(tmp_path / "BPR.pth", config_class, {"weight": torch.ones(2, 2)})
    with pytest.raises(CheckpointError, match=r"BPR\.pth does not fit the model"):
        compat.import_checkpoint(path, nn.Linear(3, 2))


def test_a_model_with_a_knowledge_graph_gets_the_weights(tmp_path: Path, config_class: Any) -> None:
    config = Config("CKE", "toy", config_dict=settings(tmp_path, embedding_size=4, kg_embedding_size=4))
    dataset = create_dataset(config, inter=interactions(), **graph())
    theirs, ours = (get_model("CKE")(config, dataset) for _ in range(2))
    compat.import_checkpoint(saved(tmp_path / "CKE.pth", config_class, theirs.state_dict()), ours)
    assert ours.entity_embedding.weight.equal(theirs.entity_embedding.weight)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_in_the_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"a": torch.ones(1)}, "config": Marker()}, "evil.pth", pickle_protocol=protocol)
    assert compat.import_checkpoint("evil.pth").state_dict["a"].tolist() == [1.0]
    assert not Path("it_was_run").exists()
    record = read_torch_file("evil.pth")["config"]
    assert isinstance(record, Record)
    assert (record.kind.rpartition(".")[2], record.arguments) == ("mkdir", ("it_was_run",))


def test_plain_data_and_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    shared = torch.arange(12.0).view(3, 4)
    state = {
        "numbers": [1, -70000, 2**40, 1.5, True, None, "text", b"bytes"],
        "pair": (1, (2, 3)),
        "set": {1, 2},
        "part": shared[1:, ::2],
        "turned": shared.T,
        "none": torch.empty(0, 3),
        "scalar": torch.tensor(5),
        "mask": torch.tensor([True, False]),
        "parameter": nn.Parameter(torch.ones(2)),
        "matrix": torch.eye(2).to_sparse(),
    }
    torch.save(state, tmp_path / "state.pth")
    found = read_torch_file(tmp_path / "state.pth")
    assert found["numbers"] == state["numbers"]
    assert (found["pair"], found["set"]) == ((1, (2, 3)), {1, 2})
    for name in ("part", "turned", "none", "scalar", "mask"):
        assert found[name].equal(state[name])
        assert found[name].dtype == state[name].dtype  # type: ignore[union-attr]
    assert found["parameter"].tolist() == [1.0, 1.0]
    assert found["matrix"].to_dense().equal(torch.eye(2))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*none\.pth to import weights from"):
        compat.import_checkpoint(tmp_path / "none.pth")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(CheckpointError, match=r"text\.pth is no file of torch\.save, or damaged"):
        compat.import_checkpoint(tmp_path / "text.pth")
    with zipfile.ZipFile(tmp_path / "other.pth", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(CheckpointError, match=r"other\.pth is an archive without data\.pkl"):
        compat.import_checkpoint(tmp_path / "other.pth")


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": {}}, tmp_path / "none.pth")
    with pytest.raises(CheckpointError, match=r"is no checkpoint of RecBole: there is no state_dict in \['weights'\]"):
        compat.import_checkpoint(tmp_path / "none.pth")


def replaced(path: Path, target: Path, changes: dict[str, bytes]) -> Path:
    """Write an archive again, with other contents of some members."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            short = name.split("/", 1)[1]
            new.writestr(name, changes.get(short, old.read(name)))
    return target


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(4)}}, tmp_path / "whole.pth")
    short = replaced(tmp_path / "whole.pth", tmp_path / "short.pth", {"data/0": bytes(8)})
    with pytest.raises(CheckpointError, match=r"short\.pth is damaged: tensor 0 has 2 numbers of 4"):
        compat.import_checkpoint(short)
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=2).dump({"state_dict": {}})
    cut = replaced(tmp_path / "whole.pth", tmp_path / "cut.pth", {"data.pkl": buffer.getvalue()[:-1]})
    with pytest.raises(CheckpointError, match=r"cut\.pth is damaged"):
        compat.import_checkpoint(cut)


def test_a_file_of_another_order_of_bytes_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(4)}}, tmp_path / "whole.pth")
    big = replaced(tmp_path / "whole.pth", tmp_path / "big.pth", {"byteorder": b"big"})
    with pytest.raises(CheckpointError, match="another order of bytes"):
        compat.import_checkpoint(big)
