"""The step of eager mode: forward, backward, clip, update."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from treadle.config.arguments import known_names
from treadle.engine.batch_arguments import bind_placement
from treadle.engine.core import CoreOptions, EngineCore, StepPlan
from treadle.engine.hooks.events import EVENT_OF
from treadle.engine.trainers.base import TrainerBase, core_moment
from treadle.errors import ConfigError

Step = Callable[[int], None]


def core_step(function: Callable[..., None]) -> Callable[..., None]:
    """Mark a `run_step` that is the core's own, which the loop need not call."""
    function.is_core_step = True  # type: ignore[attr-defined]
    return function


def is_core_step(trainer: Any) -> bool:
    """Whether nobody has overridden the `run_step` of `trainer`."""
    return getattr(getattr(trainer.run_step, "__func__", trainer.run_step), "is_core_step", False)


class EagerTrainer(TrainerBase):
    """One iteration is one optimizer step over `grad_acc_steps` micro-batches; override `run_step` for another.

    The model is called with the arguments that `get_batch` makes of a batch and returns a dict; the values whose
    names contain "loss" are summed up, all numbers in it are reported.

    Args:
        model: What to train.
        data_loader: Where batches come from, epoch after epoch.
        optimizer: What updates the weights.
        grad_acc_steps: Micro-batches in one iteration.
    """

    def __init__(self, model: nn.Module, data_loader: Any, optimizer: Optimizer, grad_acc_steps: int = 1) -> None:
        super().__init__()
        if grad_acc_steps < 1:
            raise ConfigError(f"grad_acc_steps={grad_acc_steps} must be at least 1")
        self.model = model
        self.data_loader = data_loader
        self.optimizer = optimizer
        self.grad_acc_steps = grad_acc_steps
        self._inside: Callable[[], EngineCore | None] = lambda: None

    @property
    def _data_loader_iter(self) -> Iterator[Any]:
        """The batches of the run, for a `run_step` of your own to draw from; they are counted."""
        return self._active_core().batches

    @core_step
    def run_step(self, get_batch: Callable[..., Any] | None = None, input_placement_device: str | None = None) -> None:
        """Make one update.

        An override is called once for every micro-batch until it has stepped the optimizer; it draws its data with
        `next(self._data_loader_iter)` and reports with `self.write_metrics(losses, data_time)`. `self.iter` counts
        its micro-batches then. Gradients are averaged over the processes and clipped when it steps the optimizer.

        Args:
            get_batch: Turns a batch into the arguments of the model.
            input_placement_device: Where `get_batch` should put them.
        """
        self._active_core().own_update(bind_placement(get_batch, input_placement_device) if get_batch else None)

    @core_moment
    def after_backward(self) -> None:
        """Say, in a `run_step` of your own, that the gradient is complete: hooks are told, those of the loop."""
        core = self._active_core()
        core.callback_handler.call_event(EVENT_OF["after_backward"], core)

    def reset_data_loader(self, data_loader_builder: Callable[[], Any]) -> None:
        """Replace the data by what `data_loader_builder()` returns, at once or, inside a run, from the next batch on.

        A run that is resumed begins with the loader its trainer was built with; reset it again before or in
        `before_train`, and it continues at the place of the other.
        """
        self.data_loader = data_loader_builder()
        core = self._inside() or self._core
        if core is not None and core.is_running:
            core.replace_data(self.data_loader)

    def adapted(self, options: CoreOptions) -> CoreOptions:
        """Return how the core runs for these steps: by default as it would."""
        return options

    def _options(self) -> CoreOptions:
        return self.adapted(super()._options())

    def _active_core(self) -> EngineCore:
        core = self._inside() or self._core
        if core is None:
            raise ConfigError(f"this {type(self).__name__} is not training; its data can be drawn in run_step only")
        return core

    def attach_core(self, core: EngineCore) -> None:
        """Take the data from `core`, the loop that this trainer makes the steps of."""
        self._inside = weakref.ref(core)

    @property
    def call(self) -> Callable[..., Any]:
        """What computes the outputs of the model."""
        return self.model

    def step_plan(self, get_batch: Callable[[Any], Any], foreign: Step | None) -> StepPlan:
        """Return what one iteration is made of."""
        return StepPlan(
            model=self.model,
            call=self.call,
            optimizer=self.optimizer,
            loader=self.data_loader,
            accumulation=self.grad_acc_steps,
            get_batch=get_batch,
            foreign=foreign,
        )

    def _plan(self) -> StepPlan:
        return self.step_plan(lambda batch: batch, None if is_core_step(self) else custom_step(self, self, lambda b: b))


def custom_step(owner: Any, face: TrainerBase, get_batch: Callable[..., Any], device: str | None = None) -> Step:
    """Return a user's `run_step` as the loop calls it: with the arguments its signature takes."""
    parameters = known_names(owner.run_step)
    offered = {"get_batch": get_batch, "input_placement_device": device}
    given = {name: value for name, value in offered.items() if name in parameters}
    same = owner is face
    owner, face = weakref.proxy(owner), weakref.proxy(face)

    def step(place: int) -> None:
        iteration = face.iter
        owner.iter = iteration * owner.grad_acc_steps + place
        try:
            owner.run_step(**given)
        finally:
            if same:
                face.iter = iteration

    return step
