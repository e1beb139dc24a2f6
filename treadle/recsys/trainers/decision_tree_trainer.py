"""What the trainers of trees have in common."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.recsys.boosting import Boosting, LabelledRows, Rounds, rows_of
from treadle.recsys.models.settings import whole, whole_or_none
from treadle.recsys.option_names import NO_BATCHES, OF_PRODUCTS, OF_UPDATES
from treadle.recsys.trainers._core import CoreOptions, Losses, RecsysCore
from treadle.recsys.trainers._tree_core import TreeCore
from treadle.recsys.trainers.trainer import Trainer


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
        train = rows_of(train_data, features, self.model.LABEL)
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

    def _rows_to_watch(self, valid_data: Any) -> LabelledRows | None:
        """Return what the library evaluates on."""
        if not valid_data:
            return None
        rows = rows_of(valid_data, self.model.features, self.model.LABEL)
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
