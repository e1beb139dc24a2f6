"""FSDP and tensor parallelism, alone and together: strategies whose weights become torch's distributed tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from treadle.errors import ConfigError
from treadle.memory.activation_checkpointing import matching_blocks, repeated_blocks
from treadle.parallel.local_shards import Place, cut, local_tensor, tensor_cut
from treadle.parallel.plan import Degrees, Plan
from treadle.parallel.pretrained import tensor_plan_of
from treadle.parallel.processes import Processes
from treadle.parallel.sharded import Mesh, ShardedStrategy, meta_copy

STYLES: dict[str, Callable[[], Any]] = {
    "column": ColwiseParallel,
    "row": RowwiseParallel,
    "column_gathered": partial(ColwiseParallel, output_layouts=Replicate()),
}


class WeightShards:
    """Cuts the weights of modules by layer (`tensor`), and what remains of them by rank (`shard`), in that order.

    Args:
        processes: The processes.
        plan: The plan.
        degrees: Its numbers.
        mesh: The grid of ranks.

    Attributes:
        by_rank: Whether weights are sharded by rank.
        by_layer: Whether layers are divided.
        summed: The weights that are whole on ranks each of which has a part of their gradient.
    """

    def __init__(self, processes: Processes, plan: Plan, degrees: Degrees, mesh: Mesh) -> None:
        self._processes, self._plan, self._degrees, self._mesh = processes, plan, degrees, mesh
        self.by_rank = degrees.shard > 1 or plan.shard == "all"
        self.by_layer = degrees.tensor > 1
        self.summed: list[nn.Parameter] = []
        self._summed_names: list[str] = []

    @property
    def cuts(self) -> bool:
        """Whether weights are cut at all."""
        return self.by_rank or self.by_layer

    # By layer -------------------------------------------------------------------------------------------------

    def cut_layers(self, model: nn.Module) -> dict[str, int | None]:
        """Divide the layers of the tensor plan; return along which dimension each weight was cut."""
        if not self.by_layer:
            return {}
        plan = self._tensor_plan(model)
        # Noted by name: what shards weights by rank gives modules other classes, and weights other objects.
        self._summed_names = [name for name, style in plan.items() if style == "summed"]
        styles = {
            name: _style_of(model.get_submodule(name), style) for name, style in plan.items() if style != "summed"
        }
        parallelize_module(model, self._mesh["tensor"], styles)
        return {name: tensor_cut(weight) for name, weight in model.named_parameters(remove_duplicate=False)}

    def note_summed(self, model: nn.Module) -> None:
        """Find the weights whose gradients are summed over the ranks that share layers, once all is cut."""
        self.summed = [weight for name in self._summed_names for weight in model.get_submodule(name).parameters()]

    def align_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """Cut gradients of divided layers as their weights are, where torch has left them otherwise."""
        for weight in weights if self.by_layer and not self.by_rank else ():
            gradient: Any = weight.grad
            wanted = getattr(weight, "placements", None)
            # That of an embedding by rows is whole, and a part of the sum, on each rank.
            if isinstance(gradient, DTensor) and wanted is not None and gradient.placements != wanted:
                weight.grad = gradient.redistribute(placements=wanted)

    def sum_partial_gradients(self) -> None:
        """Add up the gradients of which each rank that shares layers has a part."""
        for weight in self.summed:
            # Every rank takes part, if only with zeros: a collective that one of the group left out would hang.
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            dist.all_reduce(local_tensor(weight.grad), group=self._mesh.group("tensor"))

    def _tensor_plan(self, model: nn.Module) -> dict[str, str]:
        """Return the style of each layer of the plan that has weights here, by its name."""
        plan = tensor_plan_of(model, self._plan)
        used = [weight for module in model.modules() for weight in module._parameters.values() if weight is not None]
        found: dict[str, str] = {}
        for pattern, style in plan.items():
            for name, layer in matching_blocks(model, [pattern], setting="Plan: tensor_plan"):
                # What went to another stage has no weights.
                if any(True for _ in layer.parameters()):
                    self._check_layer(name, layer, style, used)
                    found[name] = style
        return found

    def _check_layer(self, name: str, layer: nn.Module, style: str, used: list[nn.Parameter]) -> None:
        if style == "summed":
            return
        if not isinstance(layer, (nn.Linear, nn.Embedding)):
            kind = type(layer).__name__
            raise ConfigError(f"Plan: tensor_plan: {name} is a {kind}; only nn.Linear and nn.Embedding can be sharded")
        if sum(weight is layer.weight for weight in used) > 1:
            raise ConfigError(
                f"Plan: tensor_plan: the weight of {name} is that of another layer, too, and would be cut for one of "
                "them; leave it out of the tensor plan"
            )
        if isinstance(layer, nn.Embedding):
            size = layer.num_embeddings if style == "row" else layer.embedding_dim
        else:
            size = layer.in_features if style == "row" else layer.out_features
        if size % self._degrees.tensor:
            kind = "inputs" if style == "row" else "outputs"
            raise ConfigError(
                f"Plan: tensor={self._degrees.tensor} does not divide the {size} {kind} of {name}; choose a number "
                "that does"
            )

    def check_layers(self, model: nn.Module) -> None:
        """Refuse a tensor plan that does not fit a model, while that is whole."""
        if self.by_layer:
            self._tensor_plan(model)

    # By rank --------------------------------------------------------------------------------------------------

    def shard(self, model: nn.Module, roots: Sequence[nn.Module]) -> None:
        """Shard the weights of `roots` by rank, those of the blocks of `model` that they contain block by block."""
        axes = tuple(axis for axis in ("data", "shard") if axis in self._mesh.axes)
        settings: dict[str, Any] = {
            "mesh": self._mesh[axes if len(axes) > 1 else axes[0]],
            "mp_policy": self._formats(),
            "offload_policy": CPUOffloadPolicy() if self._plan.cpu_offload else OffloadPolicy(),
        }
        for block in self._blocks(model):
            if all(block is not root for root in roots):
                fully_shard(block, reshard_after_forward=self._plan.reshard_after_forward, **settings)
        for root in roots:
            # After its blocks: it takes only the weights that no block has. Torch keeps those gathered after the
            # forward pass, since the backward pass needs them at once.
            fully_shard(root, **settings)

    def _formats(self) -> MixedPrecisionPolicy:
        # Inputs are left alone: autocast knows better which of them to round. Sums of gradients are not rounded.
        if self._plan.gathered is None:
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)

    def _blocks(self, model: nn.Module) -> list[nn.Module]:
        if self._plan.blocks is not None:
            found = [block for _, block in matching_blocks(model, list(self._plan.blocks), setting="Plan: blocks")]
        else:
            found = [block for _, block in repeated_blocks(model)]
        return [block for block in found if any(True for _ in block.parameters())]

    def groups(self, dimension: int | None) -> list[Any]:
        """Return the groups of ranks over which a weight is cut, whose layer was cut along a dimension."""
        axes = [*(["shard"] if self.by_rank else []), *(["tensor"] if dimension is not None else [])]
        return [self._mesh.group(axis) for axis in axes]

    # Places ---------------------------------------------------------------------------------------------------

    def place(self, shape: tuple[int, ...], dimension: int | None, stages: Sequence[int] = (0,)) -> Place:
        """Return where the piece of this rank lies in a weight.

        Args:
            shape: The shape of the weight.
            dimension: Along which dimension its layer was cut; None if it was not.
            stages: The stages that have it.
        """
        degrees, mesh = self._degrees, self._mesh
        cuts = [] if dimension is None else [(dimension, degrees.tensor, mesh.place("tensor"))]
        if self.by_rank and shape:
            cuts.append((0, degrees.shard, mesh.place("shard")))
        offset, extent = cut(shape, cuts)
        pieces = (degrees.tensor if dimension is not None else 1) * (degrees.shard if self.by_rank else 1)
        holders = self._processes.size // degrees.pipeline * len(stages) // pieces
        first = mesh.place("data") == 0 and (dimension is not None or mesh.place("tensor") == 0)
        first = first and mesh.place("pipeline") == min(stages)
        return Place(shape, offset, extent, holders=holders, first=first)


def _style_of(layer: nn.Module, style: str) -> Any:
    # An embedding whose rows are sharded looks up all tokens on each rank.
    lookup = style == "row" and isinstance(layer, nn.Embedding)
    return RowwiseParallel(input_layouts=Replicate()) if lookup else STYLES[style]()


def check_places(model: nn.Module, places: Mapping[str, Place]) -> None:
    """Check that torch has cut the weights of `model` as our arithmetic says."""
    for name, weight in model.named_parameters(remove_duplicate=False):
        # Checkpoints go by our arithmetic and weights by torch's: a difference would mix up pieces unseen.
        assert tuple(local_tensor(weight).shape) == places[name].extent, f"{name} was cut otherwise"


class DTensorStrategy(ShardedStrategy):
    """Weights cut by layer (`tensor`), and what remains by rank (`shard`), in that order.

    Args:
        processes: The processes.
        plan: The plan.
        degrees: Its numbers.
    """

    def __init__(self, processes: Processes, plan: Plan, degrees: Degrees) -> None:
        super().__init__(processes, plan, degrees)
        self.shards = WeightShards(processes, plan, degrees, self.mesh)
        self._pattern: nn.Module | None = None
        self._root: Any = None
        self._weights: list[nn.Parameter] = []
        self._layers_cut: dict[str, int | None] = {}

    # Spreading ------------------------------------------------------------------------------------------------

    def _apply(self, model: nn.Module) -> None:
        # Before it is cut: a copy, of averaged weights say, begins whole and is cut as the model was.
        self._pattern = meta_copy(model)
        shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters(remove_duplicate=False)}
        # Layers first, and then what is left of them on this rank: torch combines the two in this order only.
        cuts = self._layers_cut = self.shards.cut_layers(model)
        self._spread = {name: self.shards.place(shape, cuts.get(name)) for name, shape in shapes.items()}
        if self.shards.by_rank:
            self._shard(model)
            self._root = model
        else:
            model.to(self.processes.device)
        self._weights = list(model.parameters())
        self.shards.note_summed(model)
        check_places(model, self._spread)

    def _shard(self, model: nn.Module) -> None:
        self.shards.shard(model, [model])
        for name in self.plan.forward_methods:
            if not callable(getattr(model, name, None)):
                raise ConfigError(f"Plan: forward_methods: {type(model).__name__} has no method {name!r}")
            register_fsdp_forward_method(model, name)

    def groups_of(self, name: str) -> list[Any]:
        """Return the groups of ranks over which the weight called `name` is cut."""
        return self.shards.groups(self._layers_cut.get(name))

    # Copies ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def copy_of(self, model: nn.Module) -> nn.Module:
        """Return another model, spread in the same way, with the numbers of `model`."""
        assert self._pattern is not None
        copied = deepcopy(self._pattern)
        self.shards.cut_layers(copied)
        if not self.shards.by_rank:
            take_weights(copied, model)
            return copied
        self._shard(copied)
        copied.to_empty(device=torch.device("cpu") if self.plan.cpu_offload else self.processes.device)
        for target, source in zip(tensors_of(copied), tensors_of(model), strict=True):
            local_tensor(target).copy_(local_tensor(source))
        return copied

    # Passes ---------------------------------------------------------------------------------------------------

    def begin_micro_batch(self, *, last: bool) -> None:
        """Have sharded gradients exchanged with the last micro-batch of a window only."""
        if self.shards.by_rank:
            # It saves a reduce-scatter for each micro-batch but the last; until then whole gradients stay in memory.
            self._root.set_requires_gradient_sync(last)

    def finish_gradients(self, weight_param: Any) -> None:
        """Average over copies of the model where torch's sharding does not do it."""
        self.shards.align_gradients(self._weights)
        if not self.shards.by_rank:
            self._average_flat(self._weights)
        self.shards.sum_partial_gradients()
        super().finish_gradients(weight_param)

    def after_eval(self, model: nn.Module) -> None:
        """Give up weights that were gathered for a pass without a backward pass."""
        if isinstance(model, FSDPModule):
            give_up_gathered(model)


def give_up_gathered(model: nn.Module) -> None:
    """Give up the whole weights that were gathered for a pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Torch gives gathered weights up in the backward pass, which does not come after an evaluation.
            module.reshard()


def take_weights(model: nn.Module, source: nn.Module) -> None:
    """Give a model copies of the weights and buffers of another of the same structure, tied where those are."""
    copies: dict[int, Any] = {}
    for own, other in zip(model.modules(), source.modules(), strict=True):
        for mine, theirs in ((own._parameters, other._parameters), (own._buffers, other._buffers)):
            for name, tensor in theirs.items():
                if tensor is not None and id(tensor) not in copies:
                    copy = tensor.detach().clone()
                    copies[id(tensor)] = nn.Parameter(copy) if isinstance(tensor, nn.Parameter) else copy
                mine[name] = None if tensor is None else copies[id(tensor)]


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield weights and buffers."""
    yield from model.parameters()
    yield from model.buffers()
