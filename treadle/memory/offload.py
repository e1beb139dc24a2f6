"""The state of an optimizer in the memory of the host, brought to the device part by part for each update."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.optim.fused import state_to_weights

KNOWN: tuple[type[Optimizer], ...] = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.SGD,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)
"""Optimizers whose update of a weight depends on that weight, its gradient and its own state alone."""
PART_BYTES = 64 * 2**20
"""About how many bytes of weights are updated at once; their state on the device is a few times that."""


def check_offload(offload: Any, optimizers: Iterable[Optimizer], execution: Any) -> None:
    """Refuse to offload what cannot be offloaded.

    Raises:
        ConfigError: An optimizer is not known to update each weight by itself, or steps are to be recorded.
    """
    if type(offload) is not bool:
        raise ConfigError(f"offload_optimizer={offload!r} must be True or False")
    if not offload:
        return
    if execution == "graph":
        raise ConfigError(
            "offload_optimizer=True brings state from the host in every step, which execution='graph' cannot record; "
            "use execution='eager' or 'compile'"
        )
    for optimizer in optimizers:
        if not is_elementwise(optimizer):
            raise ConfigError(
                f"offload_optimizer=True updates the weights part by part, which is not known to be right for "
                f"{type(optimizer).__name__}; use one of {[kind.__name__ for kind in KNOWN]}"
            )


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether an optimizer is known to update each number of a weight by itself."""
    return inspect.unwrap(type(optimizer).step) in {inspect.unwrap(kind.step) for kind in KNOWN}


@dataclass(eq=False)
class _Part:
    """Some weights of one group, that are updated at once, with what of their state is on its way or lent.

    Memory on the device is taken and given back on our own stream, which waits for the update in between. So it can be
    used for the next part without the host waiting for anything, and no more of it is needed.
    """

    group: dict[str, Any]
    weights: list[nn.Parameter]
    arriving: list[tuple[dict[str, Any], str, Tensor]] = field(default_factory=list)
    lent: set[int] = field(default_factory=set)
    arrived: Any = None


