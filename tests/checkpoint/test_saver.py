"""Saving while training goes on: a snapshot at the call, a thread that writes, errors that surface once."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import CutError, assert_same_bits, checkpoint_steps, make_trainer, samples
from treadle import TrainerCallback
from treadle.checkpoint import CheckpointStore, Policy, Saver
from treadle.checkpoint.saver import Staging
from treadle.errors import CheckpointError


class SlowStore(CheckpointStore):
    """A store that writes when it is let, and fails when it is told."""

    def __init__(self, folder: Path, *, asynchronous: bool = True) -> None:
        super().__init__(folder, Policy(keep_last=None, asynchronous=asynchronous))
        self.may_write = threading.Event()
        self.failure: BaseException | None = None
        self.threads: list[str] = []

    def write(self, *arguments: Any) -> None:
        assert self.may_write.wait(60)
        self.threads.append(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure
        super().write(*arguments)


@pytest.fixture
def store(tmp_path: Path) -> SlowStore:
    return SlowStore(tmp_path)


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def saver(store: SlowStore, failures: list[str]) -> Any:
    saver = Saver(store, "attempt", lambda: failures.append(threading.current_thread().name))
    yield saver
    store.may_write.set()
    store.failure = None
    saver.wait()


def state() -> dict[str, Any]:
    weights = torch.arange(6.0).reshape(2, 3)
    return {"weights": weights, "tied": weights, "view": weights.t(), "list": [1, {"a": torch.tensor(2)}], "n": 3}


def test_a_checkpoint_is_the_state_at_the_call_whatever_changes_afterwards(saver: Saver, store: SlowStore) -> None:
    live = state()
    saver.save(1, live, {})
    live["weights"].fill_(99)
    live["list"][1]["a"].fill_(99)
    live["list"].append("more")
    live["n"] = 99
    store.may_write.set()
    saver.wait()
    assert_same_bits(store.read(1), state())


def test_the_caller_goes_on_while_it_is_written(saver: Saver, store: SlowStore) -> None:
    saver.save(1, state(), {})
    assert store.steps() == []
    store.may_write.set()
    saver.wait()
    assert store.steps() == [1]
    assert store.threads == ["treadle-checkpoint"]


def test_a_second_save_waits_for_the_first_and_disturbs_nothing_of_it(saver: Saver, store: SlowStore) -> None:
    tensor = torch.zeros(3)
    saver.save(1, {"tensor": tensor}, {})
    threading.Timer(0.05, store.may_write.set).start()
    tensor.fill_(1)
    saver.save(2, {"tensor": tensor}, {})
    saver.wait()
    assert store.read(1)["tensor"].tolist() == [0, 0, 0]
    assert store.read(2)["tensor"].tolist() == [1, 1, 1]


def test_a_synchronous_save_is_written_at_once_by_the_caller(tmp_path: Path) -> None:
    store = SlowStore(tmp_path, asynchronous=False)
    store.may_write.set()
    Saver(store, "attempt", lambda: None).save(1, state(), {})
    assert store.steps() == [1]
    assert store.threads == [threading.current_thread().name]
    assert_same_bits(store.read(1), state())


def test_an_error_of_the_writer_surfaces_once_at_the_next_check(
    saver: Saver, store: SlowStore, failures: list[str]
) -> None:
    store.failure = CheckpointError("the disk is full")
    saver.save(1, state(), {})
    saver.check()
    store.may_write.set()
    with pytest.raises(CheckpointError, match="the disk is full"):
        saver.wait()
    saver.check()
    saver.wait()
    assert failures == ["treadle-checkpoint"]


def test_an_error_of_another_kind_becomes_one_of_ours_with_its_cause(saver: Saver, store: SlowStore) -> None:
    store.failure = ZeroDivisionError("oh")
    store.may_write.set()
    saver.save(1, state(), {})
    with pytest.raises(CheckpointError, match="writing a checkpoint failed: ZeroDivisionError") as caught:
        saver.wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_after_an_error_the_next_save_works(saver: Saver, store: SlowStore) -> None:
    store.failure = CheckpointError("the disk is full")
    store.may_write.set()
    saver.save(1, state(), {})
    with pytest.raises(CheckpointError):
        saver.wait()
    store.failure = None
    saver.save(2, state(), {})
    saver.wait()
    assert store.steps() == [2]


def test_an_error_of_a_synchronous_save_is_raised_by_it(tmp_path: Path) -> None:
    store = SlowStore(tmp_path, asynchronous=False)
    store.may_write.set()
    store.failure = CheckpointError("the disk is full")
    with pytest.raises(CheckpointError, match="the disk is full"):
        Saver(store, "attempt", lambda: None).save(1, state(), {})


def test_a_state_that_cannot_be_held_is_refused_at_the_call(saver: Saver, store: SlowStore) -> None:
    with pytest.raises(CheckpointError, match=r"a\.1 is a object, which a checkpoint cannot hold"):
        saver.save(1, {"a": [1, object()]}, {})
    store.may_write.set()
    saver.wait()
    assert store.steps() == []


# Staging --------------------------------------------------------------------------------------------------


def test_buffers_are_used_again_for_tensors_of_the_same_kind() -> None:
    staging = Staging()
    first = staging.copy({"a": torch.zeros(3), "b": torch.ones(2)})
    second = staging.copy({"a": torch.ones(3), "b": torch.zeros(2, 2)})
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["b"].shape == (2, 2)
    assert second["a"].tolist() == [1, 1, 1]


def test_buffers_of_tensors_that_are_gone_are_given_back() -> None:
    staging = Staging()
    staging.copy({"a": torch.zeros(3), "b": torch.ones(2)})
    assert set(staging.copy({"b": torch.ones(2)})) == {"b"}
    assert set(staging._buffers) == {"b"}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(3.0)[:1].expand(4),
        torch.arange(10)[::2],
        torch.tensor([True, False]),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.zeros(0, 3),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["transposed", "expanded", "strided", "bool", "scalar", "conjugate", "empty", "parameter"],
)
def test_a_copy_has_the_values_and_lies_in_memory_of_its_own(tensor: torch.Tensor) -> None:
    copied = Staging().copy({"a": tensor.detach()})["a"]
    assert torch.equal(copied, tensor)
    assert copied.is_contiguous()
    assert tensor.numel() == 0 or copied.data_ptr() != tensor.data_ptr()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_copies_from_a_device_are_complete_before_the_next_step_may_change_it() -> None:
    staging = Staging()
    sources = {str(place): torch.full((1 << 20,), float(place), device="cuda") for place in range(20)}
    sources["on the host"] = torch.ones(3)
    for _ in range(3):
        copies = staging.copy(sources)
        values = {name: copy.clone() for name, copy in copies.items()}
        for tensor in sources.values():
            tensor.add_(1)
        assert all((values[name] + 1 == tensor.cpu()).all() for name, tensor in sources.items())
        assert copies["0"].is_pinned()


# In a run -------------------------------------------------------------------------------------------------


class Failing:
    """Makes writing fail from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def start(self) -> None:
        def fail(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        self.monkeypatch.setattr(CheckpointStore, "_write_part", fail)


def test_a_run_stops_at_the_step_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watches(TrainerCallback):
        steps = 0

        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 1:
                Failing(monkeypatch).start()
            thread = trainer.this_run.checkpointer._saver._thread
            if thread is not None:
                thread.join()

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            Watches.steps = trainer.progress.step

    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 2 into .*No space left"):
        make_trainer(tmp_path, Watches).train(samples(), 4, save_every=2, log_every=50)
    assert Watches.steps == 3


def test_a_run_that_dies_of_something_else_still_completes_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CheckpointStore.write
    dying = threading.Event()

    def slow(self: CheckpointStore, step: int, *arguments: Any) -> None:
        if step == 3:
            assert dying.wait(60)
        write(self, step, *arguments)

    class Dies(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                dying.set()
                raise CutError

    monkeypatch.setattr(CheckpointStore, "write", slow)
    with pytest.raises(CutError):
        make_trainer(tmp_path, Dies).train(samples(), 4, save_every=3)
    assert checkpoint_steps(tmp_path)[-1] == 3


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_checkpoint_is_written_after_the_file_that_it_counts_on(tmp_path: Path, asynchronous: bool) -> None:
    store = SlowStore(tmp_path, asynchronous=asynchronous)
    store.may_write.set()
    ahead: list[list[int]] = []
    may_end = threading.Event()

    def write_file() -> None:
        assert may_end.wait(60)
        ahead.append(store.steps())

    file_writer = threading.Thread(target=write_file)
    file_writer.start()
    threading.Timer(0.2, may_end.set).start()
    saver = Saver(store, "attempt", lambda: None)
    saver.save(1, state(), {}, after=file_writer)
    saver.wait()
    assert ahead == [[]]
    assert store.steps() == [1]
