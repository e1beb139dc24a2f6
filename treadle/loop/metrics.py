"""Metrics that the trainer keeps for the user: updated on the device, reduced over ranks, read once and reset."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle.data import Batch, size_of
from treadle.errors import ConfigError
from treadle.loop.interfaces import RunningTrainer
from treadle.loop.metric_inputs import Measured
from treadle.loop.metric_sums import NAMED, FunctionMetric, NamedMetric, SummedMetric
from treadle.ops.losses import read_targets
from treadle.parallel import Processes
from treadle.runs.interfaces import TrainerLike

KEPT = ("update", "compute", "reset")
SAVED = ("state_dict", "load_state_dict")
PREFIX = "train_"
"""What the names of metrics of training begin with, so that they are told from those of an evaluation."""
TAKEN = ("train_loss", "train_loss_epoch")
PADDING = -100
"""What a collected metric fills up with: torch's target that does not count."""


class CollectedMetric:
    """A metric that needs all outputs and targets of an evaluation at once, on the CPU.

    They are kept until the end, and gathered from all processes. What has other lengths from batch to batch, such as
    the scores of tokens, is filled up with `PADDING`, a target that does not count.

    Args:
        function: Called as `function(outputs, targets)` with all of them; returns a number, or a dict of numbers.

    >>> metric = CollectedMetric(lambda outputs, targets: {"median": (outputs - targets).abs().median()})
    >>> metric.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    >>> metric.update(torch.tensor([3.0]), torch.tensor([5.0]))
    >>> metric.compute()
    {'median': 1.0}
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.function = function
        self._seen: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: Any, targets: Any) -> None:
        """Keep a batch.

        Raises:
            ConfigError: Its outputs or targets are no tensors.
        """
        for value in (outputs, targets):
            if not isinstance(value, Tensor):
                raise ConfigError(
                    f"CollectedMetric keeps tensors, not a {type(value).__name__}; choose one in update_metrics"
                )
        self._seen.append((outputs.detach(), targets.detach()))

    def compute(self, processes: Processes | None = None) -> Any:
        """Return what the function makes of the batches of all processes."""
        own = [(outputs.cpu(), targets.cpu()) for outputs, targets in self._seen]
        ranks = [own] if processes is None else processes.gather_objects(own)
        seen = [batch for rank in ranks for batch in rank]
        if not seen:
            return {}
        found = self.function(*(_joined([batch[place] for batch in seen]) for place in (0, 1)))
        return {name: float(value) for name, value in found.items()} if isinstance(found, Mapping) else float(found)

    def reset(self) -> None:
        """Forget every batch."""
        self._seen = []


def _joined(parts: list[Tensor]) -> Tensor:
    """Return tensors one after the other, each filled up to the longest in every other dimension."""
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    filled = []
    for part in parts:
        missing = [number for size, most in zip(part.shape[1:], shape, strict=True) for number in (most - size, 0)]
        filled.append(F.pad(part, missing[::-1], value=PADDING) if any(missing) else part)
    return torch.cat(filled)


class Metrics:
    """Metrics by name: torchmetrics, functions, and those that are asked for by their names.

    Args:
        given: One of these, a list of them, or a dict of names to them.
        argument: What the argument is called, for messages.
    """

    argument = "metrics"

    def __init__(self, given: Any = None) -> None:
        self._metrics: dict[str, Any] = _by_name(given, self.argument)
        for name, metric in self._metrics.items():
            self._check(name, metric)

    def _check(self, name: str, metric: Any) -> None:
        missing = [one for one in KEPT if not callable(getattr(metric, one, None))]
        if missing and not isinstance(metric, SummedMetric):
            raise ConfigError(
                f"{self.argument}[{name!r}] is a {type(metric).__name__} without {missing}; pass torchmetrics, "
                f"a function of (outputs, targets), or one of the names {list(NAMED)}"
            )

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def names(self) -> list[str]:
        """Return what the metrics are called."""
        return list(self._metrics)

    def to(self, device: torch.device) -> None:
        """Move the metrics' states to `device`."""
        for metric in self._others().values():
            if hasattr(metric, "to"):
                metric.to(device)

    def within(self, group: Any) -> None:
        """Have metrics of torchmetrics take in what the processes of `group` saw, and no others."""
        for metric in self._others().values():
            for part in _parts(metric):
                if hasattr(part, "process_group"):
                    # Ranks of one tensor or pipeline group see the same samples, which would count several times.
                    part.process_group = group

    def take(self, trainer: TrainerLike, batch: Batch, output: Mapping[str, Any]) -> None:
        """Take in what a loss method made of a batch.

        Raises:
            ConfigError: It did not return the outputs, or a metric cannot read them.
        """
        outputs = output.get("model_outputs")
        if outputs is None:
            raise ConfigError(
                f"the loss method returned no 'model_outputs', of which {self.argument}={self.names()} are computed; "
                "return them beside 'loss' and 'batch_size'" + self.otherwise
            )
        size = output.get("batch_size")
        size = size if type(size) is int else size_of(batch)
        self.update(Measured(getattr(outputs, "logits", outputs), read_targets(batch), size, trainer))

    otherwise = ""
    """What else can be done where outputs are missing, for the message."""

    @torch.no_grad()
    def update(self, measured: Measured) -> None:
        """Take in the outputs and targets of one batch."""
        for metric in self._metrics.values():
            if isinstance(metric, SummedMetric):
                metric.update(measured)
                continue
            metric.update(measured.outputs, measured.targets)
            # Checking the values reads the device, so torchmetrics does it for the first batch only.
            for part in _parts(metric):
                if getattr(part, "validate_args", False):
                    part.validate_args = False

    def compute(self, processes: Processes) -> dict[str, Any]:
        """Return every value by name, over all ranks, and start anew; of nothing there is no value."""
        summed = self._summed_over(processes)
        values: dict[str, Any] = {}
        for name, metric in self._metrics.items():
            whole = (processes,) if isinstance(metric, CollectedMetric) else ()
            value = summed[name] if name in summed else metric.compute(*whole)
            values.update(value if isinstance(value, Mapping) else {name: value})
            metric.reset()
        return values

    def _summed_over(self, processes: Processes) -> dict[str, dict[str, float]]:
        """Return the values of those that are sums; a rank that saw no batch learns of the others what they are."""
        own = {name: metric for name, metric in self._metrics.items() if isinstance(metric, SummedMetric)}
        if not own:
            return {}
        shapes = {name: None if one.sums is None else [list(one.sums.shape), one.names] for name, one in own.items()}
        found = processes.gather_objects(shapes)
        values: dict[str, dict[str, float]] = {}
        for name, metric in own.items():
            known = next((one[name] for one in found if one[name] is not None), None)
            if known is None:
                values[name] = {}
                continue
            shape, metric.names = known
            sums = torch.zeros(shape) if metric.sums is None else metric.sums
            total = processes.reduce(sums.flatten().tolist())
            values[name] = metric.finish(torch.tensor(total, dtype=torch.float64).reshape(shape))
        return values

    def reset(self) -> None:
        """Forget what was taken in."""
        for metric in self._metrics.values():
            metric.reset()

    def _others(self) -> dict[str, Any]:
        return {name: one for name, one in self._metrics.items() if not isinstance(one, SummedMetric)}


