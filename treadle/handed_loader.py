"""The loaders of a trainer as users find them: to look at, to iterate over, and to replace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

from treadle.data import RunPass, Stream
from treadle.data.loaders import require_loader

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class HandedLoader:
    """An attribute of a trainer that is a stream, whatever loader was assigned to it.

    A loader that replaces another in a run begins at the start of the epoch under way; its place is saved in place of
    the other's. While `_prepare_dataloaders` is at work, loaders stay as they are.

    Args:
        evaluation: Whether the data is for evaluation.
    """

    def __init__(self, *, evaluation: bool) -> None:
        self._evaluation = evaluation
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, trainer: None, owner: type) -> "HandedLoader": ...

    @overload
    def __get__(self, trainer: Any, owner: type) -> Stream | None: ...

    def __get__(self, trainer: Any, owner: type) -> Any:
        return self if trainer is None else vars(trainer).get(self._name)

    def __set__(self, trainer: Any, value: Any) -> None:
        before = vars(trainer).get(self._name)
        if isinstance(value, RunPass):
            value = value.stream
        if not (value is None or isinstance(value, Stream) or trainer.prepares_data):
            loader = require_loader(value, self._name)
            value = (
                trainer.this_run.streams.for_evaluation(loader)
                if self._evaluation
                else trainer.this_run.streams.make(loader)
            )
            value.begin(before.epoch if isinstance(before, Stream) else 0)
        vars(trainer)[self._name] = value
        if isinstance(before, Stream) and isinstance(value, Stream) and value is not before:
            _take_the_place(trainer, before, value)


def _take_the_place(trainer: Any, before: Stream, after: Stream) -> None:
    """Have a stream drawn from, and saved, in place of another."""
    after.known_by = before.known_by
    for name in trainer.tracked.names_of(before):
        trainer.track(**{name: after})
    for name, stream in trainer.streams.items():
        if stream is before:
            trainer.streams[name] = after


@contextmanager
def training_on(trainer: "Trainer", train_dl: Any) -> Iterator[None]:
    """Have an epoch trained on what its loop was called with, if that is other data than the run's."""
    own = trainer._train_dataloader
    if train_dl is not None:
        trainer._train_dataloader = train_dl
    given = trainer._train_dataloader
    yield
    # A run that ends in the middle of the epoch is saved where it is in this data.
    if given is not own and trainer._train_dataloader is given and not trainer.this_run.epoch_is_cut:
        trainer._train_dataloader = own
