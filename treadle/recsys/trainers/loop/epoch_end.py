"""What happens around the epochs of a `fit`: evaluation, early stopping, the best model, what is printed."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.callbacks.epoch_table import table_of
from treadle.callbacks.print_progress import UnshownMetrics, epoch_under_way
from treadle.config.arguments import accepted
from treadle.console.lines import clock, counted, fields, line, number
from treadle.errors import StopTrainingError
from treadle.recsys.trainers.abstract_trainer import is_overridden
from treadle.recsys.trainers.loop.core import SAVE_SECONDS, Losses, RecsysCore
from treadle.recsys.trainers.results import (
    check_validation,
    decoded_metrics,
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
        self._base = base
        self._told: dict[str, Any] = {}
        self._metrics = UnshownMetrics()
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
            self._tell(epoch)
            self._save_without_evaluation(epoch)
            if self._callback_fn is not None:
                self._callback_fn(epoch, None)
        elif self._trainer._is_evaluated(epoch) or self.core.is_at_last_step:
            self._evaluate(epoch)
        else:
            self._tell(epoch)

    def finish(self) -> None:
        """Keep the last model, if there was no evaluation to say which is the best, and say how the training went."""
        if self._unsaved_epoch is not None:
            if self._saved:
                self._save(self._unsaved_epoch)
            else:
                self._trainer._remember_best()
        self._tell_end()

    def _tell_end(self) -> None:
        core, trainer = self.core, self._trainer
        assert core is not None
        if core.is_told:
            return
        told = [f"finished after {counted(core.progress.epoch, 'epoch')}, {counted(core.progress.step, 'step')}"]
        if trainer.best_valid_result:
            told.append(f"best {trainer.valid_metric.lower()} {number(trainer.best_valid_score)}")
        if self._saved:
            told.append(f"model {trainer.saved_model_file}")
        core.print("; ".join(told))

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
        if is_overridden(trainer, "_generate_train_loss_output", self._base):
            core.print(trainer._generate_train_loss_output(epoch, 0.0, seconds, known))
        # The mean, as behind every door; a loop of the user's may have recorded no loss but what it returned.
        self._told = self._metrics.take(core.run_history, "train_loss_epoch") or {"train_loss_sum": total}
        if isinstance(known, tuple):
            self._told |= {f"train_loss{number}": part for number, part in enumerate(known, start=1)}

    def _tell(self, epoch: int, seconds: float = 0.0, *, better: bool = False) -> None:
        """Print the line of an epoch, unless a callback does."""
        core, told, self._told = self.core, self._told, {}
        assert core is not None
        if core.is_told:
            return
        activity = self._trainer._activity(epoch)
        what = line(f"epoch {epoch_under_way(core)}", "" if activity == "training" else activity)
        spent = clock(core.seconds + seconds)
        text, table = line(what, spent, fields(told, best=better)), table_of(core.callback_handler)
        if table is None:
            core.print(text)
        else:
            table.add_row(what, spent, told, best=better)
            core.this_run.checkpointer.log(text)

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
        save(epoch, **accepted(save, verbose=False))
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
        self._told |= dict(result)
        core.run_history.update_metric("valid_score", score)
        for name, value in getattr(result, "exact", result).items():
            core.run_history.update_metric(f"valid_{name}", value)
        core.move_schedule()
        self._tell(epoch, seconds, better=better)
        if better:
            trainer.best_valid_result = result
            self._keep_best(epoch)
        if self._callback_fn is not None:
            self._callback_fn(epoch, score)
        if stop:
            best = epoch - trainer.cur_step * trainer.eval_step
            since = counted(trainer.cur_step, "evaluation")
            name = str(trainer.valid_metric).lower()
            raise StopTrainingError(f"no better {name} in the last {since}; the best was in epoch {best + 1}")

    def _keep_best(self, epoch: int) -> None:
        if self._saved:
            self._save(epoch)
        else:
            self._trainer._remember_best()