class TrainingMetrics(Metrics):
    """Metrics over the batches of an epoch of training; what they have summed up is a part of each checkpoint.

    Attributes:
        kept: Whether there are any, and this run can keep them.
    """

    argument = "train_metrics"
    otherwise = ", or leave training out with train_metrics=False"

    def __init__(self, given: Any = None) -> None:
        super().__init__(given)
        for name, metric in self._metrics.items():
            if f"{PREFIX}{name}" in TAKEN:
                raise ConfigError(f"a metric of training cannot be called {name!r}, since {PREFIX}{name} is the loss")
            if isinstance(metric, FunctionMetric):
                metric.waits = False
            if hasattr(metric, "persistent"):
                # Torchmetrics leave their states out of checkpoints otherwise.
                metric.persistent(True)
        self.kept = bool(self._metrics)

    def _check(self, name: str, metric: Any) -> None:
        super()._check(name, metric)
        missing = [one for one in SAVED if not callable(getattr(metric, one, None))]
        if missing:
            raise ConfigError(
                f"train_metrics[{name!r}] is a {type(metric).__name__} without {missing}, so a resumed epoch would "
                "lack what it has seen; give it both"
            )

    def modules(self) -> dict[str, nn.Module]:
        """Return those that count their updates on the host, as torchmetrics do."""
        return {name: one for name, one in self._metrics.items() if isinstance(one, nn.Module)}

    def compute(self, processes: Processes) -> dict[str, Any]:
        """Return every value by the name it has among those of training, over all ranks, and start anew."""
        found = super().compute(processes)
        return {name if name.startswith(PREFIX) else f"{PREFIX}{name}": value for name, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what was summed up."""
        return {name: _state_of(metric) for name, metric in self._metrics.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what was summed up; a metric that is not in it begins anew."""
        for name, metric in self._metrics.items():
            if name in state:
                _load(metric, state[name])
            else:
                metric.reset()


class GivenMetrics:
    """The metrics that a trainer was built with.

    Args:
        metrics: Those of evaluations.
        training: Those of training: None takes those of `metrics` that are sums, True all, False none.

    Attributes:
        evaluation: Those of evaluations.
    """

    def __init__(self, metrics: Any, training: Any) -> None:
        self.evaluation = Metrics(metrics)
        every = self.evaluation._metrics
        self.is_asked_for = training is not None and training is not False
        if training is None:
            chosen: Any = {name: one for name, one in every.items() if isinstance(one, SummedMetric)}
        elif isinstance(training, bool):
            chosen = every if training else {}
            if training and not every:
                raise ConfigError("train_metrics=True has no metrics to keep; pass metrics=, or the metrics themselves")
        else:
            chosen = training
        self._training = TrainingMetrics(chosen)._metrics

    def for_training(self) -> TrainingMetrics:
        """Return fresh metrics for a run."""
        return TrainingMetrics({name: _fresh(metric) for name, metric in self._training.items()})


def update_metrics(trainer: RunningTrainer, batch: Batch, batch_output: dict[str, Any]) -> None:
    """Hand outputs and targets of one batch to the metrics: those of an evaluation within one, else of training."""
    run = trainer.this_run
    metrics = trainer._metrics.evaluation if run.evaluator.is_evaluating else run.metrics
    metrics.take(trainer, batch, batch_output)


def joined_metrics(states: Sequence[dict[str, Any]], copies: int, *, mine: bool) -> tuple[dict[str, Any], list[str]]:
    """Return the sums of all processes, for one of them to use, and the names of metrics that are no sums.

    Args:
        states: What each process that saved the run had summed up.
        copies: How many of these saw the same samples.
        mine: Whether this process is the one to use them.
    """
    share = 1.0 / copies if mine else 0.0
    joined: dict[str, Any] = {}
    for name in states[0]:
        parts = [one[name] for one in states]
        if all("sums" in part for part in parts):
            known = [part for part in parts if part["sums"] is not None]
            sums = [share * part["sums"] for part in known]
            joined[name] = {"sums": sum(sums[1:], sums[0]), "names": known[0]["names"]} if known else parts[0]
    return joined, [name for name in states[0] if name not in joined]


def _by_name(given: Any, argument: str) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping) and not _is_metric(given):
        return {str(name): _made(one, str(name), argument) for name, one in given.items()}
    several = given if isinstance(given, (list, tuple)) else [given]
    named = [(_name_of(one, argument), one) for one in several]
    names = [name for name, _ in named]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{argument} has two metrics called {twice!r}; give them names, in a dict")
    return {name: _made(one, name, argument) for name, one in named}


