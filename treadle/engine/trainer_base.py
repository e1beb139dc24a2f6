"""The parent of the trainers of this door: hooks around a step."""

import logging
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from treadle.engine._adapter import CoreOptions, EngineCore, StepPlan
from treadle.engine._hook_list import HookList
from treadle.engine.hook_base import HookBase
from treadle.engine.metrics import write_metrics
from treadle.errors import ConfigError

logger = logging.getLogger(__name__)


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
    """

    def __init__(self) -> None:
        self.hook_list = HookList()
        self.iter = self.start_iter = self.max_iter = 0
        self.failure: BaseException | None = None
        self.evaluated_at = -1
        self._core: EngineCore | None = None
        self._stand_in = _StandIn()

    @property
    def storage(self) -> Any:
        """The `EventStorage` of the run."""
        return self._running_core().storage

    @property
    def core(self) -> EngineCore:
        """The core trainer that runs the loop."""
        return self._running_core()

    @property
    def device(self) -> torch.device:
        """Where this process trains."""
        return self._running_core().device

    @property
    def _hooks(self) -> list[HookBase]:
        return list(self.hook_list)

    def _running_core(self) -> EngineCore:
        if self._core is None:
            raise ConfigError(f"this {type(self).__name__} has not begun to train; call train() first")
        return self._core

    def register_hooks(self, hooks: Iterable[HookBase | None]) -> None:
        """Add hooks, to be called in this order at every moment; None among them is left out.

        Raises:
            TypeError: One of them is no hook.
            ConfigError: There may be only one of its class.
        """
        for hook in hooks:
            if hook is None:
                continue
            self.hook_list.add(hook)
            # A weak reference, so that hook and trainer do not keep each other alive.
            hook.attach(weakref.proxy(self))

    def train(self, start_iter: int, max_iter: int) -> Any:
        """Run the iterations from `start_iter` up to `max_iter`.

        It can be called again: `train(10, 20)` after `train(0, 10)` goes on where that ended, in the data too.
        """
        self.start_iter, self.max_iter, self.iter = start_iter, max_iter, start_iter
        if start_iter >= max_iter:
            logger.info("nothing to do: iteration %d of %d is reached", start_iter, max_iter)
            return
        self._run(start_iter, max_iter)

    def _run(self, start_iter: int, max_iter: int, *, resume: bool = False) -> None:
        plan = self._plan()
        core = EngineCore(self, plan, self._spread_as_before(plan, self._options()))
        carried = self._carried_state(start_iter, core)
        self._core, self.failure, self.evaluated_at = core, None, -1
        self._bind(core)
        logger.info("training from iteration %d to %d", start_iter, max_iter)
        try:
            core.run(start_iter, max_iter, resume=resume and carried is None, carried=carried)
        except BaseException as error:
            self.failure = error
            if isinstance(error, Exception):
                notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
                logger.error("training failed in iteration %d: %s: %s%s", self.iter, type(error).__name__, error, notes)
            raise

    def _spread_as_before(self, plan: StepPlan, options: CoreOptions) -> CoreOptions:
        """Return the options for a model that an earlier run of this trainer may have spread over the processes."""
        last = self._core
        if last is None or not last.parallel.prepared or last.model is not plan.model:
            return options
        return replace(options, parallel=last.parallel) if last.optimizer is plan.optimizer else options

    def _carried_state(self, start_iter: int, core: EngineCore) -> dict[str, Any] | None:
        """Return the state that the last run ended in, if this one goes on from there with the same parts."""
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
        return CoreOptions()

    def _plan(self) -> StepPlan:
        """Return what one iteration is made of: by default the `run_step` of the subclass, whatever it does."""
        own: Any = getattr(self, "model", None)
        model = own if isinstance(own, nn.Module) else self._stand_in
        optimizer = getattr(self, "optimizer", None) or self._stand_in.optimizer
        loader = getattr(self, "data_loader", None)
        face: TrainerBase = weakref.proxy(self)
        return StepPlan(
            model=model,
            call=model,
            optimizer=optimizer,
            loader=self._stand_in.batches if loader is None else loader,
            accumulation=1,
            get_batch=lambda batch: batch,
            foreign=lambda place: face.run_step(),
        )

    # The moments --------------------------------------------------------------------------------------------

    def before_train(self) -> None:
        """Call the hooks before the first iteration."""
        self.hook_list.start()

    def before_step(self) -> None:
        """Call the hooks before an iteration."""
        self.hook_list.before_step(self._stop_for_good)

    def after_step(self) -> None:
        """Call the hooks after an iteration."""
        self.hook_list.after_step(self._stop_for_good)

    def after_train(self) -> None:
        """Call the hooks after the last iteration, however it ended."""
        self.hook_list.finish()

    def run_step(self, *args: Any, **kwargs: Any) -> None:
        """Do one iteration."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a step is; define run_step()")

    def request_stop(self, reason: str = "a hook asked to stop", *, for_good: bool = False) -> None:
        """End the run after the current step, in good order, on every process.

        Args:
            reason: Why, in words.
            for_good: Whether the run is over by that; else it goes on when it is started again.
        """
        self._running_core().request_stop(reason, for_good=for_good)

    def _stop_for_good(self, reason: str) -> None:
        """End the run as `request_stop` does, and for good: what `StopTrainingError` asks for."""
        self.request_stop(reason, for_good=True)

    write_metrics: Callable[..., None] = staticmethod(write_metrics)


class _StandIn(nn.Module):
    """What the core trains where a user's step has no model, optimizer or data that it could see."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
        self.batches: list[Any] = [()]
