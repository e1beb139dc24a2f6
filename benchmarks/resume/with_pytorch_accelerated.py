"""pytorch-accelerated's trainer, with the callback that saves its training state."""

from functools import partial
from pathlib import Path

from accelerate.utils import set_seed
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import ModelEmaCallback, SaveTrainingStateCallback
from pytorch_accelerated.trainer import DEFAULT_CALLBACKS

from benchmarks.resume.work import (
    BATCH_SIZE,
    DECAY,
    EPOCHS,
    LOSS_FUNC,
    SEED,
    NotPossibleError,
    Samples,
    Scenario,
    Weights,
    make_network,
    make_optimizer,
    make_schedule,
    weights_of,
)


def run(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    """Train, from the newest state in the folder if asked to."""
    if scenario.fp16:
        # Precision is accelerate's; see there.
        raise NotPossibleError("accelerate, which does it, stays in fp32 on a CPU")
    set_seed(SEED)
    network = make_network(scenario)
    averaging = ModelEmaCallback(decay=DECAY, evaluate_during_training=False)
    trainer = Trainer(
        network,
        loss_func=LOSS_FUNC,
        optimizer=make_optimizer(network),
        callbacks=(*DEFAULT_CALLBACKS, *([averaging] if scenario.ema else []), saving_of(scenario, folder)),
    )
    trainer.train(
        Samples(scenario),
        num_epochs=EPOCHS,
        per_device_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=scenario.accumulation,
        # It cannot load what it saved twice with a schedule, so that one is given only where the row is about it.
        create_scheduler_fn=partial(make_schedule, scenario=scenario) if scenario.schedule else None,
        train_dataloader_kwargs={
            "shuffle": scenario.shuffle,
            "num_workers": scenario.workers,
            "pin_memory": False,
        },
        resume_from=str(newest_in(folder)) if resume else None,
    )
    return weights_of(network, averaging.ema_model.module if scenario.ema else None)


def saving_of(scenario: Scenario, folder: Path) -> SaveTrainingStateCallback:
    """Return the callback; its steps are micro-batches."""
    cadence = {"save_every_n_epochs": 1} if scenario.by_epoch else {"save_every_n_steps": scenario.saved_at}
    return SaveTrainingStateCallback(save_dir=str(folder), save_at_end=False, **cadence)


def newest_in(folder: Path) -> Path:
    """Return the newest training state."""
    return max(folder.iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))
