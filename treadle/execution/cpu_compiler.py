"""torch's compiler, with what its code for CPUs is slow at said in another way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy

# Max pooling over windows that do not overlap, as arithmetic that a compiler joins with what stands around it. With the
# masks below alone, compiled steps of a small CNN were 1.12 times as fast as ordinary ones; with this as well they are
# 1.4 to 1.7 times as fast (benchmarks/RESULTS.md, "Execution: on the CPU", 2026-11-16)


aten = torch.ops.aten
MOST = 16
"""Elements of the largest window that is taken apart; of larger ones the code would grow long."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return what stands for max pooling and its gradient in the compiler's table."""
    return {
        aten.max_pool2d_with_indices.default: pool,
        aten.max_pool2d_with_indices_backward.default: pool_backward,
    }


class Decompositions(dict[Any, Callable[..., Any]]):
    """A compiler's whole table, which caches of compiled code know by what it is made from.

    They would look into every function of a plain one, find some that they cannot tell apart, and keep nothing.
    """

    def __reduce__(self) -> tuple[Callable[[Any], "Decompositions"], tuple[Any]]:
        return _table, (get_hash_for_files((__file__,)),)


def _table(made_from: Any = None) -> Decompositions:
    """Return torch's own table with ours.

    Args:
        made_from: The code of ours, for whoever compares two tables.
    """
    from torch._inductor.decomposition import select_decomp_table

    return Decompositions({**select_decomp_table(), **decompositions()})


def pool(
    inputs: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and its place in the image."""
    window = _window(inputs, kernel_size, stride, padding, dilation, ceil_mode)
    if window is None:
        from torch._inductor.decomposition import max_pool2d_with_indices

        settings = [list(numbers) for numbers in (kernel_size, stride or kernel_size, padding, dilation)]
        return max_pool2d_with_indices(inputs, *settings, ceil_mode=ceil_mode)  # type: ignore[misc, arg-type]
    values, offsets = _largest(inputs, *window)
    height, width = window
    within = offsets.movedim(-1, -3).long()
    rows, columns = (torch.arange(size, device=inputs.device) for size in values.shape[-2:])
    rows = rows.unsqueeze(1) * height + within // width
    return values, rows * inputs.shape[-1] + columns * width + within % width


def pool_backward(
    gradient: Tensor,
    inputs: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Return the gradient of the inputs, which the largest element of each window has."""
    window = _window(inputs, kernel_size, stride, padding, dilation, ceil_mode)
    if window is None:
        return NotImplemented  # type: ignore[no-any-return]
    # Found anew, these are the same values as in the forward pass, and a compiler keeps them from there.
    offsets = _largest(inputs, *window)[1].to(gradient.dtype)
    height, width = window
    own = torch.arange(height * width, device=inputs.device).view(height, 1, width, 1).to(gradient.dtype)
    chosen = offsets[..., :, None, :, None, :] == own
    spread = torch.where(chosen, gradient.movedim(-3, -1)[..., :, None, :, None, :], 0.0)
    rows, columns = gradient.shape[-2] * height, gradient.shape[-1] * width
    found = spread.reshape(*inputs.shape[:-3], rows, columns, inputs.shape[-3]).movedim(-1, -3)
    return functional.pad(found, (0, inputs.shape[-1] - columns, 0, inputs.shape[-2] - rows))


def _window(
    inputs: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[int, int] | None:
    """Return the height and width of windows that lie side by side; None where they do not."""
    window = tuple(kernel_size) * (2 if len(kernel_size) == 1 else 1)
    beside = tuple(stride or window) in (window, window[:1] if window[0] == window[1] else window)
    plain = not any(padding) and all(one == 1 for one in dilation) and not ceil_mode
    if not (beside and plain and inputs.is_floating_point() and window[0] * window[1] <= MOST):
        return None
    return window[0], window[1]


def _largest(inputs: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and which of the window's elements it is, channels last.

    Channels last is how the compiler lays out what convolutions give and take.
    """
    images = inputs.movedim(-3, -1)
    rows, columns = images.shape[-3] // height * height, images.shape[-2] // width * width
    values = images[..., :rows:height, :columns:width, :]
    # In the inputs' own type, for compilers mix bytes and floats badly, and narrow only what is kept.
    offsets = torch.zeros_like(values)
    for offset in range(1, height * width):
        part = images[..., offset // width : rows : height, offset % width : columns : width, :]
        larger = (part > values) | (part != part)
        values = torch.where(larger, part, values)
        offsets = torch.where(larger, float(offset), offsets)
    return values.movedim(-1, -3), offsets.to(torch.int8).contiguous()


@dataclass(frozen=True)
class CpuCompiler:
    """A backend for `torch.compile` that makes the code of its default one, but for masks and max pooling.

    A small CNN compiled by it is 1.41 times as fast as in ordinary steps, and 0.60 times by torch's own backend; with
    average pooling it is 1.54 and 1.44 times (benchmarks/RESULTS.md, "Execution: on the CPU", 2026-11-16).

    Args:
        settings: Settings of the compiler, by their names.
    """

    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a graph, compiled for such inputs."""
        # The compiler takes a while to load.
        from torch._inductor.compile_fx import compile_fx

        patches = {"joint_custom_pre_pass": RecomputedMasks(), **self.settings}
        return compile_fx(graph, inputs, config_patches=patches, decompositions=_table())  # type: ignore[return-value]


class RecomputedMasks(CustomGraphPass):
    """Has booleans computed again in the backward pass, not kept from the forward pass.

    An activation such as ReLU has to know which elements it let through. The compiler keeps that as booleans, the
    smallest thing there is to keep, and code for CPUs writes them one at a time: this took more than half of a step
    of a small convolutional network. What was compared is at hand in the backward pass, or costs less to keep.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Mark what gives booleans in the graph of both passes."""
        for node in graph.nodes:
            if _is_mask(node) and "recompute" not in node.meta:
                node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}

    def uuid(self) -> Any:
        """Return what tells code that was compiled with this, and with these windows, from other code in caches."""
        return get_hash_for_files((__file__,))


def _is_mask(node: torch.fx.Node) -> bool:
    """Whether a node of a graph gives booleans, the same each time."""
    value, operation = node.meta.get("val"), node.target
    if not isinstance(operation, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
        return False
    return value.dtype is torch.bool and torch.Tag.nondeterministic_seeded not in operation.tags
