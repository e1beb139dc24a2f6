"""What trainers that go one way at a time have in common."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from treadle.data import Batch
from treadle.errors import ConfigError
from treadle.execution import Compile
from treadle.nas.oneshot.core import OneShotCore
from treadle.nas.oneshot.supernet import Supernet
from treadle.nas.oneshot.trainer import OneShotTrainer
from treadle.nas.space.choice import Choice
from treadle.nas.space.choosers import Fixed
from treadle.nas.space.decisions import Architecture
from treadle.nas.space.model_space import Space
from treadle.ops.losses import read_targets

# What a user's function says of a batch, as a number on the device


def metric_number(value: Any, device: torch.device, name: str | None = None) -> Tensor:
    """Return a number, or the one of several called `name`, by default the first, as a tensor.

    Raises:
        ConfigError: There is none of that name, or it is no number.
    """
    if isinstance(value, Mapping):
        if name is not None and name not in value:
            raise ConfigError(f"there is no metric {name!r}; the function returned {list(value)}")
        value = value[name] if name is not None else next(iter(value.values()))
    if isinstance(value, Tensor):
        return value.detach().float().mean()
    if isinstance(value, (int, float)):
        return torch.tensor(float(value), device=device)
    raise ConfigError(f"a metric returned a {type(value).__name__}; return a number, a tensor or a dict of them")


def refuse_recording(trainer: str, options: dict[str, Any]) -> None:
    """Refuse to record steps that go another way each time; "auto" goes step by step.

    Raises:
        ConfigError: Recording was asked for.
    """
    if options.get("execution") == "graph":
        raise ConfigError(
            f"{trainer} goes another way in every step, and a recorded step goes the same for ever; use "
            "execution='eager' or 'compile', or DartsTrainer, whose steps are all alike"
        )
    if options.get("execution", "auto") == "auto":
        options["execution"] = "eager"


def compiled_parts(space: Space, options: dict[str, Any]) -> dict[str, Any]:
    """Return options of the core trainer in which the candidates are compiled one by one.

    A whole pass would be compiled anew for every way through the space.

    Raises:
        ConfigError: There is nothing to compile.
    """
    wanted = options.get("compile") or options.get("execution") == "compile"
    how = Compile.of(options.get("compile", False)) or Compile()
    if not wanted or how.modules is not None:
        return options
    names = [name for choice in space.choices for name in _plain_parts(space, choice)]
    if not names:
        raise ConfigError("there is no candidate to compile that has no choice in it; use execution='eager'")
    return {**options, "compile": replace(how, modules=names)}


def _plain_parts(space: Space, place: str) -> list[str]:
    """Return the names of the modules directly inside of a choice that leave nothing open themselves."""
    choice = space.choices[place]
    inner = [(name, module) for name, module in choice.named_modules() if name in choice.branches()]
    plain = [(name, one) for name, one in inner if not any(isinstance(part, Choice) for part in one.modules())]
    return [f"{place}.{name}" for name, one in plain if any(True for _ in one.parameters())]


class SinglePathCore(OneShotCore):
    """Trains the weights on one architecture after the other, and says how good an architecture is with them."""

    uses_both = False

    def updates_per_epoch(self) -> tuple[int | None, int | None]:
        """Return how many updates of the weights an epoch of training has, and that there are no others."""
        length = self.streams["train"].length
        updates = None if length is None else -(-length // self.plan.accumulation)
        return updates, updates

    def choose(self, architecture: Architecture) -> None:
        """Have the passes that follow go the way of an architecture."""
        chooser = self.model.chooser
        assert isinstance(chooser, Fixed)
        chooser.architecture = architecture

    @torch.no_grad()
    def score(
        self, outputs: Any, batch: Batch, judge: Callable[[Any, Any], Any] | None, metric: str | None = None
    ) -> Tensor:
        """Return how good outputs are: what `judge` says, which of several is `metric`, or else the loss, negated."""
        plain, targets = getattr(outputs, "logits", outputs), read_targets(batch)
        if judge is not None:
            return metric_number(judge(plain, targets), self.device, metric)
        return -metric_number(self.precision.for_loss(self.loss_func)(plain, targets), self.device)


class SinglePathTrainer(OneShotTrainer):
    """A trainer whose core goes one way at a time."""

    core: SinglePathCore

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse_recording(type(self).__name__, kwargs)
        super().__init__(*args, **kwargs)

    def _make_supernet(self, space: Space) -> Supernet:
        if not space.decisions:
            name = type(self).__name__
            raise ConfigError(f"{name}: the model has no choices; put a LayerChoice or an InputChoice into it")
        return Supernet(space, Fixed(space.default()), self._make_controller(space))

    def _make_controller(self, space: Space) -> nn.Module | None:
        """Return what learns which architectures are good; None if nothing does."""
        return None

    def _core_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return compiled_parts(self._space, options)
