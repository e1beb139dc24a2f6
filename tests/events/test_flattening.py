"""Results of evaluations as flat names."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from treadle.errors import ConfigError
from treadle.events import EventStorage, flatten_results


def test_b28_nested_results_appear_as_paths_and_are_not_smoothed() -> None:
    storage = EventStorage(7)
    for value in (0.25, 0.75):
        results = {"imagenet": OrderedDict({"val": {"Acc@1": value, "Acc@5": 1}}), "time": np.float32(0.5)}
        storage.put_scalars(flatten_results(results), smoothing_hint=False)
    assert storage.latest_with_smoothing_hint() == {
        "imagenet/val/Acc@1": (0.75, 7),
        "imagenet/val/Acc@5": (1, 7),
        "time": (0.5, 7),
    }


def test_b28_a_number_on_a_device_stays_there() -> None:
    value = torch.tensor(0.5)
    assert flatten_results({"a": {"b": value}})["a/b"] is value


@pytest.mark.parametrize(
    ("value", "kind"), [("0.5", "str"), (None, "NoneType"), ([0.5], "list"), (torch.ones(2), "Tensor"), (1j, "complex")]
)
def test_b28_a_result_that_is_no_number_is_refused_by_its_path(value: Any, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flatten_results({"val": {"score": value}})
    assert str(caught.value) == (f"the result 'val/score' is a {kind}; an evaluation returns numbers, or dicts of them")


def test_two_results_of_one_path_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        flatten_results({"a/b": 1.0, "a": {"b": 2.0}})
    assert str(caught.value) == "the result 'a/b' is there twice, as a name and as a path; rename one of them"


def test_no_results_are_none() -> None:
    assert flatten_results({}) == flatten_results({"a": {}}) == {}
