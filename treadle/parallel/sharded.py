"""What all strategies have in common under which ranks hold other weights than their neighbours."""

import atexit
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from treadle.errors import CheckpointError, ConfigError
from treadle.optim.muon import is_muon
from treadle.parallel.local_shards import (
    Place,
    like_shard,
    local_tensor,
    piece,
    require_plain,
    saved_part,
    squared_sum,
    stand_for,
)
from treadle.parallel.optimizer_shards import ShardedOptimizerState
from treadle.parallel.plan import Degrees, Plan
from treadle.parallel.processes import Processes, leave_group_at_exit, meshes
from treadle.parallel.state_dict import is_sharded, remember, strategy_of
from treadle.parallel.strategy import Strategy
from treadle.parallel.whole_matrices import put_together, step_with_whole_matrices
from treadle.phase import optimizer_params
from treadle.precision.formats import Precision
from treadle.runs.fingerprint import fingerprint_model, fingerprint_optimizer

# The processes of a plan as a grid


BATCH = "batch"
"""The axes `data` and `shard` as one: the ranks that share the data."""


class Mesh:
    """The grid of ranks, with an axis for each number of the plan that is above 1.

    Args:
        processes: The processes.
        degrees: The numbers of the plan.
        keep_shard: Whether the axis `shard` is there even for one rank.
    """

    def __init__(self, processes: Processes, degrees: Degrees, *, keep_shard: bool) -> None:
        if not dist.is_initialized():
            # Torch's parallel modules talk to a group, one rank alone too.
            store = dist.HashStore()  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if processes.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            atexit.register(leave_group_at_exit)
        self.degrees = degrees
        sharded = degrees.shard > 1 or keep_shard
        # One axis of data is always there, for the group of ranks that hold the same weights.
        kept = {"data": degrees.data > 1 or not sharded, "shard": sharded}
        axes = {axis: size for axis, size in degrees._asdict().items() if kept.get(axis, size > 1)}
        self.axes = tuple(axes)
        shared = tuple(axis for axis in ("data", "shard") if axis in axes)
        self._batch = shared[0] if len(shared) == 1 else BATCH
        key = (processes.device.type, tuple(axes.items()))
        # Each mesh makes process groups, with sockets and threads: all trainers of this process take the same.
        if key not in meshes:
            meshes[key] = init_device_mesh(key[0], tuple(axes.values()), mesh_dim_names=self.axes)
            if len(shared) > 1:
                meshes[key][shared]._flatten(BATCH)
        self.whole = meshes[key]

    def __getitem__(self, axes: str | tuple[str, ...]) -> Any:
        return self.whole[axes]

    def place(self, axis: str) -> int:
        """Return the place of this rank along an axis."""
        return int(self.whole.get_local_rank(axis)) if axis in self.axes else 0

    def batch_group(self) -> Any:
        """Return the ranks that work on different shares of the data, this one among them."""
        return self.whole[self._batch].get_group()

    def group(self, axis: str) -> Any:
        """Return the group along an axis."""
        return self.whole[axis].get_group()


