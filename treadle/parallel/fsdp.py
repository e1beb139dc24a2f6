"""FSDP and tensor parallelism, alone and together: strategies whose weights become torch's distributed tensors."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from treadle.errors import ConfigError
from treadle.memory.activation_checkpointing import matching_blocks
from treadle.parallel.local_shards import Place, cut, local_of, tensor_cut
from treadle.parallel.plan import Degrees, Plan
from treadle.parallel.processes import Processes
from treadle.parallel.sharded import ShardedStrategy, meta_copy

STYLES = {"column": ColwiseParallel, "row": RowwiseParallel}


class DTensorStrategy(ShardedStrategy):
    """Weights cut by layer (`tensor`), and what remains by rank (`shard`), in that order.

    Args:
        processes: The processes.
        plan: The plan.
        degrees: Its numbers.
    """

    def __init__(self, processes: Processes, plan: Plan, degrees: Degrees) -> None:
        super().__init__(processes, plan, degrees)
        self._shards = degrees.shard > 1 or plan.shard == "all"
        self._pattern: nn.Module | None = None
        self._root: Any = None
        self._weights: list[nn.Parameter] = []

    # Spreading ------------------------------------------------------------------------------------------------

    def _apply(self, model: nn.Module) -> None:
        # Before it is cut: a copy, of averaged weights say, begins whole and is cut as the model was.
        self._pattern = meta_copy(model)
        shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters(remove_duplicate=False)}
        # Layers first, and then what is left of them on this rank: torch combines the two in this order only.
        cuts = self._spread_layers(model)
        self._spread = {name: self._place(shape, cuts.get(name)) for name, shape in shapes.items()}
        if self._shards:
            self._shard(model)
            self._root = model
        else:
            model.to(self.processes.device)
        self._weights = list(model.parameters())
        self._check_places(model)

    def _spread_layers(self, model: nn.Module) -> dict[str, int | None]:
        """Spread the layers of the tensor plan; return along which dimension each weight was cut."""
        if self.degrees.tensor == 1:
            return {}
        styles = self._styles(model)
        parallelize_module(model, self.mesh["tensor"], styles)
        return {name: tensor_cut(weight) for name, weight in model.named_parameters(remove_duplicate=False)}

    def _styles(self, model: nn.Module) -> dict[str, Any]:
        plan = self.plan.tensor_plan
        if plan is None:
            own = getattr(model, "tensor_plan", None)
            if own is None:
                raise ConfigError(
                    f"Plan: tensor={self.degrees.tensor}, but {type(model).__name__} has no tensor_plan(); pass "
                    "tensor_plan={'blocks.*.outward': 'column', ...}"
                )
            plan = own()
        styles: dict[str, Any] = {}
        for pattern, style in plan.items():
            for name, layer in matching_blocks(model, [pattern], setting="Plan: tensor_plan"):
                self._check_layer(name, layer, style)
                styles[name] = STYLES[style]()
        return styles

    def _check_layer(self, name: str, layer: nn.Module, style: str) -> None:
        if not isinstance(layer, nn.Linear):
            raise ConfigError(f"Plan: tensor_plan: {name} is a {type(layer).__name__}; only nn.Linear can be sharded")
        size = layer.out_features if style == "column" else layer.in_features
        if size % self.degrees.tensor:
            kind = "outputs" if style == "column" else "inputs"
            raise ConfigError(
                f"Plan: tensor={self.degrees.tensor} does not divide the {size} {kind} of {name}; choose a number "
                "that does"
            )

    def _shard(self, model: nn.Module) -> None:
        axes = tuple(axis for axis in ("data", "shard") if axis in self.mesh.axes)
        settings: dict[str, Any] = {
            "mesh": self.mesh[axes if len(axes) > 1 else axes[0]],
            "mp_policy": self._formats(),
            "offload_policy": CPUOffloadPolicy() if self.plan.cpu_offload else OffloadPolicy(),
        }
        for block in self._blocks(model):
            fully_shard(block, reshard_after_forward=self.plan.reshard_after_forward, **settings)
        # The model after its blocks: it takes only the weights that no block has. Torch keeps those gathered after the
        # forward pass, since the backward pass needs them at once.
        fully_shard(model, **settings)
        for name in self.plan.forward_methods:
            if not callable(getattr(model, name, None)):
                raise ConfigError(f"Plan: forward_methods: {type(model).__name__} has no method {name!r}")
            register_fsdp_forward_method(model, name)

    def _formats(self) -> MixedPrecisionPolicy:
        # Inputs are left alone: autocast knows better which of them to round. Sums of gradients are not rounded.
        if self.plan.gathered is None:
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)

    def _blocks(self, model: nn.Module) -> list[nn.Module]:
        if self.plan.blocks is not None:
            return [block for _, block in matching_blocks(model, list(self.plan.blocks), setting="Plan: blocks")]
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        inner = {id(part) for outer in lists for entry in outer for part in entry.modules()}
        entries = [entry for one in lists if id(one) not in inner for entry in one]
        return [entry for entry in entries if any(True for _ in entry.parameters())]

    def _place(self, shape: tuple[int, ...], dimension: int | None) -> Place:
        cuts = [] if dimension is None else [(dimension, self.degrees.tensor, self.mesh.place("tensor"))]
        if self._shards and shape:
            cuts.append((0, self.degrees.shard, self.mesh.place("shard")))
        offset, extent = cut(shape, cuts)
        pieces = (self.degrees.tensor if dimension is not None else 1) * (self.degrees.shard if self._shards else 1)
        first = self.mesh.place("data") == 0 and (dimension is not None or self.mesh.place("tensor") == 0)
        return Place(shape, offset, extent, holders=self.processes.size // pieces, first=first)

    def _check_places(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters(remove_duplicate=False):
            # Checkpoints go by our arithmetic and weights by torch's: a difference would mix up pieces unseen.
            assert tuple(local_of(weight).shape) == self._spread[name].extent, f"{name} was cut otherwise"

    # Copies ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def copy_of(self, model: nn.Module) -> nn.Module:
        """Return another model, spread in the same way, with the numbers of `model`."""
        assert self._pattern is not None
        copied = deepcopy(self._pattern)
        if self.degrees.tensor > 1:
            parallelize_module(copied, self.mesh["tensor"], self._styles(copied))
        if not self._shards:
            _take_weights(copied, model)
            return copied
        self._shard(copied)
        copied.to_empty(device=torch.device("cpu") if self.plan.cpu_offload else self.processes.device)
        for target, source in zip(_tensors(copied), _tensors(model), strict=True):
            local_of(target).copy_(local_of(source))
        return copied

    # Passes ---------------------------------------------------------------------------------------------------

    def begin_micro_batch(self, *, last: bool) -> None:
        """Have sharded gradients exchanged with the last micro-batch of a window only."""
        if self._shards:
            # It saves a reduce-scatter for each micro-batch but the last; until then whole gradients stay in memory.
            self._root.set_requires_gradient_sync(last)

    def finish_gradients(self, weight_param: Any) -> None:
        """Average over copies of the model where torch's sharding does not do it."""
        if not self._shards:
            self._average_flat(self._weights)
        super().finish_gradients(weight_param)

    def after_eval(self, model: nn.Module) -> None:
        """Give up weights that were gathered for a pass without a backward pass."""
        if isinstance(model, FSDPModule):
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    # Torch gives gathered weights up in the backward pass, which does not come after an evaluation.
                    module.reshard()


def _take_weights(model: nn.Module, source: nn.Module) -> None:
    """Give a model copies of the weights and buffers of another of the same structure, tied where those are."""
    copies: dict[int, Any] = {}
    for own, other in zip(model.modules(), source.modules(), strict=True):
        for mine, theirs in ((own._parameters, other._parameters), (own._buffers, other._buffers)):
            for name, tensor in theirs.items():
                if tensor is not None and id(tensor) not in copies:
                    copy = tensor.detach().clone()
                    copies[id(tensor)] = nn.Parameter(copy) if isinstance(tensor, nn.Parameter) else copy
                mine[name] = None if tensor is None else copies[id(tensor)]


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
