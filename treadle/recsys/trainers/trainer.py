"""The trainer of recommenders, by RecBole's names."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treadle.callbacks import ProgressBarCallback
from treadle.errors import ConfigError, DataError, NonFiniteError
from treadle.execution import Choice
from treadle.ops.eval_mode import keep_modes
from treadle.recsys.config.core_options import refused_in_custom_loop
from treadle.recsys.data.dataloader import AbstractDataLoader
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.serve.recommender import Recommender
from treadle.recsys.serve.tables import Recommendations
from treadle.recsys.trainers.abstract_trainer import Pass, is_overridden, required
from treadle.recsys.trainers.loggers import WandbLogger, make_tensorboard
from treadle.recsys.trainers.loop.callbacks import callbacks_named, refuse_idle
from treadle.recsys.trainers.loop.checkpointing import CheckpointTrainer
from treadle.recsys.trainers.loop.core import CoreOptions, Losses, RecsysCore, make_core
from treadle.recsys.trainers.loop.epoch_end import EpochEnd
from treadle.recsys.trainers.loop.model_file import storable
from treadle.recsys.trainers.loop.optimizers import build_optimizer, warn_double_weight_decay
from treadle.runs.lock import run_lock
from treadle.writers import EventWriter, TensorboardWriter, WandbWriter, WritersCallback

_CURVES = "write curves in a callback: trainer.callbacks.append(...)"
_TREES = "Treadle hands all rows to the library itself: override _boosting"
ONLY_IN_A_COPIED_FIT = {
    "_add_train_loss_to_tensorboard": _CURVES,
    "_add_hparam_to_tensorboard": _CURVES,
    "_map_reduce": "metrics are those of all processes: override evaluate",
    "_interaction_to_sparse": _TREES,
    "_interaction_to_lib_datatype": _TREES,
    "_train_at_once": _TREES,
}
"""Methods of RecBole's trainers that no `fit` of Treadle's calls, and what to do instead."""
NO_VALIDATION = -1.0
"""The best score of a training that nobody evaluated."""


class NanLossError(NonFiniteError, ValueError):
    """The loss of a batch is nan."""


class Trainer(CheckpointTrainer):
    """Trains and evaluates a recommender: `fit` runs the epochs, `evaluate` measures.

    It is a face of the core trainer, which runs the loop: checkpoints, exact resume, precisions, executions and several
    processes are the core's. Override a method to do something else: `_build_optimizer`, `_train_epoch`,
    `_valid_epoch`, `_check_nan`, `_save_checkpoint`, `evaluate`, `_full_sort_batch_eval`; keyword arguments that an
    override does not take are not passed to it. Callbacks of the core are added to `callbacks`.

    A subclass with its own `_train_epoch` has a loop of its own: it is saved and resumed at the ends of epochs, its
    updates are counted, and on several processes its gradients are averaged.

    Args:
        config: The settings.
        model: The model; it is brought to its device.

    Attributes:
        learner, learning_rate, weight_decay, epochs, eval_step, stopping_step, clip_grad_norm: As the settings say.
        enable_amp, enable_scaler: Whether the settings ask for mixed precision, and for a loss scaler, which only
            CUDA has.
        optimizer: What updates the weights.
        callbacks: Callbacks of the core, called in every `fit`: those that the setting `callbacks` names, and more.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        _check_overrides(type(self))
        self.learner = config["learner"]
        self.learning_rate = config["learning_rate"]
        self.weight_decay = config["weight_decay"] or 0.0
        self.epochs = int(config["epochs"])
        self.eval_step = min(int(config["eval_step"]), self.epochs)
        self.stopping_step = int(config["stopping_step"])
        self.clip_grad_norm = config["clip_grad_norm"]
        self.gpu_available = self.device.type == "cuda"
        self.enable_amp = bool(config["enable_amp"])
        self.enable_scaler = self.gpu_available and bool(config["enable_scaler"])
        self.best_valid_score = -math.inf if self.valid_metric_bigger else math.inf
        self.best_valid_result: Any = None
        self.train_loss_dict: dict[int, float] = {}
        self.callbacks: list[Any] = callbacks_named(config["callbacks"])
        self._train_data: Any = None
        self._recommender: tuple[Dataset, Recommender] | None = None
        self.optimizer = self._built_optimizer()

    # Training -----------------------------------------------------------------------------------------------

    def fit(
        self,
        train_data: Any,
        valid_data: Any = None,
        verbose: bool = True,
        saved: bool = True,
        show_progress: bool = False,
        callback_fn: Callable[[int, Any], Any] | None = None,
    ) -> tuple[float, Any]:
        """Train, and return the best score and the best result on `valid_data`.

        Args:
            train_data: The loader for training.
            valid_data: The loader for validation; without it there is no early stopping.
            verbose: Whether to print what happens.
            saved: Whether to keep the best model in `saved_model_file`, and the run in the folder of that name.
            show_progress: Whether to show how far an epoch is.
            callback_fn: Called as `callback_fn(epoch_idx, valid_score)` after each evaluation; in a training without
                validation after each epoch, with None.

        Returns:
            The best score and the best result; `(-1, None)` without validation.

        Raises:
            ConfigError: A setting is nearly one that exists, or cannot be meant for this data.
            UnknownMetricError: `valid_metric` is not among the metrics.
            NonFiniteError: The loss became nan or infinite.
        """
        fitting = EpochEnd(
            self,
            Trainer,
            valid_data=valid_data,
            saved=saved,
            show_progress=show_progress,
            callback_fn=callback_fn,
        )
        self._get_ready(train_data, valid_data if fitting.evaluates else None)
        earlier = self.saved_model_file
        kept = self._core_options(saved=saved, verbose=verbose, show_progress=show_progress)
        options = replace(kept, evaluates=fitting.evaluates)
        epochs = self._epochs_in_all()
        if self.start_epoch >= epochs and not self._has_run_in_folder(options):
            if saved:
                self._save_checkpoint(self.start_epoch - 1, verbose=verbose)
        else:
            core = fitting.core = self._make_core(train_data, options, fitting.epoch_end)
            core.evaluates = fitting.evaluates
            self._run(core, epochs, fitting.finish)
        self._files.wait()
        self._name_best(earlier)
        if fitting.core is not None:
            # Not before the model is kept: whoever sent a signal at the end has a run that is over.
            fitting.core.this_run.leave_after_end()
        if not fitting.evaluates:
            return NO_VALIDATION, None
        return self.best_valid_score, self.best_valid_result

    def _run(self, core: RecsysCore, epochs: int, finish: Callable[[], None] | None = None) -> None:
        self._core, self._core_runs = core, True
        try:
            with run_lock(core.run_dir, self._processes, encloses=True):
                core.run(epochs)
                if finish is not None:
                    finish()
        finally:
            self._core_runs = False
            self._files.settle()

    def valid_scores(self) -> list[float]:
        """Return the score of each evaluation of the last `fit`, those before a resume included."""
        known = [] if self._core is None else self._core.run_history.get_metric_values("valid_score")
        return [float(score) for score in known]

    def _get_ready(self, train_data: Any, valid_data: Any) -> None:
        """Find out before the first epoch what would fail after it."""
        if train_data is None or isinstance(train_data, Dataset):
            got = type(train_data).__name__
            raise DataError(f"fit got a {got} to train on; pass the first loader that data_preparation returns")
        self.config.check_unread_keys()
        self._require_names()
        self._evaluations.clear()
        self._recommender = None
        self._train_data = train_data
        self.eval_collector.data_collect(train_data)
        if isinstance(train_data, AbstractDataLoader):
            train_data.get_model(_EvalModeScorer(self.model))
        if valid_data is not None and not is_overridden(self, "evaluate", Trainer):
            self._evaluations[valid_data] = self._prepare_evaluation(valid_data)
            self.check_scores(valid_data)

    def _train_epoch(
        self,
        train_data: Any,
        epoch_idx: int,
        loss_func: Callable[[Any], Any] | None = None,
        show_progress: bool = False,
    ) -> Losses:
        """Train one epoch, and return its loss: the sum over the batches, or a tuple of such sums.

        An override gets the training data, iterates over it, calls `backward()` and `self.optimizer.step()`; or it
        calls this method, once or several times, and does something before or after.

        Args:
            train_data: What to train on.
            epoch_idx: The number of the epoch, from 0.
            loss_func: The loss of an interaction; by default `model.calculate_loss`.
            show_progress: Whether to show how far it is.
        """
        if self._core is not None and self._core_runs:
            return self._core.run_pass(train_data, loss_func)
        options = CoreOptions(verbose=False, show_progress=show_progress, alone=True)
        core = self._make_core(train_data, options)
        if loss_func is not None:
            core.use_loss(loss_func)
        kept, self.start_epoch = self.start_epoch, epoch_idx
        try:
            self._run(core, epoch_idx + 1)
        finally:
            self.start_epoch = kept
        return 0.0 if core.losses is None else core.losses

    def _passes(self) -> Iterable[Pass]:
        """Return the passes over the data that make up an epoch, for subclasses with several losses or optimizers."""
        return [Pass(name="train", loss=self.model.calculate_loss, optimizer=self.optimizer)]

    def _check_nan(self, loss: Tensor) -> None:
        """Raise if a loss is nan; for loops of your own, for it waits for the device.

        The trainer's own loop finds out at the end of the epoch which step it was. An override is called there for
        every batch.

        Raises:
            NanLossError: It is; a `ValueError`.
        """
        if torch.isnan(loss):
            raise NanLossError("Training loss is nan; lower the learning rate, or set clip_grad_norm")

    def _build_optimizer(self, **kwargs: Any) -> Any:
        """Return the optimizer.

        Args:
            **kwargs: `params`, `learner`, `learning_rate` and `weight_decay`, in the place of the trainer's own.

        Raises:
            ConfigError: There is no such learner, or it does not suit the model.
        """
        params = kwargs.pop("params", None)
        learner = kwargs.pop("learner", self.learner)
        learning_rate = kwargs.pop("learning_rate", self.learning_rate)
        weight_decay = kwargs.pop("weight_decay", self.weight_decay)
        if kwargs:
            raise ConfigError(f"_build_optimizer takes no {sorted(kwargs)[0]!r}")
        warn_double_weight_decay(self.config["reg_weight"], weight_decay)
        if params is None:
            params = [one for one in self.model.parameters() if one.requires_grad]
        return build_optimizer(
            self.model, params, learner=learner, learning_rate=learning_rate, weight_decay=weight_decay
        )

    def _built_optimizer(self) -> Any:
        """Call `_build_optimizer`, with the arguments that an override cannot do without."""
        arguments = {
            "params": self.model.parameters(),
            "learner": self.learner,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
        }
        return self._build_optimizer(**required(self._build_optimizer, **arguments))

    def _generate_train_loss_output(self, epoch_idx: int, s_time: float, e_time: float, losses: Losses) -> str:
        """Return what is printed after an epoch of training."""
        places = int(self.config["loss_decimal_place"] or 4)
        if isinstance(losses, tuple):
            shown = ", ".join(f"train_loss{place}: {loss:.{places}f}" for place, loss in enumerate(losses, start=1))
        else:
            shown = f"train loss: {losses:.{places}f}"
        return f"epoch {epoch_idx} {self._activity(epoch_idx)} [time: {e_time - s_time:.2f}s, {shown}]"

    # For a `fit` that is copied from RecBole ------------------------------------------------------------------

    @cached_property
    def tensorboard(self) -> Any:
        """Where such a `fit` writes its curves; it keeps nothing unless `log_tensorboard` is set."""
        return make_tensorboard(self.config)

    @cached_property
    def wandblogger(self) -> WandbLogger:
        """Where such a `fit` writes its metrics; it keeps nothing unless `log_wandb` is set."""
        return WandbLogger(self.config)

    def _add_train_loss_to_tensorboard(self, epoch_idx: int, losses: Any, tag: str = "Loss/Train") -> None:
        parts = losses if isinstance(losses, tuple) else (losses,)
        for number, loss in enumerate(parts):
            self.tensorboard.add_scalar(f"{tag}{number}" if isinstance(losses, tuple) else tag, loss, epoch_idx)

    def _add_hparam_to_tensorboard(self, best_valid_result: float) -> None:
        plain = {"learner": self.learner, "learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        self.tensorboard.add_hparams(plain, {"hparam/best_valid_result": best_valid_result})

    def _map_reduce(self, result: Any, num_sample: int) -> Any:
        """Return metrics over the rows of all processes, each weighing as much as it has."""
        if not self._processes.distributed:
            return result
        weights = [float(value) * num_sample for value in result.values()]
        *sums, number = self._processes.reduce([*weights, float(num_sample)])
        places = int(self.config["metric_decimal_place"])
        return {name: round(total / number, places) for name, total in zip(result, sums, strict=True)}

    # Afterwards ---------------------------------------------------------------------------------------------

    def recommender(self, data: Any = None) -> Recommender:
        """Return what recommends with the model as it is.

        Args:
            data: The loader for training, or its data set; by default that of the last `fit`.

        Raises:
            ConfigError: There was no `fit`, and no data is given.
        """
        chosen = self._train_data if data is None else data
        dataset = chosen if isinstance(chosen, Dataset) else getattr(chosen, "dataset", None)
        if not isinstance(dataset, Dataset):
            raise ConfigError("recommending goes by the data of the training: call fit first, or pass data=train_data")
        if self._recommender is None or self._recommender[0] is not dataset:
            self._recommender = (dataset, Recommender(self.model, dataset, self.device))
        return self._recommender[1]

    def recommend(self, users: Any = None, k: int = 10, *, data: Any = None, **given: Any) -> Recommendations:
        """Return the `k` best items for some users, or for histories; see `Recommender.recommend`."""
        return self.recommender(data).recommend(users, k, **given)

    def similar_items(self, item_tokens: Any, k: int = 10, *, data: Any = None) -> Recommendations:
        """Return the `k` items most like some items, by their tokens; see `Recommender.similar_items`."""
        return self.recommender(data).similar_items(item_tokens, k)

    def export_embeddings(self, path: str | os.PathLike[str], of: str = "item", *, data: Any = None) -> Path:
        """Write the vectors of items or users to a file; see `Recommender.export_embeddings`."""
        return self.recommender(data).export_embeddings(path, of)

    def export_recommendations(
        self, path: str | os.PathLike[str], k: int = 10, *, exclude_seen: bool | None = None, data: Any = None
    ) -> Path:
        """Write the best items for every user to a file; see `Recommender.export_recommendations`."""
        return self.recommender(data).export_recommendations(path, k, exclude_seen=exclude_seen)

    # What the core asks -------------------------------------------------------------------------------------

    def _epochs_in_all(self) -> int:
        """Return how many epochs a `fit` has."""
        return self.epochs

    def _is_evaluated(self, epoch: int) -> bool:
        """Whether an evaluation follows an epoch."""
        return (epoch + 1) % self.eval_step == 0

    def _after_epoch(self, epoch: int, *, saved: bool) -> None:
        """Do what follows an epoch, before its evaluation: by default nothing.

        Args:
            epoch: Its number.
            saved: Whether this `fit` keeps files.
        """

    def _activity(self, epoch: int) -> str:
        """Return what an epoch does, for what is printed after it."""
        return "training"

    def _has_custom_loop(self) -> bool:
        return is_overridden(self, "_train_epoch", Trainer)

    def _refused_options(self) -> Mapping[str, str]:
        """Return the options of the core that this trainer cannot have, each with the reason."""
        if not self._has_custom_loop():
            return {}
        by_epochs = self.config["scheduler_interval"] == "epoch" or self.config["scheduler_metric"] is not None
        return refused_in_custom_loop(by_epochs=by_epochs)

    def _checks_every_loss(self) -> bool:
        return is_overridden(self, "_check_nan", Trainer)

    def _core_callbacks(self, options: CoreOptions) -> list[Any]:
        refuse_idle(self.callbacks)
        shows = options.show_progress and not any(_is_progress_bar(one) for one in self.callbacks)
        shown = [ProgressBarCallback(stays=False)] if shows else []
        writers = [] if options.alone or not self._processes.is_main else self._writers(options.run_dir)
        return [*self.callbacks, *shown, *([WritersCallback(*writers)] if writers else [])]

    def _writers(self, run_dir: Path | None) -> list[EventWriter]:
        """Return the destinations of metrics that the settings ask for."""
        folder = Path(self.checkpoint_dir) if run_dir is None else run_dir
        found: list[EventWriter] = []
        if self.config["log_tensorboard"]:
            found.append(TensorboardWriter(folder / "tensorboard"))
        if self.config["log_wandb"]:
            folder.mkdir(parents=True, exist_ok=True)
            settings = storable(self.config.plain())
            project = self.config["wandb_project"]
            found.append(WandbWriter(project, dir=folder, name=Path(self.saved_model_file).stem, config=settings))
        return found

    def _make_core(
        self, train_data: Any, options: CoreOptions, epoch_end: Callable[[int], None] | None = None
    ) -> RecsysCore:
        """Return the core trainer that runs the epochs."""
        return make_core(self, train_data, options, epoch_end)

    def _execution(self) -> Any:
        """Return how steps are carried out: a word, or what makes an execution of your own."""
        asked = self.config["execution"] or "auto"
        return asked if callable(asked) or isinstance(asked, Choice) else str(asked)

    def _precision(self) -> Any:
        """Return the format of the run: `precision`, a word or what makes one, or what `enable_amp` stands for."""
        asked = self.config["precision"]
        if asked is not None:
            return asked if callable(asked) else str(asked)
        if not self.enable_amp or self._has_custom_loop():
            return "fp32"
        return "fp16" if self.enable_scaler else "bf16"


def _is_progress_bar(callback: Any) -> bool:
    return callback is ProgressBarCallback or type(callback) is ProgressBarCallback


def _check_overrides(kind: type) -> None:
    """Make sure that no method of a subclass waits for a call that comes from RecBole's `fit` alone.

    Raises:
        ConfigError: There is one.
    """
    own = vars(Trainer)["fit"] is not getattr(kind, "fit", None)
    for name, instead in ONLY_IN_A_COPIED_FIT.items():
        owner = next((one for one in kind.__mro__ if name in vars(one)), None)
        if not own and owner is not None and owner is not Trainer:
            raise ConfigError(
                f"{owner.__name__}.{name} is called by RecBole's fit alone, and this one has none; {instead}"
            )


class _EvalModeScorer:
    """The model as the sampler of hard negatives uses it: in evaluation mode, without gradients."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.no_grad()
    def predict(self, interaction: Any) -> Tensor:
        """Return the scores of rows."""
        with keep_modes(self._model):
            for module in self._model.modules():
                module.training = False
            scores: Tensor = self._model.predict(interaction)
        return scores