def _made(one: Any, name: str, argument: str) -> Any:
    """Return what keeps a metric that was given in any of its forms."""
    if isinstance(one, type):
        raise ConfigError(f"{argument}[{name!r}] is the class {one.__name__}; pass an instance of it")
    if isinstance(one, str):
        return NamedMetric(one, name)
    if _is_metric(one) or isinstance(one, SummedMetric) or not callable(one):
        return one
    return FunctionMetric(name, one)


def _fresh(metric: Any) -> Any:
    """Return a metric of no batch; a function stays the one that was given, whatever it belongs to."""
    if isinstance(metric, SummedMetric):
        return metric.fresh()
    made = copy.deepcopy(metric)
    made.reset()
    return made


def _is_metric(one: Any) -> bool:
    return hasattr(one, "update") and hasattr(one, "compute")


def _name_of(one: Any, argument: str) -> str:
    if isinstance(one, str):
        return one
    if _is_metric(one) and not isinstance(one, type):
        return type(one).__name__.lower()
    name = getattr(one, "__name__", None)
    if not callable(one):
        raise ConfigError(
            f"{argument}={one!r}: pass a name such as 'accuracy', a function of (outputs, targets), torchmetrics, a "
            "list of these, or a dict of names to them"
        )
    if name is None or name == "<lambda>":
        raise ConfigError(f"{argument} has a function without a name; pass {argument}={{'name': function}}")
    return str(name)


def _parts(metric: Any) -> Iterator[Any]:
    yield metric
    if hasattr(metric, "modules"):
        yield from metric.modules()


def _state_of(metric: Any) -> dict[str, Any]:
    if isinstance(metric, SummedMetric) or not isinstance(metric, nn.Module):
        state: dict[str, Any] = metric.state_dict()
        return state
    # Torchmetrics count their updates beside their states, and complain of a value without any.
    counts = [int(getattr(part, "_update_count", 0)) for part in metric.modules()]
    return {"states": dict(metric.state_dict()), "counts": counts}


def _load(metric: Any, state: dict[str, Any]) -> None:
    if "counts" not in state:
        metric.load_state_dict(state)
        return
    metric.reset()
    metric.load_state_dict(state["states"])
    for part, count in zip(metric.modules(), state["counts"], strict=True):
        if hasattr(part, "_update_count"):
            setattr(part, "_update_count", count)  # noqa: B010 - mypy takes it for a submodule
