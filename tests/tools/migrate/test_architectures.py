"""What NNI exported is an architecture of the migrated space."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from treadle.errors import ConfigError
from treadle.nas import InputChoice, LayerChoice, ValueChoice, freeze
from treadle.nas.space.parametrized import Built
from treadle.tools.migrate.nni_architectures import read_architecture


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = LayerChoice([nn.Linear(2, 4), nn.Sequential(nn.Linear(2, 4), nn.Tanh())], label="first")
        self.second = LayerChoice({"plain": nn.Linear(4, 4), "skip": nn.Identity()}, label="second")
        self.inputs = InputChoice(n_candidates=2, n_chosen=1, label="inputs")
        self.last = Built(nn.Linear, 4, ValueChoice([2, 3], label="width"))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(self.inputs([x, self.second(x)]))


@pytest.mark.parametrize(
    "exported",
    [
        {"first": 1, "second": "skip", "inputs": [1], "width": 3},
        {"first": "1", "second": 1, "inputs": 1, "width": 3},
        {"first": 1, "second": "skip", "inputs": [False, True], "width": 3},
    ],
    ids=["positions", "words", "mask"],
)
def test_each_way_in_which_nni_names_a_choice_is_understood(tmp_path: Path, exported: dict[str, Any]) -> None:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(exported))
    found = read_architecture(path, Net())
    assert found == read_architecture_of(tmp_path, {"first": 1, "second": "skip", "inputs": [1], "width": 3})
    assert freeze(Net(), found)(torch.zeros(1, 2)).shape == (1, 3)


def read_architecture_of(folder: Path, exported: dict[str, Any]) -> Any:
    path = folder / "other.json"
    path.write_text(json.dumps(exported))
    return read_architecture(path, Net())


def test_what_the_space_does_not_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the space has no choice 'frist'; did you mean 'first'"):
        read_architecture_of(tmp_path, {"frist": 1})
    with pytest.raises(ConfigError, match="second is 'wide', and the space has"):
        read_architecture_of(tmp_path, {"second": "wide"})
    for content in ("[1]", "{"):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(ConfigError, match="holds no architecture"):
            read_architecture(tmp_path / "bad.json", Net())
