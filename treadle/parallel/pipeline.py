"""Layers as stages on different ranks, which pass micro-batches on to each other (1F1B)."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from treadle.data import Batch, size_of
from treadle.errors import ConfigError, DataError
from treadle.losses import model_inputs, targets_of
from treadle.parallel.held import Place
from treadle.parallel.plan import Degrees, Plan
from treadle.parallel.processes import Processes
from treadle.parallel.spread import SpreadStrategy
from treadle.parallel.stages import Stage, hollow, parts_of, stages_of

Loss = Callable[[Tensor, Any], Tensor]


class PipelineStrategy(SpreadStrategy):
    """Each rank has some of the layers; copies of the whole pipeline share the data.

    Attributes:
        stage: The stage of this rank.
        is_last: Whether it is the one that has the loss.
    """

    in_stages = True

    def __init__(self, processes: Processes, plan: Plan, degrees: Degrees) -> None:
        super().__init__(processes, plan, degrees)
        self.loss_copies = 1
        self.stage = self.mesh.place("pipeline")
        self.is_last = self.stage == degrees.pipeline - 1
        self._group = self.mesh.group("pipeline")
        self._stages: list[int] = []
        self._weights: list[nn.Parameter] = []
        self._tied: list[Any] = []
        self._parts: WeakKeyDictionary[nn.Module, tuple[list[nn.Module], Stage]] = WeakKeyDictionary()
        self._schedules: dict[Any, Schedule1F1B] = {}
        self._loss: Loss | None = None

    @property
    def keeps_losses(self) -> bool:
        """Whether this rank goes on with the sums of losses of a run that other ranks began."""
        return self.data_rank == 0 and self.is_last

    # Spreading ------------------------------------------------------------------------------------------------

    def _apply(self, model: nn.Module) -> None:
        parts = parts_of(model, self.plan)
        self._stages = stages_of(parts, self.plan)
        self._require_all(model, parts)
        named = list(model.named_parameters(remove_duplicate=False))
        holders = self._holders(parts)
        own = [part for part, stage in zip(parts, self._stages, strict=True) if stage == self.stage]
        kept = {id(weight) for part in own for weight in part.parameters()}
        hollow(model, own)
        model.to(self.processes.device)
        for name, weight in named:
            if id(weight) in kept:
                shape, stages = tuple(weight.shape), holders[id(weight)]
                first = self.stage == min(stages) and self.mesh.place("data") == 0
                here = self.degrees.data * len(stages)
                self._spread[name] = Place(shape, (0,) * len(shape), shape, holders=here, first=first)
        self._weights = list(model.parameters())
        self._tied = self._tied_weights(named, holders, dict(model.named_parameters()))

    def _holders(self, parts: Sequence[nn.Module]) -> dict[int, set[int]]:
        """Return the stages that have each weight: tied ones may be in several."""
        found: dict[int, set[int]] = {}
        for part, stage in zip(parts, self._stages, strict=True):
            for weight in part.parameters():
                found.setdefault(id(weight), set()).add(stage)
        return found

    @staticmethod
    def _tied_weights(
        named: list[tuple[str, nn.Parameter]], holders: dict[int, set[int]], here: dict[str, nn.Parameter]
    ) -> list[Any]:
        """Return the weights that several stages have, in an order that all know; None for one that is not here."""
        several: dict[int, list[Any]] = {id(weight): [] for _, weight in named if len(holders[id(weight)]) > 1}
        for name, weight in named:
            if id(weight) in several:
                several[id(weight)].append((name, tuple(weight.shape), weight.dtype))
        return [
            (next((here[name] for name, _, _ in names if name in here), None), *names[0][1:])
            for names in several.values()
        ]

    @staticmethod
    def _require_all(model: nn.Module, parts: Sequence[nn.Module]) -> None:
        inside = {id(weight) for part in parts for weight in part.parameters()}
        outside = [name for name, weight in model.named_parameters() if id(weight) not in inside]
        if outside:
            raise ConfigError(f"Plan: pipeline: {outside} are in none of the modules that data goes through")

    def copy_of(self, model: nn.Module) -> nn.Module:
        """Return a copy of the stage that is here."""
        return deepcopy(model)

    def _own(self, model: nn.Module) -> Stage:
        """Return the stage of `model` that is here; the last one without its last module, which the loss calls."""
        return (self._parts.get(model) or self._cut(model))[1]

    def _cut(self, model: nn.Module) -> tuple[list[nn.Module], Stage]:
        parts = parts_of(model, self.plan)
        own = [part for part, stage in zip(parts, self._stages, strict=True) if stage == self.stage]
        self._parts[model] = parts, Stage(own[:-1] if self.is_last else own)
        return self._parts[model]

    # One window -----------------------------------------------------------------------------------------------

    def run_window(
        self, model: nn.Module, window: Sequence[Batch], loss_func: Any, share: Callable[[int], float]
    ) -> list[tuple[Tensor, int]]:
        """Send the micro-batches of a window through the stages, forward and backward.

        Args:
            model: The model.
            window: The micro-batches.
            loss_func: Called with outputs and targets; None if the last module takes targets and returns the loss.
            share: Returns, for a number of samples, the factor of their loss.

        Returns:
            On the last stage each loss and its number of samples; elsewhere nothing.
        """
        if not window:
            return []
        args, kwargs, targets = _joined(window)
        size = size_of(targets)
        count = self._micro_batches(size, len(window))
        each = size // count
        last = (self._parts.get(model) or self._cut(model))[0][-1]
        own: list[Tensor] = []

        def weighed(output: Tensor, target: Any) -> Tensor:
            loss: Tensor = last(output, target) if loss_func is None else loss_func(last(output), target)
            own.append(loss.detach())
            return loss * share(each)

        self._loss = weighed
        schedule = self._schedule(model, count, (args, kwargs, targets))
        first = (args, kwargs) if self.stage == 0 else ((), {})
        schedule.step(*first[0], **first[1], **({"target": targets, "losses": []} if self.is_last else {}))
        # What torch calls the loss with to find out shapes comes before the micro-batches.
        return [(loss, each) for loss in own[-count:]]

    def _micro_batches(self, size: int, asked: int) -> int:
        """Return into how many equal parts a window is cut: at least as many as asked for, and as stages."""
        stages = self.degrees.pipeline
        if size < stages:
            raise DataError(
                f"a window of {size} samples is too small for pipeline={stages}; set drop_last in "
                "train_dataloader_kwargs, or take larger batches"
            )
        return next(count for count in range(max(asked, stages), size + 1) if size % count == 0)

    def _schedule(self, model: nn.Module, count: int, data: Any) -> Schedule1F1B:
        key = (count, _shapes(data), torch.is_autocast_enabled(self.processes.device.type))
        if key not in self._schedules:
            stages = self.degrees.pipeline
            stage = PipelineStage(self._own(model), self.stage, stages, self.processes.device, group=self._group)
            # Stages without the loss get it too: by it torch knows that there is a backward pass.
            self._schedules[key] = Schedule1F1B(stage, count, loss_fn=self._call_loss, scale_grads=False)
        return self._schedules[key]

    def _call_loss(self, output: Tensor, target: Any) -> Tensor:
        assert self._loss is not None
        return self._loss(output, target)

    @torch.no_grad()
    def finish_gradients(self, rider: Tensor) -> None:
        """Add up the gradients of weights that several stages have, and average over the copies of the pipeline."""
        for weight, shape, dtype in self._tied:
            gradient = None if weight is None else weight.grad
            total = torch.zeros(shape, dtype=dtype, device=self.processes.device) if gradient is None else gradient
            dist.all_reduce(total, group=self._group)
            if weight is not None:
                weight.grad = total
        self._average_flat(self._weights)
        super().finish_gradients(rider)

    # Passes without gradients ---------------------------------------------------------------------------------

    def evaluate(self, model: nn.Module, loss_func: Any, batch: Batch) -> dict[str, Any]:
        """Return loss, outputs and size of a batch, on every stage."""
        args, kwargs = model_inputs(batch)
        if loss_func is not None:
            outputs = self.forward(model, args, kwargs)
            return {
                "loss": loss_func(outputs, targets_of(batch)),
                "model_outputs": outputs,
                "batch_size": size_of(batch),
            }
        targets = targets_of(batch)
        loss = self.forward(model, args, kwargs, targets=targets)
        return {"loss": loss, "model_outputs": {"loss": loss}, "batch_size": size_of(batch)}

    @torch.no_grad()
    def forward(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], targets: Any = None) -> Tensor:
        """Send a batch through the stages; every rank gets the outputs, or with `targets` the loss."""
        value: Any = None
        for stage in range(self.degrees.pipeline):
            if stage == self.stage:
                value = self._run_own(model, value, args, kwargs, targets)
            value = self._passed_on(value, stage)
        result: Tensor = value
        return result

    def _run_own(self, model: nn.Module, value: Any, args: Any, kwargs: Any, targets: Any) -> Any:
        own = self._own(model)
        given = (args, kwargs) if self.stage == 0 else ((value,), {})
        value = own(*given[0], **given[1]) if len(own.parts) else value
        if not self.is_last:
            return value
        last = self._parts[model][0][-1]
        return last(value) if targets is None else last(value, targets)

    def _passed_on(self, value: Any, stage: int) -> Tensor:
        """Give every stage what one of them computed."""
        facts: list[Any] = [(tuple(value.shape), value.dtype) if stage == self.stage else None]
        dist.broadcast_object_list(facts, group=self._group, group_src=stage)
        shape, dtype = facts[0]
        if stage != self.stage:
            value = torch.empty(shape, dtype=dtype, device=self.processes.device)
        value = value.contiguous()
        dist.broadcast(value, group=self._group, group_src=stage)
        result: Tensor = value
        return result

    def full_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return all weights and buffers, of all stages."""
        own = {name: value.cpu() for name, value in model.state_dict().items()} if self.data_rank == 0 else {}
        found = {name: value for part in self.processes.gather_objects(own) for name, value in part.items()}
        return {name: found[name] for name in self.names}


def _joined(window: Sequence[Batch]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return the inputs and targets of all micro-batches as one batch."""
    inputs = [model_inputs(batch) for batch in window]
    args = tuple(_cat(column) for column in zip(*(one[0] for one in inputs), strict=True))
    kwargs = {name: _cat([one[1][name] for one in inputs]) for name in inputs[0][1]}
    return args, kwargs, _cat([targets_of(batch) for batch in window])


def _cat(values: Sequence[Any]) -> Tensor:
    if not all(isinstance(value, Tensor) for value in values):
        kind = type(values[0]).__name__
        raise DataError(f"Plan: pipeline: a batch holds a {kind}; stages take batches of tensors")
    return values[0] if len(values) == 1 else torch.cat(list(values))


def _shapes(data: Any) -> Any:
    if isinstance(data, Tensor):
        return tuple(data.shape), data.dtype
    if isinstance(data, Mapping):
        return tuple((name, _shapes(value)) for name, value in data.items())
    return tuple(map(_shapes, data))
