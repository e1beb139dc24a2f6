"""Sources that keep their own place: entered in the middle, and whole again in every epoch after that."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from treadle import Trainer, TrainerCallback
from treadle.data import Stream
from treadle.data.source_state import is_same

datasets = pytest.importorskip("datasets")
torchdata = pytest.importorskip("torchdata.stateful_dataloader")

# Torchdata's loader calls what torch has put away.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

SAMPLES = 14


class Sticky(IterableDataset[Any]):
    """Begins every pass where the last state that was loaded says."""

    def __init__(self) -> None:
        self.start = self.place = 0

    def __iter__(self) -> Iterator[dict[str, int]]:
        for number in range(self.start, SAMPLES):
            self.place = number + 1
            yield {"x": number}

    def state_dict(self) -> dict[str, Any]:
        return {"place": torch.tensor([self.place])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = int(state["place"])


class Spread(Sticky):
    """The same, each sample by one of the workers."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        worker = torch.utils.data.get_worker_info()
        for sample in super().__iter__():
            if worker is None or sample["x"] % worker.num_workers == worker.id:
                yield sample


class Ready(Sticky):
    """The same in batches."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in super().__iter__():
            yield {"x": torch.tensor([sample["x"]])}


class CountsEpochs(Sticky):
    """Applies a state once, and has another order in each epoch, by a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __iter__(self) -> Iterator[dict[str, int]]:
        start, self.start = self.start, 0
        for number in range(start, SAMPLES):
            self.place = number + 1
            yield {"x": (number * 3 + self.epoch) % SAMPLES}
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.epoch = state["place"], state["epoch"]


def streamed(*, buffer: int | None = None, shards: int = 2, seed: int | None = 3) -> Any:
    found = datasets.Dataset.from_dict({"x": list(range(SAMPLES))}).to_iterable_dataset(num_shards=shards)
    return found if buffer is None else found.shuffle(seed=seed, buffer_size=buffer)


def stateful(data: Any, **options: Any) -> Any:
    return torchdata.StatefulDataLoader(data, batch_size=3, **options)


SOURCES: dict[str, Callable[[], Any]] = {
    "a stream": lambda: DataLoader(streamed(), batch_size=3),
    "a stream that is shuffled": lambda: DataLoader(streamed(buffer=4), batch_size=3),
    "a stream with a function over batches": lambda: DataLoader(
        streamed().map(lambda rows: {"x": [value + 1 for value in rows["x"]]}, batched=True, batch_size=4), batch_size=3
    ),
    "a stateful loader of a stream": lambda: stateful(streamed()),
    "a stateful loader of a stream that is shuffled": lambda: stateful(streamed(buffer=4)),
    "an iterable whose state sticks": lambda: DataLoader(Sticky(), batch_size=3),
    "ready batches whose state sticks": Ready,
    "an iterable that counts its epochs": lambda: DataLoader(CountsEpochs(), batch_size=3),
    "a stateful loader of an iterable whose state sticks": lambda: stateful(Sticky()),
    "a stateful loader of an iterable that counts its epochs": lambda: stateful(CountsEpochs()),
}
WITH_WORKERS: dict[str, Callable[[], Any]] = {
    "a stream": lambda: stateful(streamed(), num_workers=1, persistent_workers=True),
    "a stream that is shuffled": lambda: stateful(streamed(buffer=4), num_workers=1),
    "an iterable whose state sticks": lambda: stateful(Sticky(), num_workers=1, persistent_workers=True),
    "the same by two workers": lambda: stateful(Spread(), num_workers=2, persistent_workers=True),
    "an iterable that counts its epochs": lambda: stateful(CountsEpochs(), num_workers=1, persistent_workers=True),
}


def stream_of(source: Any, **options: Any) -> Stream:
    stream = Stream(source, device=torch.device("cpu"), seed=1, **options)
    stream.begin(0)
    return stream


def three_epochs(stream: Stream) -> Iterator[tuple[int, list[int]]]:
    """Draw up to the end of the third epoch; the first may have begun."""
    while stream.epoch < 3:
        while stream.has_next():
            yield stream.epoch, stream.window(1)[0]["x"].tolist()
        stream.begin(stream.epoch + 1)


@pytest.mark.parametrize("name", list(SOURCES))
def test_every_epoch_after_a_resume_has_the_samples_of_the_run_that_was_not_stopped(name: str) -> None:
    whole = list(three_epochs(stream_of(SOURCES[name]())))
    assert len({sample for epoch, batch in whole for sample in batch if epoch == 2}) == SAMPLES
    for cut in range(len(whole)):
        stream, other = stream_of(SOURCES[name]()), stream_of(SOURCES[name]())
        before = list(islice(three_epochs(stream), cut))
        other.load_state_dict(stream.state_dict())
        assert other.drawn == stream.drawn
        assert before + list(three_epochs(other)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WITH_WORKERS))
def test_every_epoch_after_a_resume_is_whole_with_workers_that_keep_the_place(name: str) -> None:
    stream = stream_of(WITH_WORKERS[name]())
    whole = list(three_epochs(stream))
    stream.close()
    each = sum(epoch == 0 for epoch, _ in whole)
    for cut in (2, each, each + 3):
        stream, other = stream_of(WITH_WORKERS[name]()), stream_of(WITH_WORKERS[name]())
        before = list(islice(three_epochs(stream), cut))
        other.load_state_dict(stream.state_dict())
        stream.close()
        assert before + list(three_epochs(other)) == whole
        other.close()


