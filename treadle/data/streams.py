"""The streams of a run: what its batches are drawn from, by name."""

from typing import TYPE_CHECKING, Any

from treadle.data.cudnn_dropout import draws_in_cudnn, hold_dropout
from treadle.data.loaders import as_loader, loader_arguments
from treadle.data.seeds import draw_seed, fold_seed, seed_generators
from treadle.data.stream import Stream
from treadle.errors import ConfigError, DataError

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class Streams:
    """Makes the streams of a run, and owns those of its training.

    A door whose data is drawn in another way gives its trainer a subclass by `create_streams`.

    Args:
        trainer: Whose run it is.

    Attributes:
        by_name: The streams of training; where nothing else is said, one that is called "train".
        seed: What the order of the data follows from, and random numbers of samples.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        self.by_name: dict[str, Stream] = {}
        self.seed = 0

    def seed_run(self) -> None:
        """Seed every generator if the trainer was given a seed, and settle the order of the data."""
        trainer = self.trainer
        if trainer.seed is not None:
            # Ranks that work on the same samples draw the same numbers.
            seed_generators(fold_seed(trainer.seed, trainer.parallel.data_rank))
        self.seed = int(trainer.processes.share(draw_seed() if trainer.seed is None else trainer.seed))
        if draws_in_cudnn(trainer.model, trainer.device):
            hold_dropout(trainer.device)

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
        """Make a stream of each loader of the trainer that is none yet."""
        trainer = self.trainer
        if trainer._train_dataloader is None:
            raise ConfigError("there is no training data: _prepare_dataloaders left _train_dataloader as None")
        if not isinstance(trainer._train_dataloader, Stream):
            trainer._train_dataloader = self.make(trainer._train_dataloader)
        if trainer._train_dataloader.length == 0:
            raise DataError(
                "the training data gives no batch; check that the data set is not empty "
                "and that drop_last leaves at least one full batch"
            )
        if trainer._train_dataloader not in self.by_name.values():
            self.by_name = {"train": trainer._train_dataloader}
        if trainer._eval_dataloader is not None and not isinstance(trainer._eval_dataloader, Stream):
            trainer._eval_dataloader = self.for_evaluation(trainer._eval_dataloader)

    def add(self, name: str, source: Any, **loader_kwargs: Any) -> Stream:
        """Add data for a phase of one's own; see `Trainer.add_stream`."""
        kwargs = loader_arguments(source, {}, loader_kwargs, f"add_stream({name!r})")
        stream = self.make(self.loader(source, shuffle=bool(kwargs.pop("shuffle", True)), **kwargs), name=name)
        self.by_name[name] = stream
        self.trainer.track(**{f"stream_{name}": stream})
        return stream

    # An epoch -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the epoch in every stream, if the run is not in the middle of one."""
        trainer = self.trainer
        if not trainer.progress.mid_epoch:
            trainer._loss_tracker.reset()
            for stream in self.by_name.values():
                stream.begin(trainer.progress.epoch)

    def replay(self, *, replaying: bool) -> None:
        """Say whether the batches of an epoch are those of one that was drawn before, as after a resume."""
        for stream in self.by_name.values():
            stream.replaying = replaying

    def take_samples(self) -> int:
        """Return how many samples were drawn since the last time."""
        return sum(stream.take_samples() for stream in self.by_name.values())

    def close(self) -> None:
        """Give up what fetches data."""
        for stream in (*self.by_name.values(), self.trainer._eval_dataloader):
            if stream is not None:
                stream.close()
