"""Runs that one rank wants to end: by a callback, by a request, by a loss that is not a number."""

import random
from functools import partial
from typing import Any

from tests.parallel.programs.models import BadLoss, classifier, flat, per_device, samples, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import StopTrainingError, Trainer, TrainerCallback
from treadle.callbacks import EarlyStoppingCallback, TerminateOnNaNCallback
from treadle.errors import NonFiniteError

program = Program("stopping")
UPDATES_PER_EPOCH = 14


class Stop(TrainerCallback):
    """Wants to stop on the last rank, at the first chance after so many updates."""

    def __init__(self, event: str, after: int, *, by_request: bool = False) -> None:
        self._event, self._after, self._by_request = event, after, by_request
        self.ended: list[str] = []

    def _stop(self, event: str, trainer: Trainer) -> None:
        last = trainer.processes.rank == trainer.processes.size - 1
        if event != self._event or not last or trainer.progress.step < self._after:
            return
        if self._by_request:
            trainer.request_stop("enough")
        else:
            raise StopTrainingError("enough")

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_train_epoch_start", trainer)

    def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_update_start", trainer)

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_train_step_start", trainer)

    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_train_step_end", trainer)

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_update_end", trainer)

    def on_log(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_log", trainer)

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_train_epoch_end", trainer)

    def on_eval_step_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_eval_step_end", trainer)

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_eval_epoch_end", trainer)

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._stop("on_training_run_epoch_end", trainer)

    def on_stop_training_error(self, trainer: Trainer, **kwargs: Any) -> None:
        self.ended.append("on_stop_training_error")

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self.ended.append("on_training_run_end")


def stopped(event: str, after: int, *, by_request: bool = False, kind: type[Trainer] = Trainer) -> Report:
    """Train for four epochs of 14 updates, unless somebody stops it; evaluate after each."""
    stop = Stop(event, after, by_request=by_request)
    trainer = trainer_of(classifier(), kind, callbacks=(stop,))
    data, evaluation = samples(12 * UPDATES_PER_EPOCH), samples(17, seed=1)
    settings = {"num_epochs": 4, "eval_dataset": evaluation, "log_every": 4}
    result = trainer.train(data, per_device_batch_size=per_device(trainer), **settings)
    return {
        "after": after,
        "steps": result.steps,
        "epochs": result.epochs,
        "reason": result.stop_reason,
        "ended": stop.ended,
        "weights": flat(trainer.model),
    }


draws = random.Random(48)
for place in range(4):
    program.add(f"at_random_{place}", partial(stopped, "on_update_end", draws.randint(1, 50)))
    program.add(f"requested_{place}", partial(stopped, "on_update_end", draws.randint(1, 50), by_request=True))
for event in (
    "on_train_epoch_start",
    "on_update_start",
    "on_train_step_start",
    "on_train_step_end",
    "on_log",
    "on_train_epoch_end",
    "on_eval_step_end",
    "on_eval_epoch_end",
    "on_training_run_epoch_end",
):
    program.add(f"event_{event}", partial(stopped, event, draws.randint(15, 22)))


class HandWritten(Trainer):
    """A loop of the user's own, which fires the events it thinks fit."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.calculate_train_batch_loss(batch)["loss"].backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.fire("on_update_end")


program.add("in_a_loop_of_ones_own", partial(stopped, "on_update_end", 17, kind=HandWritten))


@program.scenario
def twice() -> Report:
    """Stop a run, then train again: the wish of the first must not reach the second."""
    stop = Stop("on_update_end", 3)
    trainer = trainer_of(classifier(), callbacks=(stop,))
    first = trainer.train(samples(168), num_epochs=1, per_device_batch_size=per_device(trainer))
    trainer.callback_handler.clear_callbacks()
    second = trainer.train(samples(168), num_epochs=1, per_device_batch_size=per_device(trainer))
    return {"first": first.steps, "second": second.steps}


@program.scenario
def early_stopping() -> Report:
    trainer = trainer_of(classifier(), callbacks=(EarlyStoppingCallback(1, early_stopping_threshold=10.0),))
    settings = {"num_epochs": 6, "eval_dataset": samples(17, seed=1)}
    result = trainer.train(samples(48), per_device_batch_size=per_device(trainer), **settings)
    return {"epochs": result.epochs, "steps": result.steps, "reason": result.stop_reason}


def nonfinite(step: int, factor: float, log_every: int) -> Report:
    trainer = trainer_of(classifier(), BadLoss.at(step, factor), callbacks=(TerminateOnNaNCallback,))
    try:
        trainer.train(samples(168), num_epochs=2, per_device_batch_size=per_device(trainer), log_every=log_every)
    except NonFiniteError as error:
        return {"message": str(error), "at": trainer.progress.step}
    return {"message": "", "at": trainer.progress.step}


program.add("nan_before_a_log", partial(nonfinite, 7, float("nan"), 5))
program.add("nan_at_a_log", partial(nonfinite, 10, float("nan"), 5))
program.add("nan_at_the_end_of_an_epoch", partial(nonfinite, 14, float("nan"), 100))
program.add("infinite", partial(nonfinite, 20, float("inf"), 5))


class StopInVerb(Trainer):
    """Wants to stop on the last rank, in a verb of the trainer instead of a callback."""

    def train_epoch_end(self) -> None:
        if self.processes.rank == self.processes.size - 1 and self.progress.epoch == 1:
            raise StopTrainingError("enough")


@program.fragile_scenario
def in_a_verb() -> Report:
    return stopped("never", 1000, kind=StopInVerb)
