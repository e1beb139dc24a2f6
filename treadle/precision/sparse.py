"""Products with sparse matrices under autocast: in fp32, since half precision gains nothing there."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

HALVES = (torch.float16, torch.bfloat16)
KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU", "mps": "AutocastMPS"}
UNSEEN = (
    "autocast gave a product with a sparse tensor that was made after the first micro-batch to a kernel that does not "
    "take it; call trainer.precision.expect_sparse() before training"
)
_libraries: dict[str, Any] = {}


def hook_sparse_products(device_type: str) -> None:
    """Have `torch.sparse.mm` and `torch.sparse.addmm` run in fp32 under autocast, in this process from now on.

    They are separate operators for torch's dispatcher, which no dense model calls, so the hook costs it nothing. It
    is installed where autocast would cast the operands.
    """
    if device_type in _libraries or device_type not in KEYS:
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries[device_type] = library
    for name in ("_sparse_mm", "_sparse_mm.reduce", "_sparse_addmm"):
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, _in_single_precision(operation, device_type), KEYS[device_type])


def _in_single_precision(operation: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    def product(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return operation(*map(widened, args), **kwargs)

    return product


def widened(value: Any) -> Any:
    """Return a tensor in half precision as one in single precision, and anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def is_sparse(value: Any) -> bool:
    """Whether `value` is a sparse tensor, of any layout; torch's semi-structured ones count as dense."""
    return isinstance(value, Tensor) and value.layout is not torch.strided and type(value) in (Tensor, nn.Parameter)


def holds_sparse(model: nn.Module) -> bool:
    """Whether a module of `model` has a sparse tensor: as a buffer, a parameter or an attribute, or in a list."""
    return any(is_sparse(value) for module in model.modules() for value in _held_by(module))


def _held_by(module: nn.Module) -> Iterator[Any]:
    for value in vars(module).values():
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
        else:
            yield value


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` was applied to `model` or to a part of it."""
    return any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules())


class SparseMode(TorchFunctionMode):
    """While entered, whatever has a sparse operand runs without autocast, its half-precision operands in fp32.

    Every function of torch's passes through Python then, at about a microsecond each.

    Attributes:
        met: Whether there was a sparse operand so far.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type
        self.met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, in single precision if one of its operands is sparse."""
        kwargs = kwargs or {}
        if not (any(map(is_sparse, args)) or (kwargs and any(map(is_sparse, kwargs.values())))):
            return func(*args, **kwargs)
        self.met = True
        with torch.autocast(self._device_type, enabled=False):
            return func(*map(widened, args), **{name: widened(value) for name, value in kwargs.items()})


class SparseProducts:
    """Finds out whether a model multiplies with sparse tensors, and keeps autocast away from them if it does.

    `torch.sparse.mm` and `torch.sparse.addmm` are hooked for good. For products written as `matrix @ dense` or
    `torch.mm`, the functions of torch have to be watched, which costs a microsecond each: so it is done for the
    first micro-batch of each kind in an epoch, and goes on only if a sparse tensor was met.

    Args:
        device_type: "cpu" or "cuda".

    Attributes:
        expected: Whether functions are watched all the time.
        regions: How many regions under autocast are entered.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._mode = SparseMode(device_type)
        self._looked_at: set[str] = set()
        self._looks = True
        self.expected = False
        self.regions = 0

    def look_again(self, model: nn.Module, *, compiled: bool = False) -> None:
        """Look out for sparse tensors once more, since an epoch or an evaluation begins.

        Args:
            model: What will run.
            compiled: Whether the caller is compiled. Watching would have it compiled once more, so only the sparse
                tensors that the model holds count then.
        """
        self._looks = not (compiled or is_compiled(model))
        self._looked_at.clear()
        if not self.expected and holds_sparse(model):
            self.expected = True

    def watches(self, kind: str) -> bool:
        """Whether the functions of the micro-batch that begins now, of this kind, are to be watched."""
        if self.expected:
            return True
        if not self._looks or kind in self._looked_at:
            return False
        self._looked_at.add(kind)
        return True

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the functions of torch."""
        # One object may be on the stack of modes several times: an evaluation inside of a step, say.
        with self._mode:
            try:
                yield
            finally:
                self.expected = self.expected or self._mode.met

    def backward(self, loss: Tensor, inputs: Sequence[Tensor] | None) -> None:
        """Add the gradient of `loss`, with what is computed again for it watched as well.

        Args:
            loss: The loss.
            inputs: The weights whose gradients are wanted; None for all.
        """
        # By the edges of the graph: a function that is given tensors would itself be watched, and so end the watch.
        wanted = None if inputs is None else [get_gradient_edge(weight) for weight in inputs]
        beginning, one = get_gradient_edge(loss), torch.ones_like(loss)
        with self.watching():
            torch.autograd.backward(beginning, one, inputs=wanted)


class Region(torch.autocast):
    """A forward pass under autocast, in which sparse products are safe.

    Args:
        device_type: Where it runs.
        dtype: The half-precision type.
        products: What keeps autocast away from sparse products.
        kind: What sort of forward pass it is.
    """

    def __init__(self, device_type: str, dtype: torch.dtype, products: SparseProducts, kind: str) -> None:
        super().__init__(device_type, dtype=dtype)
        self._products = products
        self._watching = products.watching() if products.watches(kind) else None

    def __enter__(self) -> Self:
        """Turn autocast on."""
        super().__enter__()  # type: ignore[no-untyped-call]
        self._products.regions += 1
        if self._watching is not None:
            self._watching.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        """Turn autocast off, and add an explanation to the error of a sparse product that nobody expected."""
        self._products.regions -= 1
        if self._watching is not None:
            self._watching.__exit__(*exception)
        elif isinstance(exception[1], NotImplementedError) and "sparse" in str(exception[1]):
            exception[1].add_note(UNSEEN)
        return super().__exit__(*exception)
