"""What every trainer of recommenders is."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.loop.verbs import refuse_misspelt
from treadle.parallel import GradientAverager, Processes
from treadle.phase import optimizer_params

# Calls of methods that users override with fewer arguments than the ones they replace


def required(method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return those of `arguments` that `method` cannot be called without.

    >>> required(lambda learner, params=None: None, learner="adam", params=[])
    {'learner': 'adam'}
    """
    parameters = inspect.signature(method).parameters.values()
    named = {one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD}
    return {name: value for name, value in arguments.items() if name in named}


def is_overridden(owner: object, name: str, base: type) -> bool:
    """Whether the class of `owner`, or `owner` itself, has another method `name` than `base`."""
    return name in vars(owner) or getattr(type(owner), name) is not getattr(base, name)


# Passes over the training data: which loss and which optimizer an epoch has, and what follows


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A part of an epoch that goes through the training data.

    Args:
        name: What it is called in messages and metrics.
        loss: Takes an interaction and returns its loss: a tensor, or a tuple of tensors to be added up.
        optimizer: What updates the weights.
        parameters: What it trains; None for all that the optimizer holds.
        times: How often it goes through the data.
        before: Called with the number of the epoch when it begins.
        after: Called when it is done.
        is_due: Tells of an epoch whether the pass is made in it; None for always.
        data: Takes the training data and returns what of it the pass goes through; None for all of it.
        counts: Whether its loss is part of what the epoch reports as its own.
    """

    name: str
    loss: Callable[[Any], Any]
    optimizer: Optimizer
    parameters: Sequence[nn.Parameter] | None = None
    times: int = 1
    before: Callable[[int], None] | None = None
    after: Callable[[], None] | None = None
    is_due: Callable[[int], bool] | None = None
    data: Callable[[Any], Any] | None = None
    counts: bool = True

    def is_made(self, epoch: int) -> bool:
        """Whether the pass is made in an epoch."""
        return self.is_due is None or self.is_due(epoch)


VERBS = (
    *("_train_epoch", "_valid_epoch", "_build_optimizer", "_check_nan", "_generate_train_loss_output"),
    *("_full_sort_batch_eval", "_neg_sample_batch_eval", "_spilt_predict", "_save_checkpoint", "resume_checkpoint"),
)
"""The methods of a recommender's trainer that users override."""


class AbstractTrainer:
    """A trainer with settings and a model; a subclass defines `fit` and `evaluate`.

    On several processes, gradients are averaged before every step of an optimizer that the trainer holds as an
    attribute, alone or in a list or dict, whoever wrote the loop.

    Args:
        config: The settings.
        model: The model.

    Attributes:
        config, model: As given; the model is on its device.
        device: Where this process trains.

    Raises:
        ConfigError: The model comes first, or is a class; or the settings are a dict.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls, VERBS)

    def __init__(self, config: Any, model: Any) -> None:
        _check_order(type(self).__name__, config, model)
        self._processes = Processes(config["device"], timeout=config["timeout"])
        self._core_runs = False
        self._averaged: set[int] = set()
        self.config = config
        self.device: torch.device = self._processes.device
        self.model = model.to(self.device)
        if self._processes.distributed and self.device.type == "cuda":
            self.model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.model)  # type: ignore[no-untyped-call]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        for one in several:
            if isinstance(one, Optimizer) and self._processes.distributed and id(one) not in self._averaged:
                self._averaged.add(id(one))
                one.register_step_pre_hook(self._average_outside)

    def _average_outside(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Average the gradients of a loop that the core does not run; of its own and of others the core takes care."""
        if not self._core_runs:
            GradientAverager(self._processes).average(optimizer_params(optimizer))

    def fit(self, train_data: Any) -> Any:
        """Train the model."""
        raise NotImplementedError(f"{type(self).__name__} does not define fit")

    def evaluate(self, eval_data: Any) -> Any:
        """Evaluate the model."""
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate")

    def set_reduce_hook(self) -> None:
        """Do nothing: gradients are averaged whether or not this is called."""

    def sync_grad_loss(self) -> Tensor:
        """Return zero, to be added to a loss: parameters that it does not reach are taken care of anyway."""
        return torch.zeros((), device=self.device)


def _check_order(trainer: str, config: Any, model: Any) -> None:
    if isinstance(config, torch.nn.Module):
        raise ConfigError(
            f"{trainer}({type(config).__name__}, {type(model).__name__}): the settings come first, and the model "
            f"second: {trainer}(config, model)"
        )
    if type(config) is dict:
        raise ConfigError(
            f"{trainer}: settings are a Config, and this is a dict; write Config(model, dataset, config_dict=...)"
        )
    if isinstance(model, type):
        raise ConfigError(
            f"{trainer}: {model.__name__} is a class; build the model first: {model.__name__}(config, "
            "train_data.dataset)"
        )
