"""One set of weights for modules of several sizes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Weigh = Callable[[Any], Sequence[tuple[Any, Tensor]]]
Arguments = Mapping[str, Any]


class SharedWeights:
    """How modules of one class and several sizes use the weights of the largest.

    Args:
        largest: The arguments of the largest module.

    Attributes:
        reason_not_differentiable: Why sizes cannot be weighed against each other; None if they can.
    """

    sizes: frozenset[str] = frozenset()
    """The arguments that may differ."""
    width = "in_channels"
    """The argument that says how many channels the input has."""

    def __init__(self, largest: dict[str, Any]) -> None:
        self.largest = largest
        self.reason_not_differentiable: str | None = None

    def run(self, module: Any, arguments: Arguments, inputs: Tensor) -> Tensor:
        """Return what a module with these arguments gives."""
        raise NotImplementedError

    def weighed(self, module: Any, arguments: Arguments, weigh: Weigh, inputs: Tensor) -> Tensor:
        """Return what all sizes give together: channels count as much as the sizes that have them weigh."""
        raise NotImplementedError

    def parts(self, module: Any, arguments: Arguments) -> dict[str, Tensor]:
        """Return the parts of the largest module's weights and buffers that a module with these arguments has."""
        raise NotImplementedError

    def inputs_like(self, inputs: Tensor, arguments: Arguments) -> Tensor:
        """Return zeros of the shape that a module with these arguments is called with."""
        return inputs.new_zeros(len(inputs), arguments[self.width], *inputs.shape[2:])

    def fill(self, made: nn.Module, module: nn.Module, arguments: Arguments) -> None:
        """Give a module with these arguments its part of the weights."""
        own = {**dict(made.named_parameters()), **dict(made.named_buffers())}
        with torch.no_grad():
            for name, part in self.parts(module, arguments).items():
                own[name].copy_(part)


class SharedLinear(SharedWeights):
    """Linear layers use the first inputs and outputs."""

    sizes = frozenset({"in_features", "out_features"})

    def parts(self, module: Any, arguments: Arguments) -> dict[str, Tensor]:
        """Return the first rows and columns."""
        rows, columns = arguments["out_features"], arguments["in_features"]
        found = {"weight": module.weight[:rows, :columns]}
        return found if module.bias is None else {**found, "bias": module.bias[:rows]}

    def run(self, module: Any, arguments: Arguments, inputs: Tensor) -> Tensor:
        """Return the product with the first rows and columns."""
        parts = self.parts(module, arguments)
        return F.linear(inputs, parts["weight"], parts.get("bias"))

    def weighed(self, module: Any, arguments: Arguments, weigh: Weigh, inputs: Tensor) -> Tensor:
        """Return the product with all, weighed by outputs."""
        outputs: Tensor = module(inputs)
        return outputs * mask(weigh(arguments["out_features"]), module.out_features, outputs)

    def inputs_like(self, inputs: Tensor, arguments: Arguments) -> Tensor:
        """Return zeros with as many features."""
        return inputs.new_zeros(*inputs.shape[:-1], arguments["in_features"])


