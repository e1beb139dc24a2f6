"""What users find on a trainer and its run owns: to look at, to iterate over, and to replace."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

from treadle.data import RunPass, Stream
from treadle.data.loaders import require_loader
from treadle.loop.interfaces import RunningTrainer

Value = TypeVar("Value")


class OfRun(Generic[Value]):
    """An attribute of a trainer that its run owns; it answers while the run continues, and after it.

    Args:
        path: Where the run has it, such as "data.train_dataset".
    """

    def __init__(self, path: str) -> None:
        self._read = attrgetter(path)
        owner, _, self._name = path.rpartition(".")
        self._owner = attrgetter(owner) if owner else None

    @overload
    def __get__(self, trainer: None, owner: type) -> Self: ...

    @overload
    def __get__(self, trainer: Any, owner: type) -> Value: ...

    def __get__(self, trainer: Any, owner: type) -> Any:
        return self if trainer is None else self._read(trainer.this_run)

    def __set__(self, trainer: Any, value: Value) -> None:
        # A subclass that sets it before the trainer is built has what the first run has.
        run = vars(trainer).get("this_run")
        if run is not None:
            setattr(run if self._owner is None else self._owner(run), self._name, value)


class HandedLoader:
    """An attribute of a trainer that is a stream of its run, whatever loader was assigned to it.

    A loader that replaces another in a run begins at the start of the epoch under way; its place is saved in place of
    the other's. While `_prepare_dataloaders` is at work, loaders stay as they are.

    Args:
        evaluation: Whether the data is for evaluation.
    """

    def __init__(self, *, evaluation: bool) -> None:
        self._evaluation = evaluation
        self._place = "evaluation" if evaluation else "training"
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, trainer: None, owner: type) -> "HandedLoader": ...

    @overload
    def __get__(self, trainer: Any, owner: type) -> Stream | None: ...

    def __get__(self, trainer: Any, owner: type) -> Any:
        return self if trainer is None else getattr(trainer.this_run.data, self._place)

    def __set__(self, trainer: Any, value: Any) -> None:
        run = trainer.this_run
        before = getattr(run.data, self._place)
        if isinstance(value, RunPass):
            value = value.stream
        if not (value is None or isinstance(value, Stream) or run.data.keeps_loaders):
            loader = require_loader(value, self._name)
            value = run.streams.for_evaluation(loader) if self._evaluation else run.streams.make(loader)
            value.begin(before.epoch if isinstance(before, Stream) else 0)
        setattr(run.data, self._place, value)
        if isinstance(before, Stream) and isinstance(value, Stream) and value is not before:
            _take_the_place(trainer, before, value)


def _take_the_place(trainer: Any, before: Stream, after: Stream) -> None:
    """Have a stream drawn from, and saved, in place of another."""
    # A resume compares the data that `train` was given; a loader put in its place would make it another run.
    after.known_by = before.known_by
    for name in trainer.tracked.names_of(before):
        trainer.track(**{name: after})
    for name, stream in trainer.streams.items():
        if stream is before:
            trainer.streams[name] = after


@contextmanager
def training_on(trainer: RunningTrainer, train_dl: Any) -> Iterator[None]:
    """Have an epoch trained on what its loop was called with, if that is other data than the run's."""
    own = trainer._train_dataloader
    if train_dl is not None:
        trainer._train_dataloader = train_dl
    given = trainer._train_dataloader
    yield
    # A run that ends in the middle of the epoch is saved where it is in this data.
    if given is not own and trainer._train_dataloader is given and not trainer.this_run.epoch_is_cut:
        trainer._train_dataloader = own
