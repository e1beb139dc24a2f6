"""The streams of a run: what its batches are drawn from, by name."""

import math
import os
from dataclasses import dataclass
from typing import Any

import torch

from treadle.data.columns import without_unused
from treadle.data.loaders import as_loader, loader_arguments, refuse_idle_collate
from treadle.data.order import HasOrder
from treadle.data.random_state import draws_in_cudnn, hold_dropout
from treadle.data.seeds import draw_seed, fold_seed, seed_generators
from treadle.data.source_state import HasReader
from treadle.data.stream import Stream
from treadle.errors import ConfigError, DataError
from treadle.runs.interfaces import TrainerLike

# The data of a run: what it was given, and the streams that batches are drawn from


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


class Streams:
    """Makes the streams of a run, and owns those of its training.

    A door whose data is drawn in another way gives its trainer a subclass by `create_streams`.

    Args:
        trainer: Whose run it is.

    Attributes:
        by_name: The streams of training; where nothing else is said, one that is called "train".
        seed: What the order of the data follows from, and random numbers of samples.
    """

    def __init__(self, trainer: TrainerLike) -> None:
        self.trainer = trainer
        self.by_name: dict[str, Stream] = {}
        self.seed = 0
        self._skipped: dict[str, int] = {}

    def seed_run(self) -> None:
        """Seed every generator if the trainer was given a seed, and settle the order of the data."""
        trainer = self.trainer
        if trainer.seed is not None:
            # Ranks that work on the same samples draw the same numbers.
            seed_generators(fold_seed(trainer.seed, trainer.parallel.data_rank))
        self.seed = int(trainer.processes.share(draw_seed() if trainer.seed is None else trainer.seed))
        if draws_in_cudnn(trainer.model, trainer.device):
            hold_dropout(trainer.device)

    # The data of the run ------------------------------------------------------------------------------------

    def prepare(self, train_kwargs: dict[str, Any] | None, eval_kwargs: dict[str, Any] | None) -> None:
        """Have the loaders of training and evaluation made, by the verbs for them, and their streams.

        Args:
            train_kwargs: Arguments of the training loader, over the defaults.
            eval_kwargs: Arguments of the evaluation loader, over the defaults.
        """
        data = self.trainer.this_run.data
        data.train_kwargs, data.eval_kwargs = train_kwargs, eval_kwargs
        data.keeps_loaders = True
        try:
            self.create()
            self.trainer._prepare_dataloaders()
        finally:
            data.keeps_loaders = False
        self.open()

    def create(self) -> None:
        """Have the loaders made, or the streams themselves."""
        trainer, data = self.trainer, self.trainer.this_run.data
        size = trainer.settings.per_device_batch_size
        data.training = trainer.create_train_dataloader(size, data.train_kwargs)
        data.evaluation = None if data.eval_dataset is None else trainer.create_eval_dataloader(size, data.eval_kwargs)

    def training_loader(self, defaults: dict[str, Any], given: dict[str, Any] | None) -> Any:
        """Return the loader of the training data; arguments that were `given` win over the `defaults`."""
        data = self.trainer.this_run.data
        kwargs = loader_arguments(data.train_dataset, defaults, given, "train_dataloader_kwargs")
        sources = [data.train_dataset] if data.eval_dataset is None else [data.train_dataset, data.eval_dataset]
        refuse_idle_collate(data.collate_fn, *sources)
        kwargs = {"shuffle": True, "collate_fn": data.collate_fn, **kwargs}
        columns = hasattr(data.train_dataset, "remove_columns")
        return self.loader(self._fitting(data.train_dataset, kwargs) if columns else data.train_dataset, **kwargs)

    def evaluation_loader(self, defaults: dict[str, Any], given: dict[str, Any] | None) -> Any:
        """Return the loader of the evaluation data; arguments that were `given` win over the `defaults`."""
        data = self.trainer.this_run.data
        kwargs = loader_arguments(data.eval_dataset, defaults, given, "eval_dataloader_kwargs")
        kwargs = {"shuffle": False, "collate_fn": data.collate_fn, **kwargs}
        columns = hasattr(data.eval_dataset, "remove_columns")
        return self.loader(self._fitting(data.eval_dataset, kwargs) if columns else data.eval_dataset, **kwargs)

    def _fitting(self, data: Any, kwargs: dict[str, Any]) -> Any:
        """Return a data set of columns with those that the model takes."""
        return without_unused(data, self.trainer.model, kwargs["collate_fn"], self.trainer.print)

    def planned_updates(
        self, num_epochs: int | None, max_steps: int | None, accumulation: int
    ) -> tuple[int | None, int | None, int | None]:
        """Return how many updates an epoch has, how many of these move a schedule, and the most that a run makes.

        What cannot be known is None.
        """
        stream = self.trainer.this_run.data.training
        batches = None if stream is None else stream.length
        updates = None if batches is None else math.ceil(batches / accumulation)
        limits = [] if max_steps is None else [max_steps]
        if num_epochs is not None and updates is not None:
            limits.append(num_epochs * updates)
        return updates, updates, min(limits, default=None)

    # Making -------------------------------------------------------------------------------------------------

    def make(self, source: Any, *, evaluation: bool = False, name: str = "train") -> Stream:
        """Return a stream over a loader, or over anything that batches can be drawn from."""
        trainer = self.trainer
        return Stream(
            source,
            device=trainer.device,
            seed=self.seed,
            rank=trainer.parallel.data_rank,
            size=trainer.parallel.data_size,
            evaluation=evaluation,
            limit=trainer.max_batches_per_epoch,
            name=name,
            share=trainer.processes.share,
            # Without a seed, torch's generators decide; what they give is then what a hand-written loop would get.
            as_torch=trainer.seed is None and not evaluation,
        )

    @staticmethod
    def loader(data: Any, *, shuffle: bool, collate_fn: Any = None, **kwargs: Any) -> Any:
        """Return `data` if it is a loader or an iterable of batches already, else a loader over the data set."""
        return as_loader(data, shuffle=shuffle, collate_fn=collate_fn, **kwargs)

    def for_evaluation(self, loader: Any) -> Stream:
        """Return the stream over a loader of evaluation data.

        Raises:
            DataError: It has fewer samples than there are processes.
        """
        trainer = self.trainer
        stream = self.make(loader, evaluation=True, name="evaluation")
        # Asked of the data and not of this rank's share: every rank must come to the same answer.
        length = getattr(stream.dataset, "__len__", None)
        shared = trainer.processes.distributed and stream.sampler is not None
        if shared and length is not None and length() < trainer.parallel.data_size:
            raise DataError(
                f"the evaluation data has {length()} samples for {trainer.parallel.data_size} processes; "
                "give at least one to each"
            )
        return stream

    def open(self) -> None:
        """Make a stream of each loader of the run that is none yet."""
        data = self.trainer.this_run.data
        if data.training is None:
            raise ConfigError("there is no training data: _prepare_dataloaders left _train_dataloader as None")
        if not isinstance(data.training, Stream):
            data.training = self.make(data.training)
        if data.training.length == 0:
            raise DataError(
                "the training data gives no batch; check that the data set is not empty "
                "and that drop_last leaves at least one full batch"
            )
        if data.training not in self.by_name.values():
            self.by_name = {"train": data.training}
        if data.evaluation is not None and not isinstance(data.evaluation, Stream):
            data.evaluation = self.for_evaluation(data.evaluation)

    def add(self, name: str, source: Any, **loader_kwargs: Any) -> Stream:
        """Add data for a phase of your own; see `Trainer.add_stream`."""
        kwargs = loader_arguments(source, {}, loader_kwargs, f"add_stream({name!r})")
        stream = self.make(self.loader(source, shuffle=bool(kwargs.pop("shuffle", True)), **kwargs), name=name)
        self.by_name[name] = stream
        self.trainer.track(**{f"stream_{name}": stream})
        return stream

    # An epoch -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the epoch in every stream, if the run is not in the middle of one."""
        run = self.trainer.this_run
        if not run.progress.mid_epoch:
            run.losses.reset()
            run.metrics.reset()
            self.tell_skipped()
            for stream in self.by_name.values():
                stream.begin(run.progress.epoch)

    def replay(self, *, replaying: bool) -> None:
        """Say whether the batches of an epoch are those of one that was drawn before, as after a resume."""
        for stream in self.by_name.values():
            stream.replaying = replaying

    def take_samples(self) -> int:
        """Return how many samples were drawn since the last time."""
        return sum(stream.take_samples() for stream in self.by_name.values())

    def tell_skipped(self) -> None:
        """Say how many corrupt records this process left out, where there are more than it said before."""
        for name, stream in self.by_name.items():
            count = stream.dataset.skipped if isinstance(stream.dataset, (HasOrder, HasReader)) else 0
            if count > self._skipped.get(name, 0):
                self._skipped[name] = count
                self.trainer.print(f"the {name} data: {count} corrupt records were skipped so far")

    def close(self) -> None:
        """Give up what fetches data."""
        self.tell_skipped()
        for stream in (*self.by_name.values(), self.trainer.this_run.data.evaluation):
            if stream is not None:
                stream.close()


def default_workers(device: torch.device) -> int:
    """Return how many workers fetch samples: they pay where a GPU would wait; a CPU's cores they only take away."""
    if device.type != "cuda":
        return 0
    per_process = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(8, per_process))
