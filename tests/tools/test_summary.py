"""A table of a model, which leaves the model as it is."""

import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import treadle
from treadle.errors import ConfigError


class Network(nn.Module):
    """A network with buffers that move, randomness, a shared layer and a part that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.unused = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(1))
        self.calls = 0

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        self.calls += 1
        hidden = self.features(images).mean((2, 3))
        scores = self.head(self.mix(self.mix(hidden))) * self.scale
        return {"scores": scores, "loss": None if labels is None else nn.functional.cross_entropy(scores, labels)}


def row(found: Any, name: str) -> tuple[str, int, int, int]:
    layer = next(one for one in found.layers if one.name == name)
    return layer.output, layer.calls, layer.trained, layer.frozen


def test_each_layer_has_its_shape_and_each_parameter_is_counted_once() -> None:
    model = Network()
    model.head.requires_grad_(False)
    found = treadle.summary(model, torch.zeros(8, 1, 6, 6))
    assert row(found, "features.0") == ("[8, 4, 6, 6]", 1, 40, 0)
    assert row(found, "features.1") == ("[8, 4, 6, 6]", 1, 8, 0)
    assert row(found, "mix") == ("[8, 4]", 2, 20, 0)
    assert row(found, "head") == ("[8, 2]", 1, 0, 10)
    assert row(found, "unused") == ("", 0, 12, 0)
    # The model has a row where it has parameters of its own.
    assert row(found, "") == ("{scores: [8, 2]}", 1, 1, 0)
    assert (found.trained, found.frozen) == (81, 10)
    assert sum(layer.parameters for layer in found.layers) == 91
    # Batch norm keeps two means of four and a counter.
    assert (found.buffers, found.size) == (9, 4 * (91 + 8) + 8)


def test_the_model_and_every_generator_are_left_as_they_were() -> None:
    model = Network().train()
    heard: list[str] = []
    model.mix.register_forward_hook(lambda *told: heard.append("hook"))
    model.register_forward_pre_hook(lambda *told: heard.append("hook"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    treadle.summary(model, (torch.randn(4, 1, 6, 6, generator=torch.Generator()), torch.zeros(4, dtype=torch.long)))
    assert all(module.training for module in model.modules())
    assert (model.calls, heard) == (0, [])
    assert len(model.mix._forward_hooks) == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # type: ignore[index]
    assert random.getstate() == states[2]


class Looking(nn.Module):
    """A model that looks at its values, which tensors without values have none of, and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(3)
        self.seen = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1
        noise = torch.randn(1) + random.random() + np.random.rand()
        return self.layer(inputs if float(inputs.sum()) > -1 else inputs + noise)


def test_a_model_that_looks_at_values_is_called_in_a_copy() -> None:
    model = Looking()
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    found = treadle.summary(model, torch.ones(5, 2))
    assert row(found, "layer") == ("[5, 3]", 1, 9, 0)
    assert model.seen == 0
    assert isinstance(model.layer.weight, nn.UninitializedParameter)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert (np.random.get_state()[1] == state[2]).all()  # type: ignore[index]


def test_batches_are_tensors_tuples_or_mappings_as_loaders_give_them() -> None:
    images, labels = torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.long)
    for batch in ((images, labels), {"images": images, "labels": labels}):
        assert row(treadle.summary(Network(), batch), "")[0] == "{scores: [2, 2], loss: []}"
    plain = nn.Linear(3, 1)
    # A model that takes inputs alone gets the first of inputs and targets.
    assert row(treadle.summary(plain, (torch.zeros(7, 3), torch.zeros(7))), "")[0] == "[7, 1]"

    class OfDict(nn.Module):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return batch["x"] * 2

    assert row(treadle.summary(OfDict(), {"x": torch.zeros(3)}), "")[0] == "[3]"


def test_a_model_on_the_meta_device_and_a_batch_elsewhere() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(10, 4), nn.GRU(4, 6, batch_first=True))
    found = treadle.summary(model, torch.zeros(2, 5, dtype=torch.long))
    assert row(found, "1")[0] == "([2, 5, 6], [1, 2, 6])"


def test_deep_models_are_folded_and_no_parameter_is_lost() -> None:
    inner = nn.Sequential(OrderedDict(deep=nn.Sequential(OrderedDict(deeper=nn.Sequential(nn.Linear(2, 2))))))
    model = nn.Sequential(OrderedDict(outer=inner, tied=inner))
    found = treadle.summary(model, torch.zeros(1, 2), depth=2)
    assert [layer.name for layer in found.layers] == ["outer.deep"]
    assert row(found, "outer.deep") == ("[1, 2]", 2, 6, 0)
    assert found.trained == 6


def test_without_a_batch_there_are_no_shapes_and_lazy_layers_count_nothing() -> None:
    found = treadle.summary(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1)))
    assert row(found, "1") == ("", 0, 4, 0)
    assert found.trained == 4


def test_it_shows_itself_as_text_and_as_a_table_of_a_notebook() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    model[0].weight.requires_grad_(False)
    found = treadle.summary(model, torch.zeros(16, 4))
    assert repr(found) == str(found)
    lines = str(found).splitlines()
    assert lines[0] == "Sequential"
    assert lines[4].split() == ["0", "Linear", "[16,", "8]", "40", "8"]
    assert lines[-1] == "56 parameters, 24 trained, 32 frozen, 17 in buffers, 0.00 MiB"
    html = found._repr_html_()
    assert "<th>layer</th>" in html
    assert "<td>BatchNorm1d</td><td>[16, 8]</td><td>16</td><td>yes</td>" in html


def test_what_cannot_be_called_says_why() -> None:
    with pytest.raises(ConfigError, match=r"Linear could not be called with the batch of summary: RuntimeError: .*"):
        treadle.summary(nn.Linear(4, 1), torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"forward takes \['images', 'labels'\], and the batch has \['pixels'\]"):
        treadle.summary(Network(), {"pixels": torch.zeros(1)})
    with pytest.raises(ConfigError, match=r"summary takes a model, an nn\.Module, and not a dict"):
        treadle.summary({}, torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="depth=0 must be a whole number of at least 1"):
        treadle.summary(nn.Linear(1, 1), depth=0)
