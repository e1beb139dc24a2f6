"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from treadle.errors import ConfigError, did_you_mean, some_of

SOME = 8
"""How many names a message lists."""

AUTO = "auto"
"""Stands for the blocks that a model is a row of."""

Block = tuple[str, nn.Module]


class ActivationCheckpointing:
    """While entered, the blocks of a model keep their inputs only, and compute the rest again for the gradients.

    The results are those of a model that keeps everything, bit for bit: random numbers are drawn again as they
    were, and buffers move once. Names of weights stay, and so do the blocks themselves.

    Args:
        model: The model.
        patterns: For the names or the classes of modules, as a shell has them for files: "blocks.*". A block inside
            of another that matches is computed again with it. "auto" takes the blocks that the model is a row of.

    Raises:
        ConfigError: A pattern matches no module that is called, or the model has no row of blocks.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str] = ()) -> None:
        if isinstance(patterns, str) and patterns != AUTO:
            raise ConfigError(
                f"activation_checkpointing={patterns!r} must be a list of patterns; write [{patterns!r}], or 'auto' "
                "for the blocks that the model is a row of"
            )
        self.patterns = (AUTO,) if patterns == AUTO else tuple(patterns)
        if self.patterns == (AUTO,):
            self.blocks = require_blocks(model, setting="activation_checkpointing")
        else:
            self.blocks = matching_blocks(model, self.patterns, setting="activation_checkpointing")
        self._before: list[tuple[nn.Module, Any]] = []

    def __enter__(self) -> Self:
        """Have the blocks computed again."""
        for _, module in self.blocks:
            self._before.append((module, vars(module).get("forward")))
            recompute(module)
        return self

    def __exit__(self, *exception: Any) -> None:
        """Have the blocks keep everything, as before."""
        while self._before:
            module, forward = self._before.pop()
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def matching_blocks(model: nn.Module, patterns: Sequence[str], *, setting: str) -> list[Block]:
    """Return the outermost modules of `model` that match one of `patterns`, by name or class, with their names.

    Args:
        model: The model.
        patterns: The patterns.
        setting: What they were given to, for messages.

    Raises:
        ConfigError: A pattern matches no module, or only lists of modules, which nobody calls.
    """
    named = _named(model)
    for pattern in patterns:
        _require_match(model, named, pattern, setting)
    return matching_any(model, patterns)


def matching_any(model: nn.Module, patterns: Sequence[str]) -> list[Block]:
    """Return the outermost modules of `model` that match one of `patterns`, by name or class, with their names."""
    found: list[Block] = []
    for block in _named(model):
        inside = any(block[0].startswith(f"{outer}.") for outer, _ in found)
        if not inside and _is_called(block[1]) and any(_matches(block, pattern) for pattern in patterns):
            found.append(block)
    return found


def repeated_blocks(model: nn.Module) -> list[Block]:
    """Return the blocks that a model is a row of, with their names: the entries of its outermost lists of modules.

    Where the model says which of its modules belong together (`_no_split_modules`, as models of transformers do), only
    those.
    """
    named = _named(model)
    lists = [name for name, module in named if isinstance(module, nn.ModuleList)]
    outermost = {name for name in lists if not any(name.startswith(f"{other}.") for other in lists)}
    found = [block for block in named if block[0].rpartition(".")[0] in outermost]
    said = getattr(model, "_no_split_modules", None) or ()
    return [block for block in found if type(block[1]).__name__ in said] or found


def require_blocks(model: nn.Module, *, setting: str) -> list[Block]:
    """Return the blocks that a model is a row of, with their names.

    Args:
        model: The model.
        setting: What asks for them, for messages.

    Raises:
        ConfigError: It is no row of blocks.
    """
    found = repeated_blocks(model)
    if not found:
        raise ConfigError(
            f"{setting}='auto': {type(model).__name__} has no nn.ModuleList whose entries are its blocks; name "
            "modules, as ['layer.*']"
        )
    return found


def _named(model: nn.Module) -> list[Block]:
    """Return the modules inside of `model` by name; what `torch.compile` put around it does not show in them."""
    return [(name, module) for name, module in getattr(model, "_orig_mod", model).named_modules() if name]


def _require_match(model: nn.Module, named: list[Block], pattern: str, setting: str) -> None:
    own = [block for block in named if _matches(block, pattern)]
    if any(_is_called(module) for _, module in own):
        return
    if own:
        name, module = own[0]
        raise ConfigError(
            f"{setting}: {pattern!r} matches {name}, a {type(module).__name__}, which is never called itself; "
            f"write '{name}.*'"
        )
    candidates = [candidate for block in named for candidate in (*_block_names(block), f"{block[0]}.*")]
    near = did_you_mean(pattern, dict.fromkeys(candidates)) or f"; it has {some_of([name for name, _ in named], SOME)}"
    raise ConfigError(f"{setting}: {pattern!r} matches no module of {type(model).__name__}{near}")


def _matches(block: Block, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in _block_names(block))


def _block_names(block: Block) -> tuple[str, str]:
    return block[0], type(block[1]).__name__


def _is_called(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def recompute(module: nn.Module) -> None:
    """Have `module` keep its inputs only, and compute the rest again when gradients are calculated."""
    module.forward = Recomputed(module)


class Recomputed:
    """The forward pass of a module, done again in the backward pass.

    Args:
        module: The module. A copy of it gets a forward pass of its own, and does not call the original's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own = vars(module).get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        args = tuple(map(_unless_cache, args))
        kwargs = {name: _unless_cache(value) for name, value in kwargs.items()}
        # Bound beforehand, because `checkpoint` has keywords of its own.
        function = partial(self._forward, **kwargs) if kwargs else self._forward
        if torch.compiler.is_compiling() or not _moving_buffers(self._module):
            return checkpoint(function, *args, use_reentrant=False)
        return checkpoint(function, *args, use_reentrant=False, context_fn=self._contexts)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        own = self._own
        return type(self._module).forward(self._module, *args, **kwargs) if own is None else own(*args, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), buffers_set_aside(self._module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the forward pass of the module's copy."""
        copied = Recomputed.__new__(Recomputed)
        memo[id(self)] = copied
        # The copy of the module is being made: it is in the memo before its attributes are copied.
        copied._module = memo.get(id(self._module), self._module)
        copied._own = deepcopy(self._own, memo)
        return copied


def _unless_cache(value: Any) -> Any:
    """Return an argument, but no cache of keys and values: the second pass would put its own beside the first's."""
    return None if hasattr(value, "get_seq_length") else value


@contextmanager
def buffers_set_aside(module: nn.Module) -> Iterator[None]:
    """Let what runs inside of the block work on copies of the buffers, such as running means, which moved already."""
    kept = list(_moving_buffers(module))
    for home, name, buffer in kept:
        home[name] = buffer.clone()
    try:
        yield
    finally:
        for home, name, buffer in kept:
            home[name] = buffer


def _moving_buffers(module: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    # A sparse buffer is a constant, such as the edges of a graph, and may be large.
    return [
        (part._buffers, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and buffer.layout is torch.strided
    ]