class SharedConvolution(SharedWeights):
    """Convolutions use the first channels and the centre of the kernel."""

    sizes = frozenset({"in_channels", "out_channels", "kernel_size", "padding", "groups"})

    def _kernel(self, module: Any, size: Any) -> tuple[slice, ...]:
        wanted = as_tuple(size, len(module.kernel_size))
        starts = [(whole - part) // 2 for whole, part in zip(module.kernel_size, wanted, strict=True)]
        return tuple(slice(start, start + part) for start, part in zip(starts, wanted, strict=True))

    def parts(self, module: Any, arguments: Arguments) -> dict[str, Tensor]:
        """Return the first channels, and the centre of the kernel."""
        groups = arguments.get("groups", 1)
        rows, columns = arguments["out_channels"], arguments["in_channels"] // groups
        found = {
            "weight": module.weight[(slice(rows), slice(columns), *self._kernel(module, arguments["kernel_size"]))]
        }
        return found if module.bias is None else {**found, "bias": module.bias[:rows]}

    def run(self, module: Any, arguments: Arguments, inputs: Tensor) -> Tensor:
        """Return the convolution with these parts."""
        parts = self.parts(module, arguments)
        padding, groups = arguments.get("padding", 0), arguments.get("groups", 1)
        return _convolve(module, inputs, parts["weight"], parts.get("bias"), padding, groups)

    def weighed(self, module: Any, arguments: Arguments, weigh: Weigh, inputs: Tensor) -> Tensor:
        """Return the convolution with all channels, of a kernel whose rim counts as much as the larger sizes weigh."""
        weight = module.weight
        kernels = weigh(arguments["kernel_size"])
        if len(kernels) > 1:
            rim = torch.zeros(module.kernel_size, dtype=weight.dtype, device=weight.device)
            for size, share in kernels:
                inside = torch.zeros_like(rim)
                inside[self._kernel(module, size)] = 1
                rim = rim + share * inside
            weight = weight * rim
        outputs = _convolve(module, inputs, weight, module.bias, module.padding, module.groups)
        shares = mask(weigh(arguments["out_channels"]), module.out_channels, outputs)
        return outputs * shares.view(-1, *[1] * len(module.kernel_size))


class SharedBatchNorm(SharedWeights):
    """Batch norms use the first channels."""

    sizes = frozenset({"num_features"})
    width = "num_features"

    def parts(self, module: Any, arguments: Arguments) -> dict[str, Tensor]:
        """Return the first channels of weights and statistics."""
        count = arguments["num_features"]
        every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: tensor if tensor.dim() == 0 else tensor[:count] for name, tensor in every.items()}

    def run(self, module: Any, arguments: Arguments, inputs: Tensor) -> Tensor:
        """Return the normalised channels; their statistics move in place."""
        return self._normalised(module, self.parts(module, arguments), inputs)

    def _normalised(self, module: Any, parts: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        moves = module.training and module.track_running_stats
        momentum = 0.0 if module.momentum is None else module.momentum
        if moves:
            module.num_batches_tracked.add_(1)
            momentum = 1.0 / float(module.num_batches_tracked) if module.momentum is None else momentum
        mean, variance = parts.get("running_mean"), parts.get("running_var")
        kept = (mean, variance) if not module.training or module.track_running_stats else (None, None)
        batch = module.training or mean is None
        return F.batch_norm(inputs, *kept, parts.get("weight"), parts.get("bias"), batch, momentum, module.eps)

    def weighed(self, module: Any, arguments: Arguments, weigh: Weigh, inputs: Tensor) -> Tensor:
        """Return all channels, weighed."""
        outputs: Tensor = module(inputs)
        shares = mask(weigh(arguments["num_features"]), module.num_features, outputs)
        return outputs * shares.view(-1, *[1] * (outputs.dim() - 2))


CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SHARED: dict[Any, type[SharedWeights]] = {
    nn.Linear: SharedLinear,
    nn.Conv1d: SharedConvolution,
    nn.Conv2d: SharedConvolution,
    nn.Conv3d: SharedConvolution,
    nn.BatchNorm1d: SharedBatchNorm,
    nn.BatchNorm2d: SharedBatchNorm,
    nn.BatchNorm3d: SharedBatchNorm,
}


def _convolve(module: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, padding: Any, groups: int) -> Tensor:
    convolve: Any = CONVOLUTIONS[len(module.kernel_size)]
    result: Tensor = convolve(inputs, weight, bias, module.stride, padding, module.dilation, groups)
    return result


def find_shared_weights(kind: Any, combinations: Sequence[dict[str, Any]]) -> SharedWeights | None:
    """Return how modules of a class with these arguments share their weights; None if they do not.

    Args:
        kind: The class.
        combinations: The arguments of each.
    """
    if kind not in SHARED:
        return None
    differing = {name for name in combinations[0] if any(one[name] != combinations[0][name] for one in combinations)}
    if not differing <= SHARED[kind].sizes:
        return None
    if SHARED[kind] is SharedConvolution:
        return _convolutions(combinations, differing)
    return SHARED[kind]({**combinations[0], **{name: max(one[name] for one in combinations) for name in differing}})


def _convolutions(combinations: Sequence[dict[str, Any]], differing: set[str]) -> SharedWeights | None:
    depthwise = all(one.get("groups", 1) == one["in_channels"] == one["out_channels"] for one in combinations)
    plain = all(one.get("groups", 1) == 1 for one in combinations)
    channels = {"in_channels", "out_channels", "groups"}
    if not (plain or depthwise or not differing & channels) or combinations[0].get("padding_mode", "zeros") != "zeros":
        return None
    widest = max(combinations, key=lambda one: sum(as_tuple(one["kernel_size"], 1)))
    largest = {**widest, **{name: max(one[name] for one in combinations) for name in differing & channels}}
    paddings = {(one["kernel_size"], one.get("padding", 0)) for one in combinations}
    if len(paddings) > len({one["kernel_size"] for one in combinations}):
        return None
    sharing = SharedConvolution(largest)
    if not all(_aligned(one, largest) for one in combinations):
        sharing.reason_not_differentiable = (
            "its kernels are not centred on the same points; use odd sizes with padding=size // 2"
        )
    return sharing


def _aligned(one: Arguments, largest: Arguments) -> bool:
    """Whether the centre of the largest kernel does what the smaller kernel does."""
    if isinstance(one.get("padding"), str):
        return True
    sizes = [as_tuple(each["kernel_size"], 1) for each in (one, largest)]
    dimensions = max(map(len, sizes))
    small, whole = (as_tuple(each["kernel_size"], dimensions) for each in (one, largest))
    less, more = (as_tuple(each.get("padding", 0), dimensions) for each in (one, largest))
    spread = as_tuple(one.get("dilation", 1), dimensions)
    return all(
        (wide - narrow) % 2 == 0 and high - low == step * (wide - narrow) // 2
        for wide, narrow, high, low, step in zip(whole, small, more, less, spread, strict=True)
    )


def as_tuple(value: Any, dimensions: int) -> tuple[int, ...]:
    """Return a size for each dimension."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * dimensions


def mask(sizes: Sequence[tuple[Any, Tensor]], largest: int, like: Tensor) -> Tensor:
    """Return, for each of `largest` channels, the weight of the sizes that have it."""
    places = torch.arange(largest, device=like.device)
    total = torch.zeros(largest, dtype=like.dtype, device=like.device)
    for size, share in sizes:
        total = total + share.to(like.dtype) * (places < size)
    return total
