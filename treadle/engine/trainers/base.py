"""The parent of the trainers of this door: hooks around a step."""

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from treadle.console.lines import DETAIL
from treadle.engine import dist
from treadle.engine.core import CoreOptions, EngineCore, StepPlan
from treadle.engine.hooks.base import HookBase
from treadle.engine.hooks.events import EVENT_OF, MOMENTS
from treadle.engine.hooks.hook_list import HookList
from treadle.engine.metrics import write_metrics
from treadle.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from treadle.engine.checkpointer import Checkpointer

logger = logging.getLogger(__name__)

HOME = "treadle.engine"


def core_moment(function: Callable[..., None]) -> Callable[..., None]:
    """Mark a moment that nobody has overridden: the core calls what is registered itself."""
    function.is_core_moment = True  # type: ignore[attr-defined]
    return function


class TrainerBase:
    """Runs iterations with hooks around them; a subclass says in `run_step` what one of them is.

    It assumes nothing of data or model. Where a subclass has the attributes `model`, `optimizer` and `data_loader`,
    they are trained on several processes, saved and resumed like those of any other trainer.

    Attributes:
        iter: The iteration under way, from 0; it moves on after `after_step`, and is `max_iter` after a run that came
            to its end.
        start_iter: The first iteration of the run.
        max_iter: The iteration after the last.
        failure: The error that the last run died of; None if it did not.
        evaluated_at: After how many iterations the last evaluation was; -1 before the first.
        evaluated: The names of the numbers that evaluations reported.
    """

    def __init__(self) -> None:
        _warn_misspelt(type(self))
        self.hook_list = HookList()
        self.iter = self.start_iter = self.max_iter = 0
        self.failure: BaseException | None = None
        self.evaluated_at = -1
        self.evaluated: list[str] = []
        self._core: EngineCore | None = None
        self._storage: Any = None
        self._saving: Checkpointer | None = None
        self._no_data: list[Any] = [()]

    @cached_property
    def _stand_in(self) -> "_PlaceholderModel":
        return _PlaceholderModel()

    @property
    def storage(self) -> Any:
        """The `EventStorage` of the run."""
        return self._storage if self._storage is not None else self._running_core().storage

    @property
    def core(self) -> EngineCore:
        """The core trainer that runs the loop."""
        return self._core if self._core is not None else self._running_core()

    @property
    def device(self) -> torch.device:
        """Where this process trains."""
        return self._running_core().device

    @property
    def _hooks(self) -> list[Any]:
        return list(self.hook_list)

    def _running_core(self) -> EngineCore:
        if self._core is None:
            raise ConfigError(f"this {type(self).__name__} has not begun to train; call train() first")
        return self._core

    def register_hooks(self, hooks: Iterable[Any]) -> None:
        """Add hooks and callbacks, to be called in this order at every moment; None among them is left out.

        Callbacks are those of `treadle.callbacks`, or of your own: instances, or classes to be built without
        arguments. They get the core trainer of the run, and see its events.

        Raises:
            TypeError: One of them is neither.
            ConfigError: There may be only one of its class, or it can do nothing in this door.
            CallbackError: It is the second callback of its class.
        """
        for given in hooks:
            if given is None:
                continue
            added = self.hook_list.add(given)
            if isinstance(added, HookBase):
                # A weak reference, so that hook and trainer do not keep each other alive.
                added.attach(weakref.proxy(self))
            if self._core is not None and self._core.is_running:
                self._core.callback_handler.add_callbacks(self.hook_list.late_entries(added))

    def train(self, start_iter: int, max_iter: int) -> Any:
        """Run the iterations from `start_iter` up to `max_iter`.

        It can be called again: `train(10, 20)` after `train(0, 10)` continues where that ended, in the data too. With a
        `Checkpointer` the run has a folder, and one that was begun there resumes from its newest checkpoint.

        Raises:
            CheckpointError: The folder holds a run that has come to another iteration than `start_iter`.
        """
        self.start_iter, self.max_iter, self.iter = start_iter, max_iter, start_iter
        if start_iter >= max_iter:
            logger.info("nothing to do: iteration %d of %d is reached", start_iter, max_iter)
            return
        self._run(start_iter, max_iter, resume=self._is_at_checkpoint(start_iter))
        self.core.this_run.leave_after_end()

    def save_with(self, checkpointer: "Checkpointer") -> None:
        """Have the run saved in the folder of `checkpointer`; its other things are saved with it.

        Raises:
            ConfigError: The run is saved in another folder already, or trains another model.
        """
        before, model = self._saving, getattr(self, "model", None)
        if before is not None and before.save_dir.resolve() != checkpointer.save_dir.resolve():
            raise ConfigError(
                f"Checkpointer(save_dir={str(checkpointer.save_dir)!r}): this {type(self).__name__} saves in "
                f"{str(before.save_dir)!r} already; use its checkpointer, or that folder"
            )
        if isinstance(model, nn.Module) and not _is_same_model(model, checkpointer.model):
            raise ConfigError(
                f"Checkpointer was given another model than the {type(self).__name__} trains; give both the same"
            )
        self._saving = before or checkpointer

    @property
    def has_begun(self) -> bool:
        """Whether it has trained, or does."""
        return self._core is not None

    def _is_at_checkpoint(self, start_iter: int) -> bool:
        """Whether the run continues from the newest checkpoint in its folder."""
        if self._saving is None or not self._saving.has_folder:
            return False
        newest = dist.broadcast_from_main(self._saving.iteration_to_resume())
        in_memory = self._core is not None and self.failure is None and self._core.progress.step == start_iter
        if not newest or (start_iter and in_memory):
            return False
        if newest != start_iter:
            raise CheckpointError(
                f"{self._saving.save_dir} already holds a run, at iteration {newest}; to resume it, call "
                f"checkpointer.resume_or_load(resume=True) and train(trainer.iter + 1, ...), or choose another folder"
            )
        return True

    def _run(self, start_iter: int, max_iter: int, *, resume: bool = False) -> None:
        plan = self._plan()
        core = EngineCore(self, plan, self._keep_sharding(plan, self._options()))
        core.track(**self._besides(plan))
        carried = self._previous_state(start_iter, core)
        self._core, self.failure, self.evaluated_at = core, None, -1
        self._storage = core.storage
        self._bind(core)
        logger.info("training from iteration %d to %d", start_iter, max_iter, extra=DETAIL)
        try:
            core.run(start_iter, max_iter, resume=resume and carried is None, carried=carried)
        except BaseException as error:
            self.failure = error
            if isinstance(error, Exception):
                notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
                logger.error("training failed in iteration %d: %s: %s%s", self.iter, type(error).__name__, error, notes)
            raise

    def _keep_sharding(self, plan: StepPlan, options: CoreOptions) -> CoreOptions:
        """Return the options for a model that an earlier run of this trainer may have sharded over the processes."""
        last = self._core
        if last is None or not last.parallel.prepared or last.model is not plan.model:
            return options
        return replace(options, parallel=last.parallel) if last.optimizer is plan.optimizer else options

    def _previous_state(self, start_iter: int, core: EngineCore) -> dict[str, Any] | None:
        """Return the state that the last run ended in, if this one continues from there with the same parts."""
        last = self._core
        if last is None or self.failure is not None or start_iter == 0 or last.progress.step != start_iter:
            return None
        same = last.model is core.model and last.optimizer is core.optimizer and last.plan.loader is core.plan.loader
        return last.carry() if same else None

    def _save_config(self) -> None:
        """Write the config of the run into its folder; a trainer without a config has none."""

    def _bind(self, core: EngineCore) -> None:
        """Let whoever makes the steps know the loop they are made in."""

    def _options(self) -> CoreOptions:
        saving = self._saving
        if saving is None or not saving.has_folder:
            return CoreOptions()
        return CoreOptions(run_dir=os.fspath(saving.save_dir), max_to_keep=saving.max_to_keep)

    def _besides(self, plan: StepPlan) -> dict[str, Any]:
        """Return what the checkpointer is to save that is no part of the run by itself."""
        known = [plan.model, plan.optimizer, getattr(self, "lr_scheduler", None)]
        known += [getattr(hook, "own_scheduler", None) for hook in self.hook_list]
        given = {} if self._saving is None else self._saving.checkpointables
        return {
            f"checkpointer.{name}": value
            for name, value in given.items()
            if not any(value is one for one in known if one is not None)
        }

    def _plan(self) -> StepPlan:
        """Return what one iteration is made of: by default the `run_step` of the subclass, whatever it does."""
        model, optimizer = self._parts()
        loader = getattr(self, "data_loader", None)
        face: TrainerBase = weakref.proxy(self)
        return StepPlan(
            model=model,
            call=model,
            optimizer=optimizer,
            loader=self._no_data if loader is None else loader,
            accumulation=1,
            get_batch=lambda batch: batch,
            foreign=lambda place: face.run_step(),
        )

    def _parts(self) -> tuple[nn.Module, Optimizer]:
        """Return what is trained: the model and the optimizer of the trainer, those that are saved, or stand-ins."""
        own: Any = getattr(self, "model", None)
        saved = () if self._saving is None else self._saving.checkpointables.values()
        given = getattr(self, "optimizer", None) or next((one for one in saved if isinstance(one, Optimizer)), None)
        if isinstance(own, nn.Module) or self._saving is None:
            return own if isinstance(own, nn.Module) else self._stand_in, given or self._stand_in.optimizer
        # Its weights are saved as those of the run, whoever updates them.
        model = self._saving.model
        return model, given or torch.optim.SGD(model.parameters(), lr=0.0)

    # The moments --------------------------------------------------------------------------------------------

    @core_moment
    def before_train(self) -> None:
        """Call what is registered before the first iteration."""
        self._running_core().callbacks.start()

    @core_moment
    def before_step(self) -> None:
        """Call what is registered before an iteration."""
        self._tell("before_step")

    @core_moment
    def after_backward(self) -> None:
        """Call what is registered when the gradient is complete; a `run_step` of your own says so by it."""
        self._tell("after_backward")

    @core_moment
    def after_step(self) -> None:
        """Call what is registered after an iteration."""
        self._tell("after_step")

    @core_moment
    def after_train(self) -> None:
        """Call what is registered after the last iteration, however it ended."""
        if self.failure is None:
            self._tell("after_train")
        else:
            self.hook_list.end_all()

    def _tell(self, moment: str) -> None:
        core = self._running_core()
        core.callback_handler.call_event(EVENT_OF[moment], core)

    def run_step(self, *args: Any, **kwargs: Any) -> None:
        """Do one iteration."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a step is; define run_step()")

    def request_stop(self, reason: str = "a hook asked to stop", *, for_good: bool = False) -> None:
        """End the run after the current step, in good order, on every process.

        Args:
            reason: Why, in words.
            for_good: Whether the run is over by that; else it resumes when it is started again.
        """
        self._running_core().request_stop(reason, for_good=for_good)

    write_metrics: Callable[..., None] = staticmethod(write_metrics)


def _warn_misspelt(kind: type) -> None:
    """Say which methods of a subclass are named nearly like one that it could override, and would not be called."""
    verbs = {name for parent in kind.__mro__ if parent.__module__.startswith(HOME) for name in vars(parent)}
    for name in {name for parent in kind.__mro__ for name in vars(parent)} - verbs - set(dir(object)):
        if name.startswith("_") or not callable(getattr(kind, name, None)):
            continue
        near = get_close_matches(name, verbs, n=1, cutoff=0.85)
        if near:
            logger.warning("nothing calls %s.%s; did you mean %r?", kind.__name__, name, near[0])
        elif name.startswith(("before_", "after_")):
            logger.warning("the loop calls no %s.%s; it calls %s", kind.__name__, name, list(MOMENTS))


def _is_same_model(one: nn.Module, other: nn.Module) -> bool:
    """Whether two are the same, but for what is wrapped around them."""
    return one is other or getattr(one, "module", None) is other or getattr(other, "module", None) is one


class _PlaceholderModel(nn.Module):
    """What the core trains where a user's step has no model or optimizer that it could see."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
