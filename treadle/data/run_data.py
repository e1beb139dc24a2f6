"""The data of a run: what it was given, and the streams that batches are drawn from."""

from dataclasses import dataclass
from typing import Any

from treadle.data.stream import Stream


@dataclass(kw_only=True)
class RunData:
    """What a run is trained and evaluated on.

    Attributes:
        train_dataset: The data to train on, as it was given.
        eval_dataset: The data to evaluate on, as it was given; None for none.
        collate_fn: What joins samples into a batch; None for torch's own way.
        train_kwargs: Arguments of the training loader, over the defaults.
        eval_kwargs: Arguments of the evaluation loader, over the defaults.
        training: What batches of training are drawn from; a loader while the verbs that make one are at work.
        evaluation: What batches of evaluation are drawn from; None if nothing is evaluated.
        keeps_loaders: Whether loaders that are assigned stay as they are, for `_prepare_dataloaders` to look at.
    """

    train_dataset: Any = None
    eval_dataset: Any = None
    collate_fn: Any = None
    train_kwargs: dict[str, Any] | None = None
    eval_kwargs: dict[str, Any] | None = None
    training: Stream | Any = None
    evaluation: Stream | Any = None
    keeps_loaders: bool = False
