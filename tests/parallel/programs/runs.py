"""Schedules, limits, synchronisation and resuming, on one process and on several."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from tests.parallel.programs.models import classifier, flat, per_device, samples, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer, TrainerCallback, TrainerPlaceholderValues
from treadle.callbacks import SaveTrainingStateCallback

program = Program("runs")
P = TrainerPlaceholderValues


class Rates(TrainerCallback):
    """Keeps the learning rate of every update."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


def scheduled(factory: Any, count: int = 96, **settings: Any) -> Report:
    """Train with a schedule; tell every rate, the last one too, and how many updates there were."""
    rates = Rates()
    trainer = trainer_of(classifier(), callbacks=(rates,))
    settings = {"num_epochs": 3, "per_device_batch_size": per_device(trainer)} | settings
    result = trainer.train(samples(count), create_scheduler_fn=factory, **settings)
    assert trainer.run_config is not None
    return {
        "rates": [*rates.rates, trainer.optimizer.param_groups[0]["lr"]],
        "steps": result.steps,
        "epochs": result.epochs,
        "stop_reason": result.stop_reason,
        "updates_per_epoch": trainer.run_config.num_update_steps_per_epoch,
        "limit": trainer.run_config.max_num_train_steps,
    }


for name, placeholder in {
    "one_cycle": P.NUM_UPDATE_STEPS_PER_EPOCH,
    "one_cycle_per_process": P.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH,
    "one_cycle_by_batches": P.TRAIN_DATALOADER_LEN,
}.items():
    cycle = partial(OneCycleLR, max_lr=0.2, epochs=P.NUM_EPOCHS, steps_per_epoch=placeholder)
    program.add(name, partial(scheduled, cycle))
cycle = partial(OneCycleLR, max_lr=0.2, epochs=P.NUM_EPOCHS, steps_per_epoch=P.NUM_UPDATE_STEPS_PER_EPOCH)
program.add("one_cycle_accumulated", partial(scheduled, cycle, 89, gradient_accumulation_steps=3))
program.add("one_cycle_by_epochs", partial(scheduled, cycle, scheduler_interval="epoch"))
plateau = partial(ReduceLROnPlateau, patience=0, threshold=1.0)
program.add("plateau", partial(scheduled, plateau, scheduler_metric="train_loss_epoch", num_epochs=4))
for limit in (4, 8, 10, 12, 30):
    program.add(f"at_most_{limit}", partial(scheduled, None, max_num_train_steps=limit))
program.add("only_a_limit", partial(scheduled, None, max_steps=11, num_epochs=None))


# Synchronisation ------------------------------------------------------------------------------------------


class Counting(TrainerCallback):
    """Counts how often gradients travel, by micro-batch, and every other all-reduce."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.by_micro_batch: list[int] = []
        self.others = 0

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        wrapped = trainer.this_run.shared_loss.wrapped
        if wrapped is not None and trainer.progress.epoch == 0:
            wrapped.register_comm_hook(None, self._exchange)

    def _exchange(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.exchanges += 1
        gradients = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(gradients, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self.by_micro_batch.append(self.exchanges)


def synchronised(parts: int) -> Report:
    counting = Counting()
    trainer = trainer_of(classifier(), callbacks=(counting,))
    size = per_device(trainer)
    result = trainer.train(samples(89), num_epochs=2, per_device_batch_size=size, gradient_accumulation_steps=parts)
    return {"before_each": counting.by_micro_batch, "in_all": counting.exchanges, "steps": result.steps}


for parts in (1, 2, 3):
    program.add(f"synchronised_{parts}", partial(synchronised, parts))


@program.scenario
def collectives_of_an_epoch() -> Report:
    """Count the all-reduces on the host that 20 updates without a log cause."""
    trainer = trainer_of(classifier(), callbacks=(HostCalls,), execution="eager")
    trainer.train(samples(240), num_epochs=1, per_device_batch_size=per_device(trainer), log_every=1000)
    calls = next(callback for callback in trainer.callback_handler if isinstance(callback, HostCalls))
    return {"calls": calls.counts}


class HostCalls(TrainerCallback):
    """Notes, after each update, how often anything was agreed on the host."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._calls = 0

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        original = trainer.processes.reduce

        def reduce(*args: Any, **kwargs: Any) -> list[float]:
            self._calls += 1
            return original(*args, **kwargs)

        trainer.processes.reduce = reduce  # type: ignore[method-assign]

    def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self.counts.append(self._calls)


# Resuming -------------------------------------------------------------------------------------------------


def stochastic(seed: int) -> nn.Module:
    """Return a model with dropout, whose masks differ by rank and by step, and with running statistics."""
    torch.manual_seed(seed)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


def resumable(seed: int, **settings: Any) -> Trainer:
    model = stochastic(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return trainer_of(model, optimizer=optimizer, **settings)


SETTINGS: dict[str, Any] = {
    "num_epochs": 3,
    "gradient_accumulation_steps": 2,
    "create_scheduler_fn": cycle,
    "log_every": 3,
}


def state_folder() -> Path:
    """Return where states go: beside the reports, one place for all ranks."""
    return program.folder / "states"


@program.scenario
def resumed() -> Report:
    """Save at every update, then go on from some of them with other weights, generators and trainers."""
    saving = SaveTrainingStateCallback(state_folder(), save_every_n_steps=1)
    trainer = resumable(1, callbacks=(saving,))
    data, evaluation, size = samples(77), samples(17, seed=1), per_device(trainer)
    whole = trainer.train(data, eval_dataset=evaluation, per_device_batch_size=size, **SETTINGS)
    report: Report = {"whole": flat(trainer.model), "history": whole.history, "steps": whole.steps}
    for step in (1, 4, 6, 8):
        torch.manual_seed(100 + step)
        again = resumable(step + 50)
        result = again.train(
            data,
            eval_dataset=evaluation,
            per_device_batch_size=size,
            resume_from=state_folder() / f"step_{step}",
            **SETTINGS,
        )
        report[f"from_{step}"] = flat(again.model)
        report[f"history_from_{step}"] = result.history
        report[f"steps_from_{step}"] = result.steps
    return report


@program.scenario
def resumed_with_a_loader_that_shuffles() -> Report:
    def run(**settings: Any) -> Trainer:
        trainer = resumable(1, callbacks=settings.pop("callbacks", ()))
        generator = torch.Generator().manual_seed(5)
        loader = torch.utils.data.DataLoader(
            samples(77), batch_size=per_device(trainer), shuffle=True, generator=generator
        )
        trainer.train(loader, **SETTINGS | settings)
        return trainer

    folder = state_folder() / "shuffled"
    whole = run(callbacks=(SaveTrainingStateCallback(folder, save_every_n_steps=1),))
    torch.manual_seed(123)
    return {"whole": flat(whole.model), "from_6": flat(run(resume_from=folder / "step_6").model)}


@program.scenario
def checkpoint_loaded_everywhere() -> Report:
    """Save after training; load it into trainers whose weights differ by rank."""
    trainer = trainer_of(classifier())
    trainer.train(samples(24), num_epochs=1, per_device_batch_size=per_device(trainer))
    path = program.folder / "checkpoint.safetensors"
    trainer.save_checkpoint(path)
    other = trainer_of(classifier(seed=50 + trainer.processes.rank))
    other.load_checkpoint(path)
    return {"saved": flat(trainer.model), "loaded": flat(other.model)}
