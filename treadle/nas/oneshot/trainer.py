"""What users see of every one-shot trainer."""

import abc
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Subset

from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.data import fold_seed
from treadle.data.loaders import DefaultSize, loader_arguments, resolve_batch_size
from treadle.errors import ConfigError, TreadleError, did_you_mean
from treadle.nas.costs.penalty import Penalty
from treadle.nas.fixed import freeze
from treadle.nas.oneshot.core import WEIGHTS, OneShotCore, OneShotPlan, is_ready
from treadle.nas.oneshot.supernet import Supernet
from treadle.nas.space.choice import Ranked, best_combinations
from treadle.nas.space.decisions import Architecture
from treadle.nas.space.layer_choice import ranked_values
from treadle.nas.space.model_space import Space
from treadle.nas.viz import draw, draw_weights
from treadle.nas.viz.weight_history import WeightHistory
from treadle.phase import optimizer_params
from treadle.result import TrainResult
from treadle.runs.panels import write_picture
from treadle.search.assignment import key_of
from treadle.spec import Names, Refused, spec_options
from treadle.trainer import Trainer

# From the weights of candidates to the best architectures


PATIENCE = 100_000
"""How many combinations that constraints refuse are passed over before the search for others ends."""


class Found(NamedTuple):
    """An architecture that a trainer found.

    Attributes:
        architecture: What was decided, by label.
        score: How good it is, as the trainer judges: the larger the better.
        network: The network with the weights that were trained, if they were asked for.
    """

    architecture: Architecture
    score: float
    network: nn.Module | None = None


def ranked_architectures(space: Space, scores: Mapping[str, Sequence[float]], most: int) -> list[Found]:
    """Return the best architectures under the logarithms of candidates' weights, each once.

    Args:
        space: The space.
        scores: The logarithms, by row.
        most: How many to return at most.

    Raises:
        ConfigError: The constraints of the space refuse all that were looked at.
    """
    parts = list(_parts(space, scores, most))
    found: dict[str, Found] = {}
    for score, chosen in islice(best_combinations(parts), PATIENCE):
        merged = {label: value for part in chosen for label, value in part.items()}
        architecture = space.decide(lambda decision, merged=merged: merged[decision.label])  # type: ignore[misc]
        if space.allows(architecture):
            found.setdefault(key_of(architecture), Found(architecture, score))
        if len(found) == most:
            break
    if not found:
        raise ConfigError(f"the constraints refuse the best {PATIENCE} architectures; make them wider")
    return list(found.values())


def _parts(space: Space, scores: Mapping[str, Sequence[float]], most: int) -> Iterator[Ranked]:
    done: set[str] = set()
    for choice in space.choices.values():
        if choice.rows() and choice.key not in done:
            done.add(choice.key)
            yield from choice.ranked(scores, most)
    for leaf, _ in space.values:
        if leaf.key not in done:
            done.add(leaf.key)
            yield ranked_values(leaf.key, leaf.decision("").candidates, scores[leaf.key])


# How one-shot trainers call the options of the core: arguments of the trainer, and of its `fit`


OPTION_NAMES = {
    "num_epochs": "num_epochs",
    "per_device_batch_size": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "clip_norm": "grad_clip",
    "log_every": "log_frequency",
}
"""What of a training the trainer is built with, under a name of its own; all else keeps its name."""
NAMES: Names = {name: OPTION_NAMES.get(name, name) for name in (*spec_options("trainer"), *spec_options("train"))}
PARTS: Names = {
    "model": "model",
    "loss_func": "loss",
    "optimizer": "optimizer",
    "callbacks": "callbacks",
    "run_history": "run_history",
    "metrics": "metrics",
    "train_metrics": Refused("weights and architecture take turns in training; metrics= are of the validation data"),
    "train_dataset": "dataset",
    "eval_dataset": "validation_dataset",
    "max_num_train_steps": "max_steps",
    "create_scheduler_fn": "scheduler",
    "train_dataloader_kwargs": "loader_options",
    "eval_dataloader_kwargs": "eval_dataloader_kwargs",
    "reset_run_history": "reset_run_history",
    "collate_fn": Refused("both data have one loader each, and take it there: loader_options={'collate_fn': ...}"),
}
"""The same for the arguments of the core's trainer that are no options."""


# The parent of everything that searches and trains at once