class OffloadedState:
    """While entered, the state of an optimizer lives on the host, in pinned memory where there is a GPU.

    An update goes through the weights in parts: the state of a part is brought to the device, the optimizer updates
    its weights, the state goes back; meanwhile the next part is on its way. The numbers are those of an update made
    at once. Whoever calls `optimizer.step()` gets this, a loop of the user's too.

    Args:
        optimizer: The optimizer; its weights are on their device.
        part_bytes: About how many bytes of weights make a part.
    """

    def __init__(self, optimizer: Optimizer, *, part_bytes: int = PART_BYTES) -> None:
        self.optimizer = optimizer
        self._part_bytes = part_bytes
        self._active = self._inside = False
        self._handles: list[Any] = []
        self._streams: dict[torch.device, Any] = {}
        self._loading: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        """Bring the state to the host, and put ourselves before `step`."""
        optimizer = self.optimizer
        self._active = True
        for parameter, state in optimizer.state.items():
            for name in self._large(parameter, state):
                state[name] = self._on_host(state[name], None, pin=parameter.is_cuda, wait=True)
        self._handles = [
            optimizer.register_state_dict_pre_hook(lambda _: self.wait()),
            optimizer.register_load_state_dict_pre_hook(self._take_saved),
            optimizer.register_load_state_dict_post_hook(self._keep_loaded),
        ]
        self._step_before = vars(optimizer).get("step")
        step = optimizer.step

        @wraps(step)
        def offloaded_step(*args: Any, **kwargs: Any) -> Any:
            return self.stride(lambda: step(*args, **kwargs))

        self._own_step = optimizer.step = offloaded_step  # type: ignore[method-assign]
        return self

    def __exit__(self, *exception: Any) -> None:
        """Bring the state back to the weights, and leave."""
        optimizer: Any = self.optimizer
        self.wait()
        self._active = False
        for handle in self._handles:
            handle.remove()
        state_to_weights(optimizer)
        # Where a scheduler has put something around our step, that stays, and does nothing any more.
        if vars(optimizer).get("step") is self._own_step:
            if self._step_before is None:
                del optimizer.step
            else:
                optimizer.step = self._step_before

    # An update ----------------------------------------------------------------------------------------------

    def stride(self, update: Callable[[], Any]) -> Any:
        """Call `update` for each part of the weights, with the optimizer holding that part and no other."""
        if self._inside or not self._active:
            return update()
        result = None
        with self._hooks_once():
            parts = self._parts()
            for place, part in enumerate(parts):
                if place == 0:
                    self._send(part)
                if place + 1 < len(parts):
                    self._send(parts[place + 1])
                self._receive(part)
                with self._holding(part):
                    result = update()
                self._return(part)
        return result

    @contextmanager
    def _hooks_once(self) -> Iterator[None]:
        """Run the hooks of the optimizer once, and not for each part."""
        optimizer: Any = self.optimizer
        before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        for hook in list(before.values()):
            hook(optimizer, (), {})
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = type(before)(), type(after)()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = before, after
        for hook in list(after.values()):
            hook(optimizer, (), {})

    def _parts(self) -> list[_Part]:
        parts: list[_Part] = []
        for group in self.optimizer.param_groups:
            room = -1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                size = parameter.numel() * parameter.element_size()
                if size > room:
                    parts.append(_Part(group, []))
                    room = max(self._part_bytes, size)
                room -= size
                parts[-1].weights.append(parameter)
        return parts

    def _send(self, part: _Part) -> None:
        """Begin to bring the state of a part to the device."""
        stream = self._copy_stream(part)
        with torch.cuda.stream(stream):
            for parameter in part.weights:
                state = self.optimizer.state.get(parameter, {})
                for name in self._large(parameter, state):
                    copy = torch.empty_like(state[name], device=parameter.device, pin_memory=False)
                    copy.copy_(state[name], non_blocking=True)
                    part.arriving.append((state, name, copy))
            part.arrived = None if stream is None else stream.record_event()

    def _receive(self, part: _Part) -> None:
        """Give the optimizer the state of a part on the device, once it is there; the host does not wait for it."""
        if part.arrived is not None:
            torch.cuda.current_stream(part.weights[0].device).wait_event(part.arrived)
        for place, (state, name, copy) in enumerate(part.arriving):
            part.arriving[place] = (state, name, state[name])
            part.lent.add(id(copy))
            state[name] = copy

    @contextmanager
    def _holding(self, part: _Part) -> Iterator[None]:
        """Let the optimizer hold the weights of a part only."""
        optimizer = self.optimizer
        groups, weights = optimizer.param_groups, part.group["params"]
        optimizer.param_groups, part.group["params"] = [part.group], part.weights
        try:
            yield
        finally:
            optimizer.param_groups, part.group["params"] = groups, weights

    def _return(self, part: _Part) -> None:
        """Begin to bring the state of a part back to the host."""
        homes = {(id(state), name): home for state, name, home in part.arriving}
        part.arriving = []
        stream, made = self._copy_stream(part), []
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for parameter in part.weights:
                state = self.optimizer.state.get(parameter, {})
                for name in self._large(parameter, state):
                    value = state[name]
                    if id(value) not in part.lent:
                        made.append(value)
                    home = homes.get((id(state), name))
                    state[name] = self._on_host(value, home, pin=parameter.is_cuda, wait=stream is None)
        if stream is not None and made:
            # State that the optimizer has just made lies in memory of the stream that computes. That stream waits, in
            # the first update only, until it is copied: then the next part can have this memory, and the host goes on.
            torch.cuda.current_stream(stream.device).wait_stream(stream)

    def _copy_stream(self, part: _Part) -> Any:
        device = part.weights[0].device
        if device.type != "cuda":
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    # Host and device ----------------------------------------------------------------------------------------

    def _large(self, parameter: Tensor, state: dict[str, Any]) -> list[str]:
        """Return the names of what is worth moving: counters stay where the optimizer wants them."""
        return [name for name, value in state.items() if isinstance(value, Tensor) and value.dim() > 0]

    @staticmethod
    def _on_host(value: Tensor, home: Tensor | None, *, pin: bool, wait: bool) -> Tensor:
        """Return `value` on the host: in `home`, or in new memory."""
        if home is None or home.shape != value.shape or home.dtype != value.dtype:
            # Pinned memory is what can be copied while the device works. Strides are kept: a fused optimizer goes
            # through weights and state as they lie in memory.
            home = torch.empty_like(value, device="cpu", pin_memory=pin)
        return home.copy_(value.detach(), non_blocking=not wait)

    def wait(self) -> None:
        """Wait until all state is on the host, before somebody reads it there."""
        for stream in self._streams.values():
            stream.synchronize()

    def _take_saved(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Keep a state that is loaded away from torch, which would bring all of it to the device."""
        self._loading = state
        return {**state, "state": {}}

    def _keep_loaded(self, optimizer: Optimizer) -> None:
        """Give the optimizer the state that is loaded, on the host."""
        assert self._loading is not None
        saved, self._loading = self._loading, None
        self.wait()
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        holders = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
        for number, (group, parameter) in zip(numbers, holders, strict=True):
            if number in saved["state"]:
                entries = saved["state"][number].items()
                optimizer.state[parameter] = {
                    name: self._loaded(name, value, group, parameter) for name, value in entries
                }

    def _loaded(self, name: str, value: Any, group: dict[str, Any], parameter: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        if name == "step" or not value.dim():
            on_device = group.get("fused") or group.get("capturable")
            return value.to(parameter.device) if on_device else value
        dtype = parameter.dtype if value.is_floating_point() else value.dtype
        # A file does not say how a tensor lay in memory; its weight does.
        like = parameter.detach() if parameter.shape == value.shape else value
        home = torch.empty_like(like, dtype=dtype, device="cpu", pin_memory=parameter.is_cuda)
        return home.copy_(value)
