"""The core trainer behind `StepTrainer`: methods that ask the model for its steps."""

import weakref
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from treadle.data import Batch, size_of
from treadle.errors import ConfigError, LossError
from treadle.lightning.module import INDEXED, StepModel
from treadle.trainer import Trainer

OUTPUTS = ("outputs", "logits", "preds", "predictions")
"""Under which names a step may return outputs beside its loss."""


def _takes_index(method: Any) -> bool:
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    given = signature(method).parameters.values()
    return sum(one.kind in kinds for one in given) > 1 or any(one.kind is Parameter.VAR_POSITIONAL for one in given)


# What steps report, as means over the samples of an epoch


class EpochMeans:
    """Sums of what was reported since an epoch began, by name; they stay on the device.

    Attributes:
        batches: How many batches there were.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._metrics: dict[str, Any] = {}

    def add(self, name: str, value: Any, weight: float) -> None:
        """Add a number that is the mean of so many samples, or a torchmetric that counts by itself."""
        if hasattr(value, "compute") and hasattr(value, "reset"):
            self._metrics[name] = value
            return
        number = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
        before = self._sums.get(name)
        own = number.double() if number.device.type == "cpu" else number.float()
        self._sums[name] = own * weight if before is None else before.to(own.device) + own * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def take(self, processes: Any) -> dict[str, float]:
        """Return the means over all processes, and begin anew."""
        names = sorted(self._sums)
        totals = [float(self._sums[name]) for name in names] + [self._weights[name] for name in names]
        summed = processes.reduce(totals) if totals else []
        means = {name: summed[place] / summed[place + len(names)] for place, name in enumerate(names)}
        for name, metric in self._metrics.items():
            means[name] = float(metric.compute())
            metric.reset()
        self.reset()
        return means

    def reset(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return {"batches": self.batches, "sums": dict(self._sums), "weights": dict(self._weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take sums back."""
        self.batches = int(state["batches"])
        self._sums, self._weights = dict(state["sums"]), dict(state["weights"])


class StepCore(Trainer):
    """Trains a `StepModel` by its own steps.

    Attributes:
        evaluates_by: The method of the model that evaluates a batch.
    """

    def __init__(self, model: StepModel, optimizer: Any, **options: Any) -> None:
        self._step_model = model
        self._train_means, self._eval_means = EpochMeans(), EpochMeans()
        self._evaluating = False
        self._samples = 0
        self._logged_loss: Tensor | None = None
        self.evaluates_by = "validation_step"
        self.evaluated: dict[str, float] = {}
        self._indexed = {name: _takes_index(getattr(model, name)) for name in INDEXED}
        super().__init__(model, None, optimizer, **options)
        self.track(step_means=self._train_means)
        vars(model)["_core"] = weakref.ref(self)

    # What the model logs -------------------------------------------------------------------------------------

    def log(self, name: str, value: Any, on_step: bool | None, on_epoch: bool | None, batch_size: int | None) -> None:
        """Put a number of a step where it belongs: into the storage now, or into the mean of the epoch."""
        by_step = not self._evaluating if on_step is None else on_step
        by_epoch = self._evaluating if on_epoch is None else on_epoch
        is_metric = hasattr(value, "compute")
        if by_step and not is_metric and not self._evaluating:
            number = value.detach() if isinstance(value, Tensor) else value
            self.storage.put_scalar(f"{name}_step" if by_epoch else name, number)
        if by_epoch or is_metric or self._evaluating:
            means = self._eval_means if self._evaluating else self._train_means
            both = by_step and by_epoch and not self._evaluating
            means.add(f"{name}_epoch" if both else name, value, batch_size or self._samples)
        if self._evaluating and self._logged_loss is None and "loss" in name and isinstance(value, Tensor):
            self._logged_loss = value.detach()

    # Methods ---------------------------------------------------------------------------------------------------

    def training_run_start(self) -> None:
        """Tell the model that its training begins."""
        self._step_model.on_train_start()

    def train_epoch_start(self) -> None:
        """Put the model into training mode, and tell it of the epoch."""
        super().train_epoch_start()
        if not self.progress.mid_epoch:
            self._train_means.reset()
        self._step_model.on_train_epoch_start()

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return what `training_step` makes of a batch."""
        self._samples = size_of(batch)
        found = self._call("training_step", batch, self._train_means.batches)
        self._train_means.batches += 1
        return self._output(found, batch, "training_step")

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return what `validation_step`, or `test_step`, makes of a batch."""
        self._samples, self._logged_loss = size_of(batch), None
        found = self._call(self.evaluates_by, batch, self._eval_means.batches)
        self._eval_means.batches += 1
        if found is None:
            found = torch.zeros((), device=self.device) if self._logged_loss is None else self._logged_loss
        return self._output(found, batch, self.evaluates_by)

    @property
    def schedules(self) -> list[Any]:
        """The schedules of the optimizers."""
        return [] if self.scheduler is None else [self.scheduler]

    def _call(self, step: str, batch: Batch, index: int) -> Any:
        """Call a step of the model, with the number of the batch if it takes that."""
        method = getattr(self._step_model, step)
        return method(batch, index) if self._indexed[step] else method(batch)

    def _output(self, found: Any, batch: Batch, name: str) -> dict[str, Any]:
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if not isinstance(loss, Tensor):
            kind = f"a {type(found).__name__}" if found is not None else "nothing"
            raise LossError(
                f"{type(self._step_model).__name__}.{name} returned {kind}; return the loss, a tensor, or a dict with "
                "'loss' in it"
            )
        output = {"loss": loss, "model_outputs": found, "batch_size": size_of(batch)}
        items = found.get("num_items_in_batch") if isinstance(found, Mapping) else None
        return output if items is None else {**output, "num_items_in_batch": items}

    def update_metrics(self, batch: Batch, batch_output: dict[str, Any]) -> None:
        """Hand the outputs that a step returned beside its loss to the metrics."""
        found = batch_output["model_outputs"]
        named = found if isinstance(found, Mapping) else {}
        outputs = next((named[name] for name in OUTPUTS if named.get(name) is not None), None)
        if outputs is None:
            raise ConfigError(
                f"metrics= and train_metrics= are computed of outputs, and {type(self._step_model).__name__} returns "
                "none: return {'loss': loss, 'outputs': outputs} from its steps, or log metrics there with self.log"
            )
        super().update_metrics(batch, {**batch_output, "model_outputs": outputs})

    def train_epoch_end(self) -> None:
        """Tell the model that the epoch is over, and record the means of what it logged."""
        self._step_model.on_train_epoch_end()
        for name, value in self._train_means.take(self.processes).items():
            self.run_history.update_metric(name, value)

    def eval_epoch_start(self) -> None:
        """Put the model into evaluation mode, and tell it of the evaluation."""
        super().eval_epoch_start()
        self._evaluating = True
        self._eval_means.reset()
        self._step_model.on_validation_epoch_start()

    def eval_epoch_end(self) -> None:
        """Tell the model that the evaluation is over, and record the means of what it logged."""
        self._step_model.on_validation_epoch_end()
        self._evaluating = False
        self.evaluated = self._eval_means.take(self.processes)
        for name, value in self.evaluated.items():
            self.run_history.update_metric(name, value)

    def training_run_end(self) -> None:
        """Tell the model that its training is over."""
        self._step_model.on_train_end()
