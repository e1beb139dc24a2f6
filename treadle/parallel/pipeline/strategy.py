"""Layers as stages on different ranks, which pass micro-batches on to each other (1F1B)."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from treadle.data import Batch, size_of
from treadle.errors import ConfigError, DataError, LossError
from treadle.memory.activation_checkpointing import buffers_set_aside
from treadle.ops.loss_items import Criterion
from treadle.ops.losses import check_loss, model_inputs, read_targets
from treadle.parallel.fsdp import WeightShards, check_places, give_up_gathered, take_weights, tensors_of
from treadle.parallel.local_shards import local_tensor
from treadle.parallel.pipeline.loss import Entry, NamedLoss, StageLoss, as_one, in_parts
from treadle.parallel.pipeline.split import Cut, Stage, joined, named_arguments, prefixed
from treadle.parallel.pipeline.stages import assign_stages, following, hollow, is_named, require_apart, stage_modules
from treadle.parallel.plan import Degrees, Plan
from treadle.parallel.processes import Processes
from treadle.parallel.sharded import ShardedStrategy, gather_whole, meta_copy
from treadle.precision.formats import Precision


class PipelineStrategy(ShardedStrategy):
    """Each rank has some of the layers; copies of the whole pipeline share the data.

    Attributes:
        stage: The stage of this rank.
        is_last: Whether it is the one that has the loss.
    """

    is_pipeline = True

    def __init__(self, processes: Processes, plan: Plan, degrees: Degrees) -> None:
        super().__init__(processes, plan, degrees)
        self.shards = WeightShards(processes, plan, degrees, self.mesh)
        # Ranks that share layers all have the loss of the last stage.
        self.loss_copies = degrees.tensor
        self.stage = self.mesh.place("pipeline")
        self.is_last = self.stage == degrees.pipeline - 1
        self._group = self.mesh.group("pipeline")
        self._stages: list[int] = []
        self._weights: list[nn.Parameter] = []
        self._tied: list[Any] = []
        self._pattern: nn.Module | None = None
        self._layers_cut: dict[str, int | None] = {}
        self._cuts: WeakKeyDictionary[nn.Module, Cut] = WeakKeyDictionary()
        self._schedules: dict[Any, Schedule1F1B] = {}
        self._loss: Callable[[Tensor, Tensor], Tensor] | None = None
        self._reported: list[str] | None = None

    @property
    def keeps_losses(self) -> bool:
        """Whether this rank goes on with the sums of losses of a run that other ranks began."""
        return self.data_rank == 0 and self.is_last

    # Spreading ------------------------------------------------------------------------------------------------

    def _apply(self, model: nn.Module) -> None:
        parts = stage_modules(model, self.plan)
        self._stages = assign_stages(parts, self.plan)
        self._require_all(model, parts)
        # While it is whole: a weight that two layers share may go to two stages.
        self.shards.check_layers(model)
        named = list(model.named_parameters(remove_duplicate=False))
        shapes = {name: tuple(weight.shape) for name, weight in named}
        holders = self._holders(parts)
        stages = {name: sorted(holders[id(weight)]) for name, weight in named}
        own = self._own(parts)
        kept = {id(weight) for part in own for weight in part.parameters()}
        here = [name for name, weight in named if id(weight) in kept]
        # Before it goes to the device, which then never holds more than this stage.
        hollow(model, own)
        if self.shards.cuts:
            self._pattern = meta_copy(model)
        model.to(self.processes.device)
        found = self._layers_cut = self._cut_weights(model, self._make_cut(model, parts))
        for name in here:
            self._spread[name] = self.shards.place(shapes[name], found.get(name), stages[name])
        self._weights = list(model.parameters())
        self.shards.note_summed(model)
        check_places(model, self._spread)
        self._tied = self._tied_weights(named, holders, dict(model.named_parameters()))

    def _own(self, parts: Sequence[nn.Module]) -> list[nn.Module]:
        return [part for part, stage in zip(parts, self._stages, strict=True) if stage == self.stage]

    def _make_cut(self, model: nn.Module, parts: Sequence[nn.Module]) -> Cut:
        """Note which modules of `model` this stage is; the last one is without the end, which the loss calls."""
        own = self._own(parts)
        stage = Stage(joined(own[:-1] if self.is_last else own), first=self.stage == 0)
        self._cuts[model] = Cut(model, parts, stage)
        return self._cuts[model]

    def _cut_weights(self, model: nn.Module, cut: Cut) -> dict[str, int | None]:
        """Divide the layers that are here, and shard their weights; return along which dimension each was divided."""
        found = self.shards.cut_layers(model)
        if self.shards.by_rank:
            roots = [cut.own, cut.last] if self.is_last else [cut.own]
            roots = [root for root in roots if any(True for _ in root.parameters())]
            require_apart(roots)
            with following(model, roots):
                self.shards.shard(model, roots)
        return found

    def _holders(self, parts: Sequence[nn.Module]) -> dict[int, set[int]]:
        """Return the stages that have each weight: tied ones may be in several."""
        found: dict[int, set[int]] = {}
        for part, stage in zip(parts, self._stages, strict=True):
            for weight in part.parameters():
                found.setdefault(id(weight), set()).add(stage)
        return found

    def _tied_weights(
        self, named: list[tuple[str, nn.Parameter]], holders: dict[int, set[int]], here: dict[str, nn.Parameter]
    ) -> list[Any]:
        """Return the weights that several stages have, in an order that all know; None for one that is not here.

        With each come the shape and type of the piece that ranks of this place have, in any stage.
        """
        several: dict[int, list[str]] = {id(weight): [] for _, weight in named if len(holders[id(weight)]) > 1}
        dtypes: dict[str, torch.dtype] = {}
        for name, weight in named:
            if id(weight) in several:
                several[id(weight)].append(name)
                dtypes[name] = weight.dtype
        own = [next((name for name in names if name in here), None) for names in several.values()]
        extents = [None if name is None else self._spread[name].extent for name in own]
        every: list[Any] = [None] * self.degrees.pipeline
        dist.all_gather_object(every, extents, group=self._group)
        found = []
        for place, names in enumerate(several.values()):
            shapes = {extents[place] for extents in every if extents[place] is not None}
            # A weight that two layers share is in no tensor plan, and sharded by rank alike in every stage.
            assert len(shapes) == 1, f"{' and '.join(names)} are cut in different ways"
            held = own[place]
            found.append((None if held is None else here[held], shapes.pop(), dtypes[names[0]]))
        return found

    @staticmethod
    def _require_all(model: nn.Module, parts: Sequence[nn.Module]) -> None:
        inside = {id(weight) for part in parts for weight in part.parameters()}
        outside = [name for name, weight in model.named_parameters() if id(weight) not in inside]
        if outside:
            raise ConfigError(f"Plan: pipeline: {outside} are in none of the modules that data goes through")

    @torch.no_grad()
    def copy_of(self, model: nn.Module) -> nn.Module:
        """Return a copy of the stage that is here, with weights cut in the same way."""
        if self._pattern is None:
            return deepcopy(model)
        # Whole for a moment, as the stage was: torch cuts weights, and does not make pieces of none.
        copied = meta_copy(self._pattern, self.processes.device)
        self._cut_weights(copied, self._make_cut(copied, stage_modules(copied, self.plan)))
        if not self.shards.by_rank:
            take_weights(copied, model)
            return copied
        for target, source in zip(tensors_of(copied), tensors_of(model), strict=True):
            local_tensor(target).copy_(local_tensor(source))
        return copied

    def _cut(self, model: nn.Module) -> Cut:
        """Return `model` in modules."""
        cut = self._cuts[model] if model in self._cuts else self._make_cut(model, stage_modules(model, self.plan))
        cut.follow(model)
        return cut

    def groups_of(self, name: str) -> list[Any]:
        """Return the groups of ranks over which the weight called `name` is cut."""
        return self.shards.groups(self._layers_cut.get(name))

    # One window -----------------------------------------------------------------------------------------------

    def run_window(
        self,
        model: nn.Module,
        window: Sequence[Batch],
        loss: StageLoss,
        share: Callable[[Any], Any],
        scale: Callable[[Tensor], Tensor] | None = None,
    ) -> list[tuple[dict[str, Any], int]]:
        """Send the micro-batches of a window through the stages, forward and backward.

        Args:
            model: The model.
            window: The micro-batches.
            loss: How they go in, and what comes of them at the end.
            share: Returns, for what a loss is a mean over, the factor of that loss.
            scale: Multiplies what the backward pass begins with, for formats of a small range.

        Returns:
            On the last stage each loss, with what else `loss` says of it, and its number of samples; elsewhere nothing.
        """
        if not window:
            return []
        entry = as_one([loss.enter(batch) for batch in window])
        size = size_of(entry.ending or entry.kwargs or entry.args)
        count = self._micro_batches(size, len(window))
        each = size // count
        cut = self._cut(model)
        endings = in_parts(entry.ending, count) if self.is_last else []
        own: list[dict[str, Any]] = []

        def weighed(hidden: Tensor, place: Tensor) -> Tensor:
            if cut.own.is_of_shapes(hidden):
                with buffers_set_aside(cut.last):
                    of_shapes: Tensor = loss.finish(cut.last, hidden, endings[0])["loss"]
                return of_shapes
            if isinstance(cut.last, FSDPModule):
                # Torch's schedule does this for the stage, but does not know of the module that the loss calls.
                cut.last.set_requires_gradient_sync(int(place) == count - 1)
            found = loss.looked_at(cut.last, hidden, endings[int(place)])
            check_loss(found, verb="the last stage")
            # Detached: these outlive the backward passes of the window, and so would their graphs.
            own.append({**found, "loss": found["loss"].detach()})
            part: Tensor = found["loss"] * share(found.get("num_items_in_batch", each))
            return part if scale is None else scale(part)

        self._loss = weighed
        schedule = self._schedule(model, count, entry)
        args = entry.args if self.stage == 0 else ()
        # On the host: which micro-batch it is may be asked without waiting for the device.
        ending: dict[str, Any] = {"target": torch.arange(count, device="cpu"), "losses": []} if self.is_last else {}
        schedule.step(*args, **prefixed(cut.own_arguments(entry.kwargs)), **ending)
        cut.own.end_of_shapes()
        return [(found, each) for found in own]

    def _micro_batches(self, size: int, asked: int) -> int:
        """Return into how many equal parts a window is cut: at least as many as asked for, and as stages."""
        stages = self.degrees.pipeline
        if size < stages:
            raise DataError(
                f"a window of {size} samples is too small for pipeline={stages}; have its loader leave out a short "
                "last batch (drop_last), or take larger batches"
            )
        return next(count for count in range(max(asked, stages), size + 1) if size % count == 0)

    def _schedule(self, model: nn.Module, count: int, entry: Entry) -> Schedule1F1B:
        # Torch's schedule fixes the shapes and types that stages send at its first use; autocast changes the types.
        kind = self.processes.device.type
        key = (count, _shapes(entry), torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind))
        if key not in self._schedules:
            cut, stages = self._cut(model), self.degrees.pipeline
            cut.require_taken(entry)
            cut.own.expect_shapes()
            stage = PipelineStage(cut.own, self.stage, stages, self.processes.device, group=self._group)
            # Stages without the loss get it too: by it torch knows that there is a backward pass.
            # `scale_grads` would divide by the number of micro-batches, but each loss has its share here already.
            self._schedules[key] = Schedule1F1B(stage, count, loss_fn=self._call_loss, scale_grads=False)
        return self._schedules[key]

    def _call_loss(self, hidden: Tensor, place: Tensor) -> Tensor:
        assert self._loss is not None
        # By way of an attribute: a schedule is kept from window to window, and the loss of each is another function.
        return self._loss(hidden, place)

    @torch.no_grad()
    def finish_gradients(self, weight_param: Tensor) -> None:
        """Add up the gradients of weights that several stages have, and average over the copies of the pipeline."""
        self.shards.align_gradients(self._weights)
        for weight, shape, dtype in self._tied:
            if weight is not None and weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            total = (
                torch.zeros(shape, dtype=dtype, device=self.processes.device)
                if weight is None
                else local_tensor(weight.grad)
            )
            # Every stage takes part, if only with zeros: a collective that one of the group left out would hang.
            dist.all_reduce(total, group=self._group)
        if not self.shards.by_rank:
            self._average_flat(self._weights)
        self.shards.sum_partial_gradients()
        super().finish_gradients(weight_param)

    def share_scale(self, precision: Precision) -> None:
        """Have processes agree on overflows, and the last stages, which have losses, on the first scale."""
        super().share_scale(precision)
        precision.agree_on_scale = self._agree_on_scale

    def _agree_on_scale(self, size: Tensor) -> None:
        """Make the size of the first loss the largest of all shares of the data."""
        dist.all_reduce(size, dist.ReduceOp.MAX, group=self.data_group)

    def take_from_last(self, tensor: Tensor) -> None:
        """Give every stage the numbers of a tensor that the last one has."""
        dist.broadcast(tensor, group=self._group, group_src=self.degrees.pipeline - 1)

    def from_last(self, numbers: Mapping[str, Any]) -> dict[str, Tensor]:
        """Give every stage the numbers that the last one has, without waiting for the device.

        Args:
            numbers: On the last stage numbers by name, the same names each time; elsewhere nothing.

        Raises:
            LossError: The last stage has others than the first time.
        """
        if self._reported is None:
            names: list[Any] = [sorted(numbers)]
            dist.broadcast_object_list(names, group=self._group, group_src=self.degrees.pipeline - 1)
            self._reported = names[0]
        if self.is_last and sorted(numbers) != self._reported:
            raise LossError(
                f"the last stage reported {self._reported} first and {sorted(numbers)} now; under a pipeline every "
                "step must report the same numbers"
            )
        row = torch.zeros(len(self._reported), device=self.processes.device)
        for place, name in enumerate(self._reported if self.is_last else ()):
            row[place] = numbers[name]
        self.take_from_last(row)
        return dict(zip(self._reported, row.unbind(), strict=True))

    # Passes without gradients ---------------------------------------------------------------------------------

    def route(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Entry:
        """Return what the arguments of a call of `model` are to its modules: each goes to those that name it."""
        return self._cut(model).route(named_arguments(model, args, kwargs))

    def call(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what `model(*args, **kwargs)` would, on every rank, if it were whole: what its last module returns."""
        entry = self.route(model, args, kwargs)
        self._cut(model).require_taken(entry)
        return self._send(model, entry, lambda last, hidden: last(hidden, **entry.ending))

    def stage_loss(self, model: nn.Module, loss_func: Any, criterion: Criterion | None) -> StageLoss:
        """Return how batches go into stages, and what comes of them at their end.

        Args:
            model: The model.
            loss_func: Called with outputs and targets; None if the model has the loss.
            criterion: What `loss_func` does with its targets, if it is a cross-entropy.
        """
        if is_named(model, self.plan):
            return NamedLoss(model, loss_func, criterion, lambda batch: self.route(model, (), batch))
        return StageLoss(loss_func, criterion)

    def evaluate(self, model: nn.Module, loss_func: Any, batch: Batch) -> dict[str, Any]:
        """Return loss, outputs and size of a batch, on every stage."""
        if loss_func is not None and not is_named(model, self.plan):
            outputs = self.forward(model, *model_inputs(batch))
            return {
                "loss": loss_func(outputs, read_targets(batch)),
                "model_outputs": outputs,
                "batch_size": size_of(batch),
            }
        loss = self.stage_loss(model, loss_func, None)
        entry = loss.enter(batch)
        found = self._send(model, entry, lambda last, hidden: loss.finish(last, hidden, entry.ending))
        made = SimpleNamespace(**found) if "logits" in found else found
        return {"loss": found["loss"], "model_outputs": made, "batch_size": size_of(batch)}

    def forward(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """Send a batch through the stages; every rank gets the outputs."""
        if is_named(model, self.plan):
            named: Tensor = self.call(model, args, kwargs)["logits"]
            return named
        outputs: Tensor = self._send(model, Entry(tuple(args), dict(kwargs), {}), lambda last, hidden: last(hidden))
        return outputs

    @torch.no_grad()
    def _send(self, model: nn.Module, entry: Entry, finish: Callable[[nn.Module, Tensor], Any]) -> Any:
        """Send a batch through the stages one after the other; every rank gets what comes of it."""
        cut, value = self._cut(model), None
        for stage in range(self.degrees.pipeline):
            if stage == self.stage:
                args = entry.args if stage == 0 else (value,)
                value = cut.own(*args, **prefixed(cut.own_arguments(entry.kwargs)))
                value = finish(cut.last, value) if self.is_last else value
            value = self._passed_on(value, stage)
        return value

    def _passed_on(self, value: Any, stage: int) -> Any:
        """Give every stage what one of them computed: a tensor, or a dict of them and of plain values."""
        here = stage == self.stage
        facts: list[Any] = [_tensor_facts(value) if here else None]
        dist.broadcast_object_list(facts, group=self._group, group_src=stage)
        if isinstance(facts[0], Missing):
            return self._shared(value if here else None, facts[0], stage)
        return {
            name: self._shared(value[name] if here else None, fact, stage) if isinstance(fact, Missing) else fact
            for name, fact in facts[0].items()
        }

    def _shared(self, value: Any, fact: "Missing", stage: int) -> Tensor:
        """Give every stage a tensor that one of them has."""
        tensor: Tensor = torch.empty(fact.shape, dtype=fact.dtype, device=self.processes.device)
        tensor = tensor if value is None else value.contiguous()
        dist.broadcast(tensor, group=self._group, group_src=stage)
        return tensor

    def after_eval(self, model: nn.Module) -> None:
        """Give up weights that were gathered for a pass without a backward pass."""
        if self.shards.by_rank:
            cut = self._cut(model)
            give_up_gathered(cut.own)
            give_up_gathered(cut.last)

    def full_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return all weights and buffers, of all stages."""
        # All ranks that hold pieces put them together; one of those that then have the same tells the others.
        whole = {name: gather_whole(value) for name, value in model.state_dict().items()}
        tells = self.data_rank == 0 and self.mesh.place("tensor") == 0
        own = {name: value.cpu() for name, value in whole.items()} if tells else {}
        found = {name: value for part in self.processes.gather_objects(own) for name, value in part.items()}
        return {name: found[name] for name in self.names}


class Missing(NamedTuple):
    """A tensor that another rank has."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _tensor_facts(value: Any) -> Any:
    """Return what other ranks must know of what a stage computed, to receive it."""
    if isinstance(value, Tensor):
        return Missing(tuple(value.shape), value.dtype)
    if isinstance(value, Mapping):
        return {
            name: Missing(tuple(item.shape), item.dtype) if isinstance(item, Tensor) else item
            for name, item in value.items()
        }
    raise DataError(
        f"Plan: pipeline: a stage returned a {type(value).__name__}; modules return a tensor, the last one may return "
        "a dict of them"
    )


def _shapes(data: Any) -> Any:
    if isinstance(data, Tensor):
        return tuple(data.shape), data.dtype
    if isinstance(data, Mapping):
        return tuple((name, _shapes(value)) for name, value in data.items())
    return tuple(map(_shapes, data))