class BaseOneShotTrainer(abc.ABC):
    """Trains a space, choices and all, and says which architecture it found.

    It has no state: a subclass need not call `super().__init__()`, and takes whatever arguments it likes.
    """

    @abc.abstractmethod
    def fit(self) -> Any:
        """Train and search."""

    @abc.abstractmethod
    def export(self) -> Any:
        """Return the best architecture: plain data, by label."""


OWN = ("model", "loss_func", "optimizer", "metrics", "seed", "device", "run_dir")
"""Arguments of the core trainer that a one-shot trainer has itself."""
OF_FIT = ("log_every", "max_num_train_steps", "eval_dataloader_kwargs", "reset_run_history")
OWN_OF_TRAINER = [*(one for one in OPTION_NAMES if one not in OF_FIT), *(one for one in PARTS if one not in OF_FIT)]
"""Arguments of the core's `train` that are given to the trainer."""


class OneShotTrainer(BaseOneShotTrainer):
    """A one-shot trainer on top of the core loop: what they all take, and what they all give.

    It decides at the choices of `model` from now on; the modules, and the weights in them, stay the user's own. All
    that the core trainer offers works here: precision, execution, several processes, callbacks, run folders, exact
    resume.

    Args:
        model: The space.
        loss: Called as `loss(outputs, targets)`; None if the model returns its own.
        metrics: Called as `metrics(outputs, targets)` for each batch of validation data; returns a number or a dict of
            them, best as tensors. Or names such as "accuracy", torchmetrics, or a list or dict of any of these,
            which are computed on the validation data after each epoch.
        optimizer: The optimizer of the weights, or a function that makes it from parameters; None is SGD as DARTS has
            it.
        num_epochs: Passes over the data.
        dataset: What to train on; without `validation_dataset`, half of it is validated on.
        validation_dataset: What the architecture is judged on.
        batch_size: Samples in a batch, on each process.
        workers: Processes that fetch samples; None as the core trainer thinks best.
        grad_clip: Bounds the norm of the gradient of the weights; 0 or None does not.
        warmup_epochs: Epochs in which only the weights are trained.
        scheduler: Called with the optimizer of the weights, returns its schedule; placeholders in it are replaced.
        gradient_accumulation_steps: Batches in an update.
        penalties: What the architecture pays for its cost.
        split: What part of `dataset` is trained on, where it is split.
        log_frequency: After how many steps numbers are read from the device.
        loader_options: Further arguments of the loaders.
        seed: Seeds the run, the split and the search.
        run_dir: The folder of the run; None writes nothing.
        device: Where to train.
        options: Further arguments of the core trainer, such as `precision`, `execution`, `callbacks`, `deterministic`
            or `activation_checkpointing`.
    """

    core: OneShotCore
    core_type: type[OneShotCore]
    """What trains: the core trainer of the algorithm."""

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        metrics: Any = None,
        optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
        num_epochs: int = 50,
        dataset: Any = None,
        *,
        validation_dataset: Any = None,
        batch_size: int = DefaultSize(64),
        workers: int | None = None,
        grad_clip: float | None = 5.0,
        warmup_epochs: int = 0,
        scheduler: Callable[..., Any] | None = None,
        gradient_accumulation_steps: int = 1,
        penalties: Penalty | Sequence[Penalty] = (),
        split: float = 0.5,
        log_frequency: int | None = None,
        loader_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        run_dir: Any = None,
        device: Any = None,
        **options: Any,
    ) -> None:
        _check_options(type(self).__name__, options)
        self._space = Space(model)
        self.num_epochs, self._seed = num_epochs, seed
        self.penalties = [penalties] if isinstance(penalties, Penalty) else list(penalties)
        self._log_every = 50 if log_frequency is None else log_frequency
        judged = _of_evaluations(metrics)
        self._evaluates = judged is not None
        self._train_data, validation = self._data(dataset, validation_dataset, split)
        loading = dict(loader_options or {}) | ({} if workers is None else {"num_workers": workers})
        resolve_batch_size(batch_size, self._train_data, validation, name=f"{type(self).__name__}: batch_size")
        if loading and is_ready(self._train_data) and is_ready(validation):
            loader_arguments(self._train_data, {}, loading, type(self).__name__)
        self._plan = OneShotPlan(
            validation=validation,
            batch_size=int(batch_size),
            loader_options=loading,
            warmup_epochs=warmup_epochs,
            clip_norm=grad_clip or None,
            architecture_clip_norm=self._architecture_clip(),
            metrics=None if judged is not None else metrics,
            scheduler=scheduler,
            accumulation=gradient_accumulation_steps,
        )
        supernet = self._make_supernet(self._space)
        optimizers = {WEIGHTS: _make_optimizer(optimizer, self._space.model), **self._make_optimizers(supernet)}
        own = {"seed": seed, "run_dir": run_dir, "device": device, "metrics": judged, "train_metrics": False}
        self.core = self.core_type(supernet, loss, optimizers, self._plan, self._core_options(own | options))
        self.core.trainer_name = type(self).__name__
        self.core.draw_found = self._draw_found
        self._initial = _values(supernet.architecture)

    # What each algorithm adds -------------------------------------------------------------------------------

    def _make_supernet(self, space: Space) -> Supernet:
        raise NotImplementedError

    def _make_optimizers(self, supernet: Supernet) -> dict[str, Optimizer]:
        """Return the optimizers besides that of the weights."""
        return {}

    def _core_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options that the core is made with."""
        return options

    def _architecture_clip(self) -> float | None:
        return None

    def _ranked(self, most: int) -> list[Found]:
        """Return the best architectures, without their networks."""
        raise NotImplementedError

    def _epochs(self) -> int:
        """Return how many epochs the core runs."""
        return self.num_epochs

    # Data ---------------------------------------------------------------------------------------------------

    def _data(self, dataset: Any, validation: Any, split: float) -> tuple[Any, Any]:
        name = type(self).__name__
        if dataset is None:
            raise ConfigError(f"{name} has nothing to train on; pass dataset=")
        if validation is not None:
            return dataset, validation
        if is_ready(dataset) or not hasattr(dataset, "__len__") or isinstance(dataset, Mapping):
            kind = type(dataset).__name__
            raise ConfigError(f"{name} cannot split a {kind}; pass validation_dataset= beside dataset=")
        count = round(len(dataset) * split)
        if not 0 < count < len(dataset):
            raise ConfigError(f"{name}: split={split} leaves {count} of {len(dataset)} samples to train on")
        generator = torch.Generator().manual_seed(fold_seed("split", self._seed or 0))
        order = torch.randperm(len(dataset), generator=generator).tolist()
        return Subset(dataset, sorted(order[:count])), Subset(dataset, sorted(order[count:]))

    # What users call ----------------------------------------------------------------------------------------

    def fit(
        self,
        *,
        resume: Literal["auto"] | None = None,
        save_every: int | str | None = None,
        max_steps: int | None = None,
        **options: Any,
    ) -> TrainResult:
        """Train and search.

        Args:
            resume: "auto" resumes the search in `run_dir` if there is one.
            save_every: How often the search is saved into its folder; by default after every epoch.
            max_steps: The most updates, of weights and architecture together.
            options: Further arguments of `Trainer.train`.
        """
        _check_asked(type(self).__name__, options)
        size = None if is_ready(self._train_data) else self._plan.loader_options or None
        result = self.core.train(
            self._train_data,
            self._epochs(),
            eval_dataset=self._plan.validation if self._evaluates else None,
            per_device_batch_size=DefaultSize(self._plan.batch_size),
            gradient_accumulation_steps=self._plan.accumulation,
            train_dataloader_kwargs=size,
            max_steps=max_steps,
            save_every=save_every,
            resume=resume,
            **({"log_every": self._log_every} | options),
        )
        self._finished()
        self._keep_found()
        return result

    def _finished(self) -> None:
        """Called when a run has ended."""

    def _keep_found(self) -> None:
        """Put what was found into the folder of the run."""
        keeper = self.core.this_run.checkpointer
        if isinstance(keeper, RunCheckpointer) and self.core.processes.is_main and self._has_found():
            self.core.write_search(keeper.folder, self.export())

    def _draw_found(self) -> None:
        """Put what was found, and how it came about, onto the page of the run."""
        folder = self.core.run_dir
        assert folder is not None
        try:
            if self._has_found():
                write_picture(folder, "architecture", draw(self.export(), self.model))
            if self.core.candidate_rows():
                write_picture(folder, "architecture_weights", draw_weights(self.weights_over_time(), columns=2))
        except (TreadleError, OSError) as error:
            # The run itself is complete, or has an error of its own: a picture must not be another one.
            self.core.print(f"no picture of the architecture: {error}")

    def _has_found(self) -> bool:
        """Whether there is something to export: something was trained, or put into the weights of candidates."""
        return self.core.progress.step > 0 or self._initial != _values(self.supernet.architecture)

    def _refuse_export(self) -> None:
        raise ConfigError(
            f"{type(self).__name__} has trained nothing yet, so there is nothing to export; call fit() first, and "
            'fit(resume="auto") for a search that is in a folder already'
        )

    def probabilities(self) -> dict[str, dict[Any, float]]:
        """Return the weight of each candidate, by row; those of a row sum to one, and nothing is random in them."""
        rows = self.core.candidate_rows()
        return {row: dict(zip(rows[row], own, strict=True)) for row, own in self.core.probabilities().items()}

    def weights_over_time(self) -> WeightHistory:
        """Return what every candidate weighed after each epoch, such as for `nas.draw_weights`.

        Raises:
            ConfigError: The trainer learns no such weights, or no epoch has ended.
        """
        return self.core.weights_over_time()

    @overload
    def export(self, *, top_k: None = None, with_weights: Literal[False] = False) -> Architecture: ...
    @overload
    def export(self, *, top_k: None = None, with_weights: Literal[True]) -> Found: ...
    @overload
    def export(self, *, top_k: int, with_weights: bool = False) -> list[Found]: ...

    def export(self, *, top_k: int | None = None, with_weights: bool = False) -> Any:
        """Return the best architecture: plain JSON data, by label.

        Nothing is random in it, and nothing is changed by it.

        Args:
            top_k: Return the best so many, in order, with their scores.
            with_weights: Return networks besides, with copies of the weights that were trained.
        """
        if top_k is not None and (type(top_k) is not int or top_k < 1):
            raise ConfigError(f"export: top_k={top_k!r} must be a whole number from 1")
        if not self._has_found():
            self._refuse_export()
        found = self._ranked(top_k or 1)
        if with_weights:
            found = [one._replace(network=freeze(self._space.model, one.architecture)) for one in found]
        if top_k is not None:
            return found
        return found[0] if with_weights else found[0].architecture

    @property
    def model(self) -> nn.Module:
        """The space, as the user gave it."""
        return self._space.model

    @property
    def supernet(self) -> Supernet:
        """The space together with what is learnt about its choices."""
        return self.core.model

    @property
    def space(self) -> Space:
        """What is to be decided."""
        return self._space

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the weights."""
        return self.core.optimizers()[WEIGHTS]

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.core.device

    @property
    def storage(self) -> Any:
        """Where scalars are put."""
        return self.core.storage

    @property
    def nas_modules(self) -> list[tuple[str, nn.Module]]:
        """The choices of the model, with their labels."""
        return [(choice.key, choice) for choice in self._space.choices.values() if choice.current_label]


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    known = [one for one in inspect.signature(Trainer.__init__).parameters if one not in (*OWN, "self")]
    for option in options:
        own = PARTS.get(option)
        if isinstance(own, Refused):
            raise ConfigError(f"{name} takes no {option!r}: {own.reason}")
        if option not in known:
            raise ConfigError(f"{name} takes no {option!r}{did_you_mean(option, known)}")