class Told(Sticky):
    """Writes down what it is told, and what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)

    def state_dict(self) -> dict[str, Any]:
        self.calls.append("place")
        return super().state_dict()


def test_a_source_knows_its_epoch_before_it_is_asked_for_its_place() -> None:
    """Torchdata's loader starts workers when it is asked, and these begin to read."""
    data = Told()
    stream = stream_of(DataLoader(data, batch_size=3))
    stream.begin(1)
    data.calls.clear()
    stream.begin(2)
    stream.has_next()
    assert data.calls[:2] == [2, "place"]


@pytest.mark.parametrize("name", list(SOURCES))
def test_a_run_that_is_saved_twice_goes_on_as_the_one_that_was_not_stopped(name: str) -> None:
    whole = list(three_epochs(stream_of(SOURCES[name]())))
    for cut, later in ((2, 3), (4, 4), (5, 6)):
        stream, drawn = stream_of(SOURCES[name]()), []
        for count in (cut, later):
            drawn += list(islice(three_epochs(stream), count))
            other = stream_of(SOURCES[name]())
            other.load_state_dict(stream.state_dict())
            stream = other
        assert drawn + list(three_epochs(stream)) == whole


class GoesOn(Sticky):
    """Goes on where the last pass was left, and begins anew only at its end."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        while self.place < SAMPLES:
            self.place += 1
            yield {"x": self.place - 1}
        self.place = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = int(state["place"])


CUT: dict[str, Callable[[], Any]] = {
    **{name: SOURCES[name] for name in SOURCES if "ready" not in name},
    "an iterable that goes on": lambda: DataLoader(GoesOn(), batch_size=3),
}


@pytest.mark.parametrize("name", list(CUT))
def test_an_epoch_that_a_limit_cuts_is_followed_by_the_same_one_after_a_resume(name: str) -> None:
    """Each evaluation goes through epoch 0, and the state of the last one is in the checkpoint."""

    def evaluations(stream: Stream, count: int) -> list[list[int]]:
        found = []
        for _ in range(count):
            stream.begin(0)
            found += [stream.window(1)[0]["x"].tolist() for _ in range(2) if stream.has_next()]
            assert not stream.has_next()
        return found

    whole = evaluations(stream_of(CUT[name](), evaluation=True, limit=2), 4)
    stream, other = (stream_of(CUT[name](), evaluation=True, limit=2) for _ in range(2))
    before = evaluations(stream, 2)
    other.load_state_dict(stream.state_dict())
    assert before + evaluations(other, 2) == whole


def test_a_data_set_in_a_loader_is_told_the_epoch() -> None:
    orders = [
        batch for epoch, batch in three_epochs(stream_of(DataLoader(streamed(buffer=SAMPLES), batch_size=SAMPLES)))
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(SAMPLES))
    assert orders[0] != orders[1] != orders[2]


def test_a_stream_that_is_shuffled_without_a_seed_says_that_its_order_is_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stream() -> Stream:
        return stream_of(DataLoader(streamed(buffer=4, seed=None), batch_size=3))

    one, other = stream(), stream()
    one.load_state_dict(one.state_dict())
    assert not caplog.messages
    other.load_state_dict(one.state_dict())
    other.load_state_dict(one.state_dict())
    assert caplog.messages == [
        "the train data is shuffled with another seed than when the run was saved, so it continues in another "
        "order; give shuffle() a seed"
    ]


def test_states_are_compared_with_the_tensors_and_arrays_in_them() -> None:
    one = {"a": torch.tensor([1, 2]), "b": [torch.zeros(2).numpy(), (1, "x")]}
    assert is_same(one, {"a": torch.tensor([1, 2]), "b": [torch.zeros(2).numpy(), (1, "x")]})
    assert not is_same(one, {**one, "a": torch.tensor([1, 3])})
    assert not is_same(one, {**one, "b": [torch.ones(2).numpy(), (1, "x")]})
    assert not is_same(one, {"a": one["a"]})


# Through a trainer --------------------------------------------------------------------------------------------


class Seen(Trainer):
    """Keeps the samples that it was trained on."""

    samples: list[list[int]]

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.samples.append(batch["x"].tolist())
        return {"loss": self.model(batch["x"].float()[:, None]).square().mean(), "batch_size": len(batch["x"])}


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == self.step:
            trainer.request_stop("for now")


def run(folder: Path, *callbacks: Any, buffer: int | None) -> tuple[Seen, Any]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    trainer = Seen(model, None, optimizer, callbacks=callbacks, seed=0, run_dir=folder)
    trainer.samples = []
    return trainer, trainer.train(streamed(buffer=buffer), num_epochs=3, per_device_batch_size=3, resume="auto")


@pytest.mark.parametrize("step", [2, 5])
@pytest.mark.parametrize("buffer", [None, 6])
def test_a_run_on_a_stream_makes_all_its_steps_after_a_resume(tmp_path: Path, buffer: int | None, step: int) -> None:
    whole, result = run(tmp_path / "whole", buffer=buffer)
    first, stopped = run(tmp_path / "broken", StopAt(step), buffer=buffer)
    resumed, finished = run(tmp_path / "broken", buffer=buffer)
    assert (stopped.steps, result.steps, finished.steps) == (step, 15, 15)
    assert len(resumed.samples) == 15 - step
    assert first.samples + resumed.samples == whole.samples
    assert torch.equal(whole.model.weight, resumed.model.weight)
