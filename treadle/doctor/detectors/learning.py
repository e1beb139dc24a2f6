"""Weights that do not learn: no gradient reaches them, no optimizer has them, or nothing moves."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from treadle.doctor.detectors.detector import Detector, shortened
from treadle.doctor.finding import Finding


class Learning(Detector):
    """Follows the gradient and the value of every parameter that is to learn."""

    def begin(self) -> None:
        """Note the weights."""
        self._before = {name: one.detach().clone() for name, one in self._learning()}
        self._reached: set[str] = set()
        self._touched: set[str] = set()
        self._updates = 0

    def _learning(self) -> list[tuple[str, Tensor]]:
        return [(name, one) for name, one in self.trainer.model.named_parameters() if one.requires_grad]

    def after_gradients(self) -> None:
        """Note which parameters have a gradient, and which one that is not zero."""
        self._updates += 1
        for name, parameter in self._learning():
            if parameter.grad is not None:
                self._touched.add(name)
                gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
                if gradient.count_nonzero():
                    self._reached.add(name)

    def findings(self) -> Iterable[Finding]:
        """Return what learns nothing, and why."""
        if not self._updates:
            return
        held = {id(one) for group in self._groups() for one in group["params"]}
        missing = [name for name, one in self._learning() if id(one) not in held]
        optimized = [(name, one) for name, one in self._learning() if id(one) in held]
        if missing:
            yield Finding(
                "not_optimized",
                f"no optimizer has {shortened(missing)}; build the optimizer from model.parameters() once the model is "
                "complete, or freeze them with requires_grad_(False)",
            )
        untouched = [name for name, _ in optimized if name not in self._touched]
        if untouched:
            yield Finding(
                "no_gradient",
                f"the loss does not depend on {shortened(untouched)}: the forward pass leaves them out, or detaches "
                "what comes from them; use them, or freeze them with requires_grad_(False)",
            )
        zero = [name for name, _ in optimized if name in self._touched - self._reached]
        if zero:
            yield Finding(
                "no_gradient",
                f"the gradient of {shortened(zero)} is zero in each of {self._updates} steps: look for units that "
                "never answer, weights of zero above them, or a loss that does not see them",
            )
        yield from self._still([name for name, _ in optimized if name in self._reached])

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.trainer.optimizers().values() for group in optimizer.param_groups]

    def _still(self, names: list[str]) -> Iterable[Finding]:
        now = dict(self._learning())
        if names and all(is_still(self._before[name], now[name].detach()) for name in names):
            rates = sorted({float(group["lr"]) for group in self._groups() if "lr" in group})
            yield Finding(
                "no_learning",
                f"the weights are as good as the same after {self._updates} updates, though all of them have "
                f"gradients; the learning rate is {shortened([f'{rate:g}' for rate in rates])}",
            )


def is_still(before: Tensor, after: Tensor) -> bool:
    """Whether weights have not moved by anything that matters beside the largest of them, or beside one."""
    scale = max(1.0, float(before.abs().max())) if before.numel() else 1.0
    return bool(((after - before).abs() <= 1e-9 * scale).all())