def _check_asked(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what `fit` is asked for and does not hand on, and say where it belongs."""
    known = [one for one in (*spec_options("train"), *PARTS) if one not in OWN_OF_TRAINER]
    for option in options:
        if option in OWN_OF_TRAINER:
            own = {**PARTS, **NAMES}[option]
            where = own.reason if isinstance(own, Refused) else f"give it to the trainer: {name}(..., {own}=...)"
            raise ConfigError(f"{name}.fit takes no {option!r}; {where}")
        if option not in known:
            raise ConfigError(f"{name}.fit takes no {option!r}{did_you_mean(option, known)}")


def _values(architecture: nn.Module | None) -> list[Any]:
    """Return what is known of the choices, as plain numbers that nothing changes."""
    return [] if architecture is None else [weight.tolist() for weight in architecture.parameters()]


def _of_evaluations(metrics: Any) -> Any:
    """Return metrics that are computed after each epoch; None for a bare function, which is called at each batch."""
    is_bare = callable(metrics) and not (hasattr(metrics, "update") and hasattr(metrics, "compute"))
    return None if is_bare else metrics or None


def _make_optimizer(optimizer: Any, model: nn.Module) -> Optimizer:
    if optimizer is None:
        return SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    made = optimizer if isinstance(optimizer, Optimizer) else optimizer(model.parameters())
    if not isinstance(made, Optimizer):
        raise ConfigError(f"optimizer is a {type(made).__name__}; pass an optimizer, or a function that makes one")
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in own for parameter in optimizer_params(made)):
        raise ConfigError("the optimizer holds weights that are not the model's; build it from model.parameters()")
    return made
