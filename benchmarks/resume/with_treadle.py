"""Treadle's trainer, with a folder for the run."""

from pathlib import Path

from benchmarks.resume.work import (
    BATCH_SIZE,
    DECAY,
    EPOCHS,
    LOSS_FUNC,
    SEED,
    Samples,
    Scenario,
    Weights,
    make_network,
    make_optimizer,
    make_schedule,
    weights_of,
)
from treadle import Trainer
from treadle.callbacks import ModelEmaCallback
from treadle.checkpoint import Policy


def run(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    """Train; the same call goes on where the run in the folder was."""
    network = make_network(scenario)
    average = ModelEmaCallback(decay=DECAY, evaluate_during_training=False)
    trainer = Trainer(
        network,
        LOSS_FUNC,
        make_optimizer(network),
        callbacks=(average,) if scenario.ema else (),
        seed=SEED,
        run_dir=folder,
        precision="fp16" if scenario.fp16 else "fp32",
        # The process dies a moment later: what a thread still writes would be lost, and the run begun anew.
        checkpoints=Policy(asynchronous=False),
    )
    trainer.train(
        Samples(scenario),
        num_epochs=EPOCHS,
        per_device_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=scenario.accumulation,
        create_scheduler_fn=lambda optimizer: make_schedule(optimizer, scenario),
        train_dataloader_kwargs={"shuffle": scenario.shuffle, "num_workers": scenario.workers},
        save_every="1 epoch" if scenario.by_epoch else f"{scenario.saved_step} steps",
        resume="auto",
    )
    return weights_of(network, average.ema_model if scenario.ema else None)
