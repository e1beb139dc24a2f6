"""What a batch and a model say about the loss when no verb is overridden."""

from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from treadle.errors import ConfigError, DataError, LossError
from treadle.ops.losses import check_loss, default_loss, describe_batch, model_inputs, read_targets

Pair = namedtuple("Pair", ["inputs", "targets"])
INPUTS, TARGETS = torch.ones(3, 2), torch.zeros(3, 1)


class Keywords(nn.Module):
    """Notes which keywords it was called with."""

    def forward(self, **kwargs: Any) -> Any:
        self.keywords = sorted(kwargs)
        return kwargs["x"].sum(dim=1, keepdim=True)


@pytest.mark.parametrize("batch", [(INPUTS, TARGETS), [INPUTS, TARGETS], Pair(INPUTS, TARGETS)])
def test_a_pair_is_inputs_and_targets(batch: Any) -> None:
    model = nn.Linear(2, 1)
    output = default_loss(model, nn.MSELoss(), batch)
    assert torch.equal(output["loss"], model(INPUTS).square().mean())
    assert output["batch_size"] == 3


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_mapping_is_keywords_without_the_target(kind: Any) -> None:
    model = Keywords()
    output = default_loss(model, nn.MSELoss(), kind(x=INPUTS, mask=INPUTS, labels=TARGETS))
    assert model.keywords == ["mask", "x"]
    assert output["loss"].item() == 4.0
    assert output["batch_size"] == 3


def test_a_bare_tensor_is_no_pair_of_its_first_two_rows() -> None:
    with pytest.raises(DataError, match=r"a batch of type Tensor has no \(inputs, targets\); make the data set return"):
        default_loss(nn.Linear(2, 2), nn.MSELoss(), INPUTS)


@pytest.mark.parametrize("batch", [(INPUTS,), 3, None, (INPUTS, 5)])
def test_what_is_no_pair_is_refused(batch: Any) -> None:
    with pytest.raises(DataError, match=r"has no \(inputs, targets\); make the data set return pairs, or override"):
        default_loss(nn.Linear(2, 1), nn.MSELoss(), batch)


@pytest.mark.parametrize("wrap", [lambda loss: SimpleNamespace(loss=loss), lambda loss: {"loss": loss}])
@pytest.mark.parametrize("batch", [(INPUTS, TARGETS), {"x": INPUTS, "y": TARGETS}])
def test_without_a_loss_function_the_model_gets_the_whole_batch_and_returns_its_loss(wrap: Any, batch: Any) -> None:
    class Own(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return wrap((x.sum() - y.sum()).square())

    output = default_loss(Own(), None, batch)
    assert (output["loss"].item(), output["batch_size"]) == (36.0, 3)


@pytest.mark.parametrize("returned", [torch.zeros(3), SimpleNamespace(loss=None), {"logits": 1}, None])
def test_without_a_loss_function_a_model_without_a_loss_is_refused(returned: Any) -> None:
    class Lossless(nn.Module):
        def forward(self, x: Any) -> Any:
            return returned

    with pytest.raises(
        ConfigError, match=r"loss_func is None and Lossless returned a \w+ without a loss; pass loss_func="
    ):
        default_loss(Lossless(), None, INPUTS)


def test_the_inputs_of_a_model_are_the_batch_without_its_targets() -> None:
    assert model_inputs({"x": 1, "label": 2}) == ((), {"x": 1})
    assert model_inputs((1, 2, 3)) == ((1,), {})
    assert model_inputs("text") == (("text",), {})


@pytest.mark.parametrize("name", ["labels", "label", "targets", "target"])
def test_targets_have_one_of_the_usual_names(name: str) -> None:
    assert read_targets({"x": 1, name: 2}) == 2
    assert read_targets((1, 2)) == 2


def test_a_mapping_without_targets_is_refused_with_its_names() -> None:
    with pytest.raises(DataError, match=r"a batch with \['x', 'y'\] has none of \('labels', .*override the loss"):
        read_targets({"x": 1, "y": 2})


def graph(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, requires_grad=True) * 1


@pytest.mark.parametrize("loss", [graph(), graph(1), graph(1, 1)])
def test_one_number_with_a_graph_is_a_loss(loss: torch.Tensor) -> None:
    check_loss({"loss": loss}, verb="calculate_train_batch_loss")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (graph(), "verb returned a Tensor; return a dict with 'loss', 'model_outputs', 'batch_size'"),
        ((graph(), 1), "verb returned a tuple; return a dict"),
        ({"lose": 1, 2: 3}, r"verb returned a dict with \['2', 'lose'\]; return a dict with 'loss'"),
        ({"loss": 0.5}, r"verb returned a loss of type float; return a tensor, not its \.item\(\)"),
        ({"loss": None}, "verb returned a loss of type NoneType; return a tensor"),
        ({"loss": graph(2, 3)}, r"verb returned a loss of shape \(2, 3\); reduce it with \.mean\(\) or \.sum\(\)"),
        ({"loss": graph(0)}, r"verb returned a loss of shape \(0,\); reduce it"),
        (
            {"loss": torch.zeros(())},
            "verb returned a loss without a graph; .* at least one parameter requires_grad=True",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused(output: Any, message: str) -> None:
    with pytest.raises(LossError, match=message):
        check_loss(output, verb="verb")


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (torch.zeros(2, 3), "float32 (2, 3)"),
        (torch.tensor(1), "int64 ()"),
        ((torch.zeros(1, dtype=torch.bfloat16), "label"), "[bfloat16 (1,), str]"),
        ({"x": [torch.zeros(2)], "y": None}, "{x: [float32 (2,)], y: NoneType}"),
    ],
)
def test_a_batch_is_described_by_types_and_shapes(batch: Any, text: str) -> None:
    assert describe_batch(batch) == text
