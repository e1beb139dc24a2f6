"""Which storage `get_event_storage()` returns."""

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from treadle.errors import ConfigError
from treadle.events import EventStorage, get_event_storage, has_event_storage


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Return what `call` returns, or the error it raises, in a thread of its own."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except ConfigError as error:
            results.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_the_innermost_storage_is_the_one() -> None:
    with EventStorage() as outer:
        with EventStorage() as inner:
            assert get_event_storage() is inner
        assert get_event_storage() is outer
        with outer:
            assert get_event_storage() is outer
        assert get_event_storage() is outer


def test_outside_of_any_the_error_says_what_to_do() -> None:
    assert not has_event_storage()
    with pytest.raises(ConfigError) as caught:
        get_event_storage()
    assert str(caught.value) == (
        "get_event_storage() was called while nothing trains; ask has_event_storage() first, or use "
        "`with EventStorage():`"
    )


def test_a_storage_is_left_when_the_block_raises() -> None:
    with pytest.raises(RuntimeError), EventStorage():
        raise RuntimeError
    assert not has_event_storage()


def test_a_thread_without_one_finds_the_only_one_of_the_process() -> None:
    with EventStorage() as storage, storage:
        assert in_a_thread(get_event_storage) is storage
        assert in_a_thread(has_event_storage)
    assert in_a_thread(has_event_storage) is False


def test_a_thread_has_its_own_before_any_other() -> None:
    def inner() -> bool:
        with EventStorage() as own:
            return get_event_storage() is own

    with EventStorage() as storage:
        assert in_a_thread(inner)
        assert get_event_storage() is storage


def test_a_thread_without_one_does_not_choose_between_several() -> None:
    entered, done = Event(), Event()

    def hold() -> None:
        with EventStorage():
            entered.set()
            done.wait()

    thread = Thread(target=hold)
    with EventStorage() as storage:
        thread.start()
        entered.wait()
        error = in_a_thread(get_event_storage)
        assert not in_a_thread(has_event_storage)
        assert get_event_storage() is storage
        done.set()
        thread.join()
    assert str(error) == (
        "get_event_storage() was called in a thread without a storage, and 2 other threads have one; enter the one "
        "that is meant, by `with storage:`"
    )


class Reporting(nn.Module):
    """A layer that reports the mean of its inputs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        get_event_storage().put_scalar("mean", inputs.mean())
        return inputs * 2


def test_a_model_reports_where_its_activations_are_computed_a_second_time() -> None:
    inputs = torch.tensor([1.0, 2.0], requires_grad=True)
    with EventStorage() as storage:
        outputs: Any = checkpoint(Reporting(), inputs, use_reentrant=False)
        outputs.sum().backward()
    assert set(storage.series("mean").values) == {1.5}
