"""What the trainers of trees have in common."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from treadle.console.lines import fields, line
from treadle.data import Batch, Stream
from treadle.errors import ConfigError
from treadle.phase import Phase
from treadle.recsys.config.core_options import NO_BATCHES, OF_PRODUCTS, OF_UPDATES
from treadle.recsys.models.boosting import Boosting, LightGBMBoosting, Rounds, TreeRows, XGBoostBoosting, labelled_rows
from treadle.recsys.models.settings import whole, whole_or_none
from treadle.recsys.trainers.loop.core import CoreOptions, Losses, RecommenderRun, RecommenderStreams, RecsysCore
from treadle.recsys.trainers.loop.model_file import RecommenderCheckpointer
from treadle.recsys.trainers.trainer import Trainer

# The core trainer behind the trainers of trees: an update is a round


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
            shown = fields({one.metric: one.value for one in found})
            self.print(line(f"round {rounds.done}/{rounds.boosting.rounds}", shown))

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


class DecisionTreeTrainer(Trainer):
    """Has a library boost trees: one run, each of its rounds an update, and the library's own early stopping.

    The library is given all rows at once, tokens as categories, and evaluates its own metrics on the validation part
    after each round; they are among the metrics of the run as `valid/...`. The trees up to the best round are then
    evaluated as every model is. The run is saved by rounds. A booster is kept in the library's own format: in
    checkpoints, in the file of the model, and by itself beside that file. Of several processes the first one boosts,
    and all of them evaluate.

    A subclass says with `_boosting` which library, and with `prefix` what its settings begin with.

    Attributes:
        rounds: The rounds of the last `fit`.
        verbose_eval: How many rounds lie between two lines on the console.

    Raises:
        ConfigError: A setting cannot be meant.
    """

    prefix: str
    """What the names of the library's settings begin with."""
    rounds: Rounds

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.epochs = self.eval_step = 1
        self._params = dict(config[f"{self.prefix}_params"] or {})
        self._params.setdefault("seed", int(config["seed"]))
        self._num_rounds = whole(config, f"{self.prefix}_num_boost_round")
        self._stopping_rounds = whole_or_none(config, f"{self.prefix}_early_stopping_rounds")
        self.verbose_eval = self._rounds_between_lines()
        self._restart_rounds = whole_or_none(config, "restart_rounds")

    def _rounds_between_lines(self) -> int:
        # The libraries, and so RecBole, take truth values as well: every round, or the last one alone.
        name = f"{self.prefix}_verbose_eval"
        if self.config[name] is True:
            return 1
        return whole(self.config, name) if self.config[name] else self._num_rounds

    def _boosting(self, **arguments: Any) -> Boosting:
        """Return the library at work, with the arguments that every library has."""
        raise NotImplementedError(f"{type(self).__name__} does not say with _boosting which library grows its trees")

    def _get_ready(self, train_data: Any, valid_data: Any) -> None:
        super()._get_ready(train_data, valid_data)
        features = self.model.features
        train = labelled_rows(train_data, features, self.model.LABEL)
        assert train is not None, "a loader for training has rows"
        boosting = self._boosting(
            rounds=self._num_rounds,
            stopping_rounds=self._stopping_rounds,
            names=features.names,
            categories=features.categories,
            train=train,
            valid=self._rows_to_watch(valid_data),
            start=self._first_booster(),
        )
        self.rounds = Rounds(boosting, self._processes, self._restart_rounds)
        self._tracked["boosting"] = self.rounds

    def _rows_to_watch(self, valid_data: Any) -> TreeRows | None:
        """Return what the library evaluates on."""
        if not valid_data:
            return None
        rows = labelled_rows(valid_data, self.model.features, self.model.LABEL)
        if rows is None and self._stopping_rounds is not None:
            raise ConfigError(
                f"{self.prefix}_early_stopping_rounds={self._stopping_rounds}: the library stops early by rows with "
                "labels, and eval_args.mode is 'full'; use 'labeled' or 'uni100', or set it to None"
            )
        return rows

    def _first_booster(self) -> bytes | None:
        path = self.config[f"{self.prefix}_model"]
        if path is None:
            return None
        try:
            return Path(str(path)).read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.prefix}_model={str(path)!r} cannot be read: {error.strerror}") from error

    def _make_core(
        self, train_data: Any, options: CoreOptions, epoch_end: Callable[[int], None] | None = None
    ) -> RecsysCore:
        return TreeCore(self, train_data, options, epoch_end)

    def _finish_boosting(self) -> None:
        """Give the model the trees up to the best round."""
        text, best = self.rounds.result()
        self.model.take(text)
        if best is not None and best < self.model.grown().rounds():
            self.model.take(self.model.grown().first_rounds(best))

    def _save_checkpoint(self, epoch: int, verbose: bool = True, **kwargs: Any) -> None:
        """Write the model to a file, and its booster to one in the library's own format beside it."""
        path = Path(str(kwargs.get("saved_model_file", self.saved_model_file)))
        super()._save_checkpoint(epoch, verbose, **kwargs)
        if self._processes.is_main:
            self.model.save_booster(path.with_suffix(self.rounds.boosting.suffix))

    def _generate_train_loss_output(self, epoch_idx: int, s_time: float, e_time: float, losses: Losses) -> str:
        """Return what is printed after the boosting run."""
        kept = self.model.grown().rounds()
        return f"boosting [time: {e_time - s_time:.2f}s, rounds: {self.rounds.done}, best booster: {kept} rounds]"

    def _refused_options(self) -> Mapping[str, str]:
        boosted = "leaves its rounds to a library, which makes no updates by gradients"
        refused = (one for one in (*OF_UPDATES, *OF_PRODUCTS) if one != "max_steps")
        return {**dict.fromkeys(refused, boosted), **NO_BATCHES}

    def _precision(self) -> str:
        return "fp32"

    def _execution(self) -> str:
        return "eager"


# The trainer of LightGBM


class LightGBMTrainer(DecisionTreeTrainer):
    """Has LightGBM boost; its settings begin with `lgb_`."""

    prefix = "lgb"

    def _boosting(self, **arguments: Any) -> Boosting:
        first = self.config["lgb_first_metric_only"]
        return LightGBMBoosting(self._params, first_metric_only=first is not False, **arguments)


# The trainer of XGBoost


class XGBoostTrainer(DecisionTreeTrainer):
    """Has XGBoost boost; its settings begin with `xgb_`."""

    prefix = "xgb"

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        threads = whole_or_none(config, "xgb_nthread")
        if threads is not None:
            self._params["nthread"] = threads

    def _boosting(self, **arguments: Any) -> Boosting:
        return XGBoostBoosting(self._params, **arguments)
