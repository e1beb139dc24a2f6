"""Optimizers that move only the rows of embeddings that a batch has."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.errors import ConfigError

_Group = dict[str, Any]


class Rows:
    """The rows of a sparse gradient as they came, some of them several times.

    How many there are once each only the device knows, and the host does not ask: a row stays as often as it came, and
    whoever writes to it writes the same numbers several times.

    Args:
        gradient: The gradient, of rows.
        slots: Room for a number for each row of the weights; what is in it does not matter.

    Attributes:
        ids: The rows.
        values: What came for them.
        own: For each, the place of one that is of the same row, the same one for all of these.
        sums: At these places the sums of the values of a row, `[rows, ...]`.

    >>> indices, values = torch.tensor([[2, 0, 2]]), torch.tensor([[1.0], [2.0], [3.0]])
    >>> gradient = torch.sparse_coo_tensor(indices, values, (4, 1), check_invariants=False)
    >>> Rows(gradient, torch.empty(4, dtype=torch.int64)).sum_of_each().flatten().tolist()
    [4.0, 2.0, 4.0]
    """

    def __init__(self, gradient: Tensor, slots: Tensor) -> None:
        self.ids, self.values = gradient._indices()[0], gradient._values()
        places = torch.arange(len(self.ids), device=self.ids.device)
        if gradient.is_coalesced():
            self.own, self.sums = places, self.values
            return
        slots.scatter_(0, self.ids, places)
        self.own = slots.index_select(0, self.ids)
        self.sums = torch.zeros_like(self.values).index_add_(0, self.own, self.values)

    def sum_of_each(self) -> Tensor:
        """Return the sum of its row for each value."""
        return self.sums.index_select(0, self.own)


class RowWiseOptimizer(Optimizer):
    """What both have in common: which gradients are of rows, and which of whole weights.

    Args:
        params: Weights, or groups of them. Those of embeddings with `sparse=True` have gradients of rows.
        defaults: The settings.
        tables: Names of weights whose gradients have to be of rows: a dense one is an error.
    """

    NAME = ""
    """What settings call it."""

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], tables: Mapping[nn.Parameter, str] | None
    ) -> None:
        super().__init__(params, defaults)
        self._tables = dict(tables or {})
        self._slots: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an update.

        Args:
            closure: Calculates the loss again, and is called first.

        Raises:
            ConfigError: The gradient of a table has all of its rows.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            dense = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    self.update_rows(parameter, Rows(parameter.grad, self._slots_of(parameter)), group)
                else:
                    self._check_dense(parameter)
                    dense.append(parameter)
            if dense:
                self.update_dense(dense, group)
        return loss

    def update_rows(self, parameter: nn.Parameter, rows: Rows, group: _Group) -> None:
        """Update some rows."""
        raise NotImplementedError

    def update_dense(self, parameters: list[nn.Parameter], group: _Group) -> None:
        """Update weights whose gradients are dense."""
        raise NotImplementedError

    def _slots_of(self, parameter: nn.Parameter) -> Tensor:
        known = self._slots.get(parameter)
        if known is None or known.device != parameter.device:
            known = torch.empty(len(parameter), dtype=torch.int64, device=parameter.device)
            self._slots[parameter] = known
        return known

    def _check_dense(self, parameter: nn.Parameter) -> None:
        if parameter in self._tables:
            raise ConfigError(
                f"{self.NAME} moves only the rows that a batch has, but the gradient of {self._tables[parameter]} has "
                "all of them: the loss uses the whole table; use adam"
            )


class LazyAdam(RowWiseOptimizer):
    """Adam that leaves rows alone which are not in a batch: their weights and moments do not change.

    With t, the number of updates so far, whichever rows they had, a row of the batch with the gradient g gets
    `m = beta1 m + (1 - beta1) g`, `v = beta2 v + (1 - beta2) g^2` and
    `w = w - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)`, as torch's SparseAdam has it. Other weights,
    whose gradients are dense, are updated by Adam.

    Args:
        params: Weights, or groups of them.
        lr: The learning rate.
        betas: How slowly both moments change.
        eps: Added to the divisor.
        tables: Names of weights whose gradients have to be of rows.
    """

    NAME = "lazy_adam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        tables: Mapping[nn.Parameter, str] | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, tables)

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def update_rows(self, parameter: nn.Parameter, rows: Rows, group: _Group) -> None:
        """Update some rows and their moments."""
        state, ids = self._state_of(parameter), rows.ids
        kept = parameter.detach(), state["exp_avg"], state["exp_avg_sq"]
        chosen = [one.index_select(0, ids) for one in kept]
        _adam([chosen[0]], [rows.sum_of_each()], [chosen[1]], [chosen[2]], [state["step"]], group)
        for one, updated in zip(kept, chosen, strict=True):
            one.index_copy_(0, ids, updated)

    def update_dense(self, parameters: list[nn.Parameter], group: _Group) -> None:
        """Update weights by Adam."""
        states = [self._state_of(parameter) for parameter in parameters]
        means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        _adam([parameter.detach() for parameter in parameters], gradients, means, squares, steps, group)


def _adam(
    weights: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    group: _Group,
) -> None:
    """Make one update of Adam, all of it in one operation."""
    torch._foreach_add_(steps, 1)
    torch._fused_adam_(
        weights,
        gradients,
        means,
        squares,
        [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


class RowAdagrad(RowWiseOptimizer):
    """Adagrad with one sum for each row of an embedding: rows that are not in a batch do not change.

    A row of n numbers with the gradient g gets `s = s + |g|^2 / n` and `w = w - lr * g / (sqrt(s) + eps)`. Other
    weights, whose gradients are dense, are updated by Adagrad, with a sum for each number.

    Args:
        params: Weights, or groups of them.
        lr: The learning rate.
        eps: Added to the divisor.
        tables: Names of weights whose gradients have to be of rows.
    """

    NAME = "row_adagrad"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        *,
        tables: Mapping[nn.Parameter, str] | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps}, tables)

    def update_rows(self, parameter: nn.Parameter, rows: Rows, group: _Group) -> None:
        """Update some rows and their sums."""
        state = self.state[parameter]
        if not state:
            state["sum"] = parameter.new_zeros(len(parameter))
        squares = rows.sums.square().flatten(1).mean(dim=1)
        sums = state["sum"].index_select(0, rows.ids).add_(squares.index_select(0, rows.own))
        state["sum"].index_copy_(0, rows.ids, sums)
        # An update is linear in the gradient once the sum is known: each value is added where it came for.
        rates = sums.sqrt_().add_(group["eps"]).reciprocal_().mul_(-group["lr"])
        moved = rows.values * rates.view(-1, *(1 for _ in rows.values.shape[1:]))
        parameter.detach().index_add_(0, rows.ids, moved)

    def update_dense(self, parameters: list[nn.Parameter], group: _Group) -> None:
        """Update weights by Adagrad."""
        for parameter in parameters:
            gradient, state = parameter.grad, self.state[parameter]
            if gradient is None:
                continue
            if not state:
                state["sum"] = torch.zeros_like(parameter)
            state["sum"].addcmul_(gradient, gradient)
            parameter.sub_(gradient * (group["lr"] / state["sum"].sqrt().add_(group["eps"])))
