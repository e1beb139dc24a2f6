"""State taken apart into JSON and tensors, and put together again."""

import json
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treadle.checkpoint.format.tree import join, split
from treadle.errors import CheckpointError

EXACT = settings(deadline=None, derandomize=True, database=None, max_examples=200)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]

tensors = st.builds(
    lambda shape, dtype: torch.ones(shape).to(dtype), st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES)
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text())
trees: Any = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equality that looks into tensors, tells types apart and holds for nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(map(same, one.values(), other.values()))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other) and repr(one) == repr(other)


@EXACT
@given(trees)
def test_every_tree_of_plain_data_and_tensors_comes_back_as_it_was(tree: Any) -> None:
    structure, tensors = split(tree)
    text = json.dumps(structure, allow_nan=False)
    assert same(join(json.loads(text), tensors), tree)


@EXACT
@given(trees)
def test_every_tensor_has_a_name_of_its_own(tree: Any) -> None:
    _, tensors = split(tree)
    assert all(isinstance(name, str) and name for name in tensors)


def test_names_are_the_places_of_tensors() -> None:
    _, tensors = split({"optimizer": {"state": {0: {"step": torch.zeros(1)}}}, "list": [torch.ones(1)]})
    assert set(tensors) == {"optimizer.state.0.step", "list.0"}


def test_places_that_read_alike_get_names_that_differ() -> None:
    tree = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a.b#2": torch.full((1,), 2.0)}
    structure, tensors = split(tree)
    assert len(tensors) == 3
    assert same(join(structure, tensors), tree)


def test_a_tensor_that_stands_in_two_places_is_kept_once() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    structure, tensors = split({"embedding": weight, "head": weight, "same values": torch.ones(3)})
    assert list(tensors) == ["embedding", "same values"]
    tree = join(structure, tensors)
    assert tree["embedding"] is tree["head"]
    assert not tree["embedding"].requires_grad


def test_views_of_one_tensor_are_kept_apart() -> None:
    base = torch.arange(6.0)
    tree = {"whole": base, "half": base[:3], "rows": base.view(2, 3), "across": base.view(2, 3).T}
    structure, tensors = split(tree)
    assert len(tensors) == 4
    assert same(join(structure, tensors), tree)


def test_a_conjugate_view_is_not_its_tensor() -> None:
    tensor = torch.tensor([1 + 2j])
    structure, tensors = split({"tensor": tensor, "conjugate": tensor.conj()})
    assert join(structure, tensors)["conjugate"].resolve_conj().tolist() == [1 - 2j]


def test_empty_tensors_are_no_views_of_each_other() -> None:
    tree = {"a": torch.zeros(0), "b": torch.zeros(0, dtype=torch.int64), "c": torch.zeros(0, 2)}
    assert same(join(*split(tree)), tree)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64("nan"), math.nan),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (torch.Size([2, 3]), (2, 3)),
        (OrderedDict(a=1), {"a": 1}),
        (float("-inf"), -math.inf),
        (-0.0, -0.0),
        ({"__kind__": "tuple", "items": [1]}, {"__kind__": "tuple", "items": [1]}),
        ({1: "a", "1": "b"}, {1: "a", "1": "b"}),
    ],
)
def test_values_that_are_nearly_plain_become_plain(value: Any, expected: Any) -> None:
    structure, tensors = split({"value": value})
    assert same(join(json.loads(json.dumps(structure, allow_nan=False)), tensors)["value"], expected)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", lambda: 1, np.zeros(2), complex(1, 2), torch.float32])
def test_what_a_checkpoint_cannot_hold_is_named_with_its_place(value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        split({"callbacks": {"Mine": [1, value]}})
    assert str(caught.value) == (
        f"callbacks.Mine.1 is a {type(value).__name__}, which a checkpoint cannot hold; "
        "return tensors, numbers, strings, lists, tuples and dicts from state_dict"
    )


def test_a_whole_state_that_cannot_be_held_has_no_place() -> None:
    with pytest.raises(CheckpointError, match=r"^the state is a set, which a checkpoint cannot hold"):
        split({1, 2})


def test_a_sparse_tensor_is_refused_with_what_to_do() -> None:
    with pytest.raises(CheckpointError, match=r"a\.b is a torch\.sparse_coo tensor; make it dense in state_dict"):
        split({"a": {"b": torch.eye(2).to_sparse()}})


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ({"__kind__": "tensor", "name": "gone"}, "damaged: a 'tensor' entry lacks 'gone'"),
        ({"__kind__": "tensor"}, "damaged: a 'tensor' entry lacks 'name'"),
        ({"__kind__": "tuple"}, "damaged: a 'tuple' entry lacks 'items'"),
        ({"__kind__": "tuple", "items": 3}, "damaged: a 'tuple' entry lacks"),
        ({"__kind__": "dict", "items": [[1]]}, "damaged: a 'dict' entry lacks"),
        ({"__kind__": "dict", "items": [[[1], 2]]}, "damaged: a 'dict' entry lacks"),
        ({"__kind__": "float", "value": "x"}, "damaged: a 'float' entry lacks"),
        ({"__kind__": "lambda"}, "an entry of unknown kind 'lambda'; it may be from a newer Treadle"),
    ],
)
def test_a_damaged_structure_is_reported_and_not_guessed_at(structure: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        join({"a": [structure]}, {})
