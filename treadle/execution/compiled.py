"""Steps whose loss is compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from treadle.errors import ConfigError, did_you_mean
from treadle.memory.activation_checkpointing import AUTO, require_blocks

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
RECORDING_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs of their own."""


@dataclass(frozen=True, kw_only=True)
class Compile:
    """How `torch.compile` is used.

    Args:
        mode: Its mode; None is its default.
        modules: Patterns of module names, such as "blocks.*", to compile one by one; equal blocks then share one
            compilation. "auto" takes the blocks that the model is a row of. None compiles the whole loss verb.
        fullgraph: Whether a part that cannot be compiled is an error.
        options: Its options, instead of a mode.
    """

    mode: str | None = None
    modules: str | Sequence[str] | None = None
    fullgraph: bool = False
    options: dict[str, Any] | None = field(default=None)

    def __post_init__(self) -> None:
        if self.mode is not None and self.options is not None:
            raise ConfigError(f"Compile: mode={self.mode!r} and options= are both given; a mode is a set of options")
        # Another version of torch may have more modes; asking it takes seconds, so the known ones are not looked up.
        if self.mode is None or self.mode in MODES or self.mode in _modes_of_torch():
            return
        near = did_you_mean(str(self.mode), MODES) or f"; use one of {MODES}"
        raise ConfigError(f"compile: the mode {self.mode!r} is unknown{near}")

    @classmethod
    def of(cls, value: "bool | str | Compile") -> "Compile | None":
        """Return what the argument `compile` of a trainer means; a string is a mode.

        >>> Compile.of("max-autotune-no-cudagraphs").mode
        'max-autotune-no-cudagraphs'
        """
        if isinstance(value, Compile):
            return value
        if isinstance(value, str):
            return cls(mode=value)
        if not isinstance(value, bool):
            raise ConfigError(f"compile={value!r}; pass True, a mode of torch.compile, or treadle.Compile(...)")
        return cls() if value else None

    def describe(self) -> str:
        """Return the settings in words, for the record of a run."""
        parts = [self.mode or "default"]
        if self.modules is not None:
            parts.append(f"modules {self.modules if isinstance(self.modules, str) else ', '.join(self.modules)}")
        return ", ".join(parts)

    def apply(self, function: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
        """Return `function`, compiled for the device of a model and for the shapes it is called with and no others."""
        compiled: Callable[..., Any] = torch.compile(function, **self.arguments(model))
        return compiled

    def arguments(self, model: nn.Module) -> dict[str, Any]:
        """Return the arguments of `torch.compile` for where the weights of a model are."""
        common = {"fullgraph": self.fullgraph, "dynamic": False}
        if any(weight.device.type != "cpu" for weight in model.parameters()):
            return {**common, "mode": self.mode, "options": self.options}
        from treadle.execution.cpu_compiler import CpuCompiler

        options = self.options if self.mode is None else _modes_of_torch()[self.mode]
        return {**common, "backend": CpuCompiler(options or {})}


def _modes_of_torch() -> dict[str, dict[str, Any]]:
    """Return the options that each mode of this version of torch stands for."""
    from torch._inductor import list_mode_options

    return list_mode_options(dynamic=False)


class CompiledVerbs:
    """The loss verbs of a trainer, each compiled the first time it is asked for.

    Args:
        how: The settings.
        model: Whose modules are compiled in place, if the settings name some.

    Attributes:
        model: The same.
    """

    def __init__(self, how: Compile, model: nn.Module) -> None:
        self._how = how
        self.model = model
        self._verbs: dict[Any, Callable[..., Any]] = {}
        self._whole = how.modules is None
        if how.modules is not None:
            for module in matching(model, how.modules):
                if module._compiled_call_impl is None:
                    _compile_in_place(module, how)

    def of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """Return what to call instead of `verb`."""
        if not self._whole:
            return verb
        # A bound method is a new object each time it is looked up.
        key = getattr(verb, "__func__", verb)
        if key not in self._verbs:
            self._verbs[key] = self._how.apply(verb, self.model)
        return self._verbs[key]


def _compile_in_place(module: nn.Module, how: Compile) -> None:
    """Have a module compiled where it is called.

    The compiler passes over what torch itself wrote, and with it over a container such as `nn.Sequential` that has
    nothing else in it. A function of ours around it is looked into; each has code of its own, for of one it would keep
    but a few versions.
    """
    if not type(module).forward.__module__.startswith("torch."):
        module.compile(**how.arguments(module))
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    call.__code__ = call.__code__.replace(co_name=f"call_{type(module).__name__}")
    module._compiled_call_impl = how.apply(call, module)


def matching(model: nn.Module, patterns: str | Sequence[str]) -> list[nn.Module]:
    """Return the modules of `model` whose names match one of `patterns`, or its blocks for "auto".

    Raises:
        ConfigError: A pattern matches none, or the model is no row of blocks.

    >>> [type(module).__name__ for module in matching(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), "1")]
    ['ReLU']
    """
    if patterns == AUTO:
        return [block for _, block in require_blocks(model, setting="compile: modules")]
    names = dict(model.named_modules())
    found: dict[str, nn.Module] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        own = {name: module for name, module in names.items() if name and fnmatchcase(name, pattern)}
        if not own:
            raise ConfigError(f"compile: no module is called {pattern!r}{did_you_mean(pattern, names)}")
        found |= own
    # What lies inside of a module that is compiled is compiled with it.
    return [module for name, module in found.items() if not any(name.startswith(f"{outer}.") for outer in found)]