class ShardedStrategy(Strategy):
    """A strategy whose ranks hold pieces of the model.

    The model stays the user's own object; its weights become torch's distributed tensors, or leave it. The optimizer
    goes on with plain tensors, the pieces that are here: whatever it does costs no more than on one process.

    Attributes:
        names: The names of all weights and buffers of the model, wherever they are.
        groups: For each optimizer the names and shapes of all its weights, group by group.
    """

    is_sharded = True

    def __init__(self, processes: Processes, plan: Plan, degrees: Degrees) -> None:
        super().__init__(processes, plan, degrees)
        self.mesh = Mesh(processes, degrees, keep_shard=plan.shard == "all")
        self.data_size = degrees.data * degrees.shard
        self.data_rank = self.mesh.place("data") * degrees.shard + self.mesh.place("shard")
        self.copies = self.loss_copies = processes.size // self.data_size
        self.data_ranks = [rank for rank, (_, copy) in enumerate(self._places()) if copy == 0]
        self.data_group = self.mesh.batch_group()
        self.names: list[str] = []
        self.groups: dict[int, list[list[tuple[str, tuple[int, ...]]]]] = {}
        self._spread: dict[str, Place] = {}
        self._optimizers: list[Optimizer] = []
        self._held: list[nn.Parameter] = []
        self._stands: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._place_of: dict[int, Place] = {}
        self._name_of: dict[int, str] = {}
        self._reached: list[nn.Parameter] | None = None

    def _places(self) -> list[tuple[int, int]]:
        """Return the data rank of each process, and which of the ranks on the same data it is."""
        own = (self.data_rank, self.mesh.place("pipeline") * self.degrees.tensor + self.mesh.place("tensor"))
        return self.processes.gather_objects(own)

    # Setting up -----------------------------------------------------------------------------------------------

    def prepare(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Spread the model over the ranks, once; the weights to begin with are those of the first one.

        Raises:
            ConfigError: The model is spread out already, an optimizer holds weights that are none of its, or they are
                not those that were spread before.
        """
        if self.prepared:
            self._require_same(model, optimizers)
            return
        require_plain(model, is_sharded(model))
        self._share_beginning(model)
        # All of this before the model is cut: afterwards its weights are other objects, of other shapes, or gone.
        named = {id(weight): name for name, weight in model.named_parameters()}
        shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
        self.names, self.fingerprint = list(model.state_dict()), fingerprint_model(model)
        held = [self._names_held(optimizer, named) for optimizer in optimizers]
        self.prints = {id(optimizer): fingerprint_optimizer(optimizer) for optimizer in optimizers}
        self._apply(model)
        weights = dict(model.named_parameters())
        stands = {name: stand_for(weight) for name, weight in weights.items()}
        for optimizer, groups in zip(optimizers, held, strict=True):
            self.groups[id(optimizer)] = [[(name, shapes[name]) for name in group] for group in groups]
            self._hold(optimizer, groups, stands)
        self._held = list(stands.values())
        self._stands = [(weight, stands[name]) for name, weight in weights.items() if stands[name] is not weight]
        self._place_of = {id(stands[name]): self.place_of(name) for name in weights}
        self._name_of = {id(stand): name for name, stand in stands.items()}
        self._optimizers = list(optimizers)
        for optimizer in optimizers:
            if is_muon(optimizer):
                step_with_whole_matrices(optimizer, self)
        self.prepared = True
        remember(model, self)

    def _require_same(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Refuse a model that nobody spread, and an optimizer of other weights than the pieces that are here."""
        plan = self.as_argument()
        if strategy_of(model) is not self:
            raise ConfigError(f"{plan}: another model is sharded over the processes; build a new trainer for this one")
        for optimizer in optimizers:
            kind = type(optimizer).__name__
            if not any(optimizer is known for known in self._optimizers):
                raise ConfigError(
                    f"{plan}: this {kind} was not the trainer's when the model was sharded over the processes, and "
                    "does not hold the pieces that are here; change the arguments of the one that was, or build the "
                    "model, the optimizer and a trainer anew"
                )
            added = [weight for weight in optimizer_params(optimizer) if id(weight) not in self._place_of]
            if added:
                raise ConfigError(
                    f"{plan}: {kind} was given a weight of {tuple(added[0].shape)} after the model was sharded over "
                    "the processes; give it all weights at the beginning, and freeze those that are to wait"
                )

    def place(self, model: nn.Module) -> None:
        """Leave the model where it is: its pieces went to the device when they were cut."""

    @torch.no_grad()
    def _share_beginning(self, model: nn.Module) -> None:
        for tensor in model.state_dict().values():
            if isinstance(tensor, Tensor) and self.processes.distributed:
                dist.broadcast(tensor, src=0)

    @staticmethod
    def _names_held(optimizer: Optimizer, named: dict[int, str]) -> list[list[str]]:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if id(weight) not in named:
                    raise ConfigError(
                        f"parallel=Plan(...): the optimizer holds a weight of {tuple(weight.shape)} that is not in the "
                        "model, such as one of the loss; make it a part of the model, or use parallel='auto'"
                    )
        return [[named[id(weight)] for weight in group["params"]] for group in optimizer.param_groups]

    def _hold(self, optimizer: Optimizer, groups: list[list[str]], stands: dict[str, nn.Parameter]) -> None:
        """Have an optimizer hold what is here of its weights, with the state that it has for them."""
        kept = dict(optimizer.state)
        # The state is kept by parameter object, and these are about to be replaced.
        optimizer.state.clear()
        for group, names in zip(optimizer.param_groups, groups, strict=True):
            before = dict(zip(names, group["params"], strict=True))
            group["params"] = [stands[name] for name in names if name in stands]
            for name, weight in before.items():
                if name in stands and weight in kept:
                    optimizer.state[stands[name]] = self._cut_state(kept[weight], name)

    def _cut_state(self, state: dict[str, Any], name: str) -> dict[str, Any]:
        place = self.place_of(name)
        return {
            key: value[place.slices].clone() if isinstance(value, Tensor) and value.shape == place.shape else value
            for key, value in state.items()
        }

    def share_buffers(self, model: nn.Module) -> None:
        """Give the ranks that hold the same weights the buffers of the first of them."""
        if self.data_size > 1:
            self.processes.share_buffers(model, self.data_group)

    @abstractmethod
    def _apply(self, model: nn.Module) -> None:
        """Spread the weights of a model, and note their places by name."""

    @abstractmethod
    def copy_of(self, model: nn.Module) -> nn.Module:
        """Return another model that is spread in the same way, with the same numbers."""

    def place_of(self, name: str) -> Place:
        """Return where the piece of this rank lies in the weight called `name`."""
        return self._spread[name]

    def put_together(self, pieces: Sequence[Tensor], name: str) -> list[Tensor]:
        """Return whole tensors of which this rank holds the piece that it holds of the weight called `name`."""
        return put_together(list(pieces), self.place_of(name), self.groups_of(name))

    @abstractmethod
    def groups_of(self, name: str) -> list[Any]:
        """Return the groups of ranks over which the weight called `name` is cut."""

    def share_scale(self, precision: Precision) -> None:
        """Have processes agree on whether a gradient overflowed, of which each has a piece."""
        if self.processes.distributed:
            precision.agree_on_overflow = self.processes.make_largest

    # Gradients ------------------------------------------------------------------------------------------------

    def finish_gradients(self, weight_param: Tensor) -> None:
        """Bring the weight_param to its mean over the ranks that share the data, and the gradients to who updates."""
        self._average_weight_param(weight_param)
        for weight, stand in self._stands:
            # No copy: optimizer, clipping and loss scaling change the memory of the distributed gradient itself.
            stand.grad = None if weight.grad is None else local_tensor(weight.grad)

    def _average_weight_param(self, weight_param: Tensor) -> None:
        if weight_param.grad is not None and self.data_size > 1:
            dist.all_reduce(weight_param.grad, group=self.data_group)
            weight_param.grad.div_(self.data_size)

    @torch.no_grad()
    def _average_flat(self, weights: Sequence[nn.Parameter]) -> None:
        """Average the gradients of plain weights, and of pieces, over the ranks that share the data."""
        if self.data_size == 1:
            return
        if self._reached is None:
            # Once: which of them get a gradient on any rank, so that those of none stay without.
            flags = torch.tensor([float(weight.grad is not None) for weight in weights], device=self.processes.device)
            dist.all_reduce(flags, group=self.data_group)
            self._reached = [weight for weight, flag in zip(weights, flags.tolist(), strict=True) if flag]
        gradients = [self._local_gradient(weight) for weight in self._reached]
        # One collective a step, for a second copy of the gradients.
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=self.data_group)
        flat.div_(self.data_size)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(own) for part, own in zip(parts, gradients, strict=True)])

    @staticmethod
    def _local_gradient(weight: nn.Parameter) -> Tensor:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        return local_tensor(weight.grad)

    def drop_gradients(self) -> None:
        """Forget the gradients of distributed weights, whose pieces the optimizer has forgotten."""
        for weight, _ in self._stands:
            weight.grad = None

    def norm(self, held: Sequence[nn.Parameter]) -> Tensor:
        """Return the joint norm of the gradients of `held` over all ranks; each number counts once."""
        return self._joint_norm((weight, weight.grad) for weight in held)

    def norm_of_weights(self) -> Tensor:
        """Return the joint norm of all weights over all ranks; each number counts once."""
        return self._joint_norm((weight, weight.detach()) for weight in self._held if weight.is_floating_point())

    def _joint_norm(self, pairs: Iterable[tuple[nn.Parameter, Tensor | None]]) -> Tensor:
        by_holders: dict[int, list[Tensor]] = {}
        for weight, tensor in pairs:
            place = self._place_of[id(weight)]
            if tensor is not None and tensor.numel():
                by_holders.setdefault(place.holders, []).append(tensor)
        device = self.processes.device
        total = torch.zeros((), device=device, dtype=torch.float32)
        for holders, tensors in sorted(by_holders.items()):
            # A piece that several ranks hold is in the sum of each of them.
            total = total + squared_sum(tensors).to(device) / holders
        if self.processes.distributed:
            dist.all_reduce(total)
        return total.sqrt()

    # State ----------------------------------------------------------------------------------------------------

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return what is here of the weights and buffers of `model`, as pieces."""
        return {name: self._as_piece(name, value) for name, value in model.state_dict().items()}

    def _as_piece(self, name: str, value: Any) -> Any:
        place = self._spread.get(name)
        return value if place is None else piece(local_tensor(value), place)

    @torch.no_grad()
    def load_model_state(self, model: nn.Module, state: dict[str, Any], *, where: str) -> None:
        """Take weights and buffers back: of each, what belongs here.

        Raises:
            CheckpointError: Names or shapes differ.
        """
        present = model.state_dict()
        surplus = sorted(set(state) - set(self.names))
        missing = sorted(set(present) - set(state))
        if surplus or missing:
            raise CheckpointError(f"{where} does not fit the model: it lacks {missing} and has {surplus} besides")
        for name, target in present.items():
            saved, place = state[name], self._spread.get(name)
            shape = tuple(target.shape) if place is None else place.shape
            if tuple(saved.shape) != shape:
                raise CheckpointError(f"{where} does not fit the model: {name} is {tuple(saved.shape)}, not {shape}")
            local_tensor(target).copy_(saved_part(saved, place))

    def full_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return all weights and buffers as whole tensors, on every rank that will write them."""
        return {name: gather_whole(value) for name, value in model.state_dict().items()}

    def optimizer_state(self, optimizer: Optimizer) -> ShardedOptimizerState:
        """Return what saves and restores the pieces of an optimizer that are here."""
        return ShardedOptimizerState(optimizer, self)

    def like_weight(self, value: Any, held: nn.Parameter) -> Place | None:
        """Return the place of what an optimizer keeps for each number of a weight; None if it is something else."""
        return self._place_of[id(held)] if like_shard(value, held) else None

    def name_of(self, held: nn.Parameter) -> str:
        """Return the name of a weight that an optimizer holds here."""
        return self._name_of[id(held)]


def gather_whole(value: Any) -> Any:
    """Return a distributed tensor as a whole; all ranks that hold pieces must call it together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def meta_copy(model: nn.Module, device: torch.device | str = "meta") -> nn.Module:
    """Return a copy of a model whose weights take no memory, or are still to be filled on another device."""
    memo: dict[int, Any] = {
        id(weight): nn.Parameter(torch.empty_like(weight, device=device), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return deepcopy(model, memo)
