"""The core trainer behind the trainers of trees: an update is a round."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from treadle.data import Batch, Stream
from treadle.phase import Phase
from treadle.recsys.trainers._core import RecommenderRun, RecommenderStreams, RecsysCore
from treadle.recsys.trainers._run_keeping import RecommenderCheckpointer

if TYPE_CHECKING:
    from treadle.recsys.trainers.decision_tree_trainer import DecisionTreeTrainer

BOOSTING = "boosting"


class TreeCore(RecsysCore):
    """Runs the rounds of a boosting run as the updates of one epoch, so that they are counted, logged and saved."""

    LOG_EVERY = "1 step"
    data_sums: dict[str, str]
    _face: "DecisionTreeTrainer"

    def create_streams(self) -> "TreeStreams":
        """Return what makes the stream of the rounds."""
        return TreeStreams(self)

    def phases(self, epoch: int) -> Iterator[Phase]:
        """Yield the one phase of the run."""
        yield Phase(BOOSTING, self.streams[BOOSTING], self._no_loss, next(iter(self.optimizers().values())))

    def _no_loss(self, batch: Batch) -> dict[str, Any]:
        raise NotImplementedError("a round of boosting has no loss of a batch")

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Add a round, and put what the library says of it among the metrics."""
        updater = self.this_run.updater
        updater.phase, updater.stepped = phase, True
        rounds = self._face.rounds
        # Each process counts its share of the rows, as in every other training.
        updater.samples = len(rounds.boosting.train) // self.processes.size
        found = rounds.add()
        values = {f"valid/{one.metric}": one.value for one in found}
        self.storage.put_scalars(values, smoothing_hint=False, cur_iter=self.progress.step + 1)
        if rounds.done % self._face.verbose_eval == 0 or rounds.is_over:
            shown = "".join(f", {one.metric}: {one.value:.6f}" for one in found)
            self.print(f"round {rounds.done} of {rounds.boosting.rounds}{shown}")

    def create_run(self) -> "TreeRun":
        """Return a run of rounds."""
        return TreeRun(self)

    def train_epoch_end(self) -> None:
        """Give the model its trees."""
        self._face._finish_boosting()

    def create_checkpointer(self, folder: Path) -> "TreeCheckpointer":
        """Return what keeps the run, and knows of its parameters."""
        return TreeCheckpointer(self, self.this_run.state, folder, self._face)

    @property
    def rounds(self) -> Any:
        """The rounds of the boosting run."""
        return self._face.rounds


class TreeStreams(RecommenderStreams):
    """Makes a stream of the numbers of the rounds: the library holds the rows itself."""

    trainer: TreeCore

    def create(self) -> None:
        """Make the stream; it is not divided among processes, each of which counts every round."""
        core = self.trainer
        rounds = [{"round": number} for number in range(core.rounds.boosting.rounds)]
        stream = Stream(rounds, device=core.device, limit=core.max_batches_per_epoch, name=BOOSTING)
        self.by_name.clear()
        self.by_name[BOOSTING] = core.this_run.data.training = stream
        core.data_sums = {"rows": _checksum(core.rounds.boosting.train)}


class TreeRun(RecommenderRun):
    """A run of rounds, which ends when the library has had enough."""

    trainer: TreeCore

    def windows(self, phase: Phase) -> Iterator[list[Batch]]:
        """Draw rounds until the library has had enough."""
        windows = super().windows(phase)
        while not self.trainer.rounds.is_over and (window := next(windows, None)) is not None:
            yield window

    def after_update(self) -> None:
        """Count the round; save as time passes, for there is but one epoch."""
        super().after_update()
        if self.trainer.options.save_every is None and self.trainer.is_time_to_save():
            self.checkpointer.save()


class TreeCheckpointer(RecommenderCheckpointer):
    """Keeps a run of trees, which goes on with the same rows and parameters alone."""

    trainer: TreeCore

    def report_changes(self, tracked: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Say what is no longer as it was, and where the library itself cannot go on exactly."""
        super().report_changes(tracked, manifest)
        if not self.trainer.rounds.is_exact:
            self.trainer.print(
                "resumed, but not bit for bit: with these parameters the library draws random numbers, which begin "
                "anew; set restart_rounds, such as 50, to have later runs resumed exactly"
            )

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on: the rows and the parameters, too."""
        boosting = self.trainer.rounds.boosting
        return {
            **super().identity(),
            "data": self.trainer.data_sums,
            "boosting": {**{name: str(value) for name, value in boosting.params.items()}, "rounds": boosting.rounds},
        }


def _checksum(rows: Any) -> str:
    return f"{crc32(rows.labels.tobytes(), crc32(rows.features.tobytes())):08x}"
