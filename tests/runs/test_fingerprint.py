"""What a run is made of, and how two of them are compared."""

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from treadle.runs.fingerprint import (
    changes,
    environment,
    fingerprint_data,
    fingerprint_model,
    fingerprint_optimizer,
)


def test_a_model_is_its_class_and_the_shapes_and_types_of_its_tensors() -> None:
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3)).double()
    assert fingerprint_model(model) == {
        "class": "Sequential",
        "0.weight": "(3, 2) torch.float64",
        "1.weight": "(3,) torch.float64",
        "1.bias": "(3,) torch.float64",
        "1.running_mean": "(3,) torch.float64",
        "1.running_var": "(3,) torch.float64",
        "1.num_batches_tracked": "() torch.int64",
    }


@pytest.mark.slow
def test_a_compiled_model_is_the_same_as_the_plain_one() -> None:
    model = nn.Linear(2, 1)
    compiled: Any = torch.compile(model, backend="eager")
    assert fingerprint_model(compiled) == fingerprint_model(model)


def test_a_model_may_have_state_that_is_no_tensor() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"count": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    assert set(fingerprint_model(Extra(2, 1))) == {"class", "weight", "bias"}


def test_an_optimizer_is_its_class_and_the_sizes_of_its_groups() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(1, 1)
    optimizer = torch.optim.Adam([{"params": first.parameters()}, {"params": [second.weight]}])
    assert fingerprint_optimizer(optimizer) == {"class": "Adam", "parameters in each group": [2, 1]}


def tensors(count: int = 100) -> TensorDataset:
    return TensorDataset(torch.arange(count * 3.0).reshape(count, 3), torch.arange(count))


def test_data_of_tensors_is_known_by_some_of_its_rows() -> None:
    facts = fingerprint_data(tensors())
    assert (facts["class"], facts["length"]) == ("TensorDataset", 100)
    assert facts == fingerprint_data(tensors())


@pytest.mark.parametrize("row", [0, 99])
@pytest.mark.parametrize("column", [0, 1])
def test_a_change_in_the_first_or_the_last_row_is_noticed(row: int, column: int) -> None:
    changed = tensors()
    changed.tensors[column][row] += 1
    assert fingerprint_data(changed) != fingerprint_data(tensors())


def test_in_small_data_a_change_in_any_row_is_noticed() -> None:
    for row in range(64):
        changed = tensors(64)
        changed.tensors[1][row] += 1
        assert fingerprint_data(changed) != fingerprint_data(tensors(64))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, 2, dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, 0),
        torch.zeros(1),
        torch.zeros(4, 3).t(),
        torch.zeros(3, requires_grad=True),
        torch.zeros(3, 1).expand(3, 5),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_tensors_of_any_kind_have_a_checksum(tensor: torch.Tensor) -> None:
    facts = fingerprint_data(TensorDataset(tensor))
    assert len(facts["rows"]) == 8


@pytest.mark.parametrize("length", [2**24 + 4, 2**25 + 4])
def test_data_may_have_more_rows_than_a_float_can_count(length: int) -> None:
    assert fingerprint_data(TensorDataset(torch.zeros(1, dtype=torch.uint8).expand(length)))["length"] == length


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        ([1, 2, 3], {"class": "list", "length": 3}),
        (Subset(tensors(), [1, 2]), {"class": "Subset", "length": 2}),
        (Streamed(), {"class": "Streamed"}),
        (DataLoader(tensors(), batch_size=8), {"class": "DataLoader", "length": 13}),
        (None, {"class": "NoneType"}),
    ],
    ids=["list", "subset", "iterable", "loader", "none"],
)
def test_other_data_is_its_class_and_its_length(data: Any, facts: dict[str, Any]) -> None:
    assert fingerprint_data(data) == facts


def test_taking_a_fingerprint_draws_nothing() -> None:
    before = torch.get_rng_state()
    fingerprint_data(tensors())
    fingerprint_model(nn.Identity())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_environment_is_what_bits_depend_on() -> None:
    facts = environment()
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (facts["torch"], facts["threads"]) == (torch.__version__, torch.get_num_threads())
    assert set(facts) >= {"python", "torch", "threads", "device"}


def test_every_difference_is_named_by_its_place_with_both_values() -> None:
    saved = {"model": {"a": 1, "b": [2]}, "gone": 3, "same": {"x": 1}}
    present = {"model": {"a": 1, "b": [4], "c": 5}, "same": {"x": 1}, "new": None}
    assert changes(saved, present) == [
        "model.b: [2] in the checkpoint, [4] now",
        "model.c: absent in the checkpoint, 5 now",
        "gone: 3 in the checkpoint, absent now",
        "new: absent in the checkpoint, None now",
    ]
    assert changes(saved, saved) == []


def test_a_part_that_became_a_plain_value_is_a_difference() -> None:
    assert changes({"a": {"b": 1}}, {"a": 2}) == ["a: {'b': 1} in the checkpoint, 2 now"]
