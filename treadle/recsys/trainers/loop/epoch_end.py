"""What happens around the epochs of a `fit`: evaluation, early stopping, the best model, what is printed."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.config.arguments import accepted
from treadle.errors import StopTrainingError
from treadle.recsys.trainers.abstract_trainer import is_overridden
from treadle.recsys.trainers.loop.core import SAVE_SECONDS, Losses, RecsysCore
from treadle.recsys.trainers.results import (
    check_validation,
    decoded_metrics,
    dict2str,
    early_stopping,
    encoded_metrics,
)

if TYPE_CHECKING:
    from treadle.recsys.trainers.trainer import Trainer


class BestState:
    """Where a trainer stands, as a part of the run's checkpoints.

    Args:
        trainer: The trainer, whose attributes these are.
    """

    NAMES = ("best_valid_score", "cur_step", "train_loss_dict")

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return best score and result, evaluations since then, and the losses of epochs."""
        own = {name: getattr(self._trainer, name) for name in self.NAMES}
        return {**own, "best_valid_result": encoded_metrics(self._trainer.best_valid_result)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the attributes of the trainer."""
        for name in self.NAMES:
            setattr(self._trainer, name, state[name])
        self._trainer.train_loss_dict = dict(state["train_loss_dict"])
        self._trainer.best_valid_result = decoded_metrics(state["best_valid_result"])


class EpochEnd:
    """Acts at the end of each epoch of a `fit`.

    Args:
        trainer: The trainer.
        base: The class whose `_save_checkpoint` may be called less often than after each epoch.
        valid_data: What to evaluate on; None trains without.
        saved: Whether to keep the model in a file.
        show_progress: Whether to show how far an evaluation is.
        callback_fn: Called after each evaluation.
    """

    def __init__(
        self,
        trainer: "Trainer",
        base: type,
        *,
        valid_data: Any,
        saved: bool,
        show_progress: bool,
        callback_fn: Callable[[int, Any], Any] | None,
    ) -> None:
        self._trainer, self._valid_data = trainer, valid_data
        self._saved, self._show_progress, self._callback_fn = saved, show_progress, callback_fn
        self._saves_always = is_overridden(trainer, "_save_checkpoint", base)
        self._saved_time = time.monotonic()
        self._unsaved_epoch: int | None = None
        self.core: RecsysCore | None = None

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self._trainer.eval_step > 0 and bool(self._valid_data)

    def epoch_end(self, epoch: int) -> None:
        """Report the loss of an epoch; evaluate if it is time, judge, save, and stop if it is no use to go on."""
        assert self.core is not None
        if not self.core.is_evaluated_late:
            self._report_loss(epoch, self.core.losses, self.core.seconds)
            self._trainer._after_epoch(epoch, saved=self._saved)
        if not self.evaluates:
            self._save_without_evaluation(epoch)
            if self._callback_fn is not None:
                self._callback_fn(epoch, None)
        elif self._trainer._is_evaluated(epoch) or self.core.is_at_last_step:
            self._evaluate(epoch)

    def finish(self) -> None:
        """Keep the last model, if there was no evaluation to say which is the best."""
        if self._unsaved_epoch is None:
            return
        if self._saved:
            self._save(self._unsaved_epoch)
        else:
            self._trainer._remember_best()

    def _report_loss(self, epoch: int, losses: Losses | None, seconds: float) -> None:
        trainer, core = self._trainer, self.core
        assert core is not None
        known: Losses = 0.0 if losses is None else losses
        total = sum(known) if isinstance(known, tuple) else known
        trainer.train_loss_dict[epoch] = total
        core.run_history.update_metric("train_loss_sum", total)
        if isinstance(known, tuple):
            for number, part in enumerate(known, start=1):
                core.run_history.update_metric(f"train_loss{number}", part)
        core.print(trainer._generate_train_loss_output(epoch, 0.0, seconds, known))

    def _save_without_evaluation(self, epoch: int) -> None:
        """Save the newest model: at once if somebody else saves it, else now and then; the last is kept at the end."""
        self._unsaved_epoch = epoch
        if not self._saved:
            return
        assert self.core is not None
        now = time.monotonic()
        due = self._saves_always or bool(self.core.processes.share(now - self._saved_time >= SAVE_SECONDS))
        if due:
            self._saved_time = now
            self._save(epoch)

    def _save(self, epoch: int) -> None:
        self._unsaved_epoch = None
        save = self._trainer._save_checkpoint
        save(epoch, **accepted(save, verbose=True))
        self._trainer._best = None

    def _evaluate(self, epoch: int) -> None:
        trainer, core = self._trainer, self.core
        assert core is not None
        began = time.perf_counter()
        check = trainer._valid_epoch
        with core.evaluating():
            found = check(self._valid_data, **accepted(check, show_progress=self._show_progress))
        score, result = check_validation(found, f"{type(trainer).__name__}._valid_epoch")
        seconds = time.perf_counter() - began
        judgement = early_stopping(
            score, trainer.best_valid_score, trainer.cur_step, trainer.stopping_step, bool(trainer.valid_metric_bigger)
        )
        trainer.best_valid_score, trainer.cur_step, stop, better = judgement
        core.print(f"epoch {epoch} evaluating [time: {seconds:.2f}s, valid_score: {score:f}]")
        core.print(f"valid result: \n{dict2str(result)}")
        core.run_history.update_metric("valid_score", score)
        for name, value in getattr(result, "exact", result).items():
            core.run_history.update_metric(f"valid_{name}", value)
        core.move_schedule()
        if better:
            trainer.best_valid_result = result
            self._keep_best(epoch)
        if self._callback_fn is not None:
            self._callback_fn(epoch, score)
        if stop:
            best = epoch - trainer.cur_step * trainer.eval_step
            raise StopTrainingError(f"Finished training, best eval result in epoch {best}")

    def _keep_best(self, epoch: int) -> None:
        if self._saved:
            self._save(epoch)
        else:
            self._trainer._remember_best()
