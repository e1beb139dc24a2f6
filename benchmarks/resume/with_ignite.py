"""Ignite's engine with its supervised step, and its checkpoint handler."""

from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EMAHandler
from ignite.handlers.param_scheduler import LRScheduler
from ignite.utils import manual_seed
from torch.utils.data import DataLoader

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


def run(scenario: Scenario, folder: Path, resume: bool, *, deterministic: bool = False) -> Weights:
    """Train, from the newest checkpoint in the folder if asked to."""
    if scenario.fp16:
        # Its supervised step has the word "cuda" written into its autocast.
        raise NotPossibleError("its amp step is for CUDA only")
    manual_seed(SEED)
    network = make_network(scenario)
    optimizer = make_optimizer(network)
    engine = create_supervised_trainer(
        network,
        optimizer,
        LOSS_FUNC,
        deterministic=deterministic,
        gradient_accumulation_steps=scenario.accumulation,
    )
    # The handler moves before each of its updates, the first one included, and torch's schedule moved once when made.
    schedule = LRScheduler(make_schedule(optimizer, scenario))
    averaging = EMAHandler(network, momentum=1 - DECAY) if scenario.ema else None
    kept: dict[str, Any] = {"trainer": engine, "model": network, "optimizer": optimizer, "schedule": schedule}
    if averaging is not None:
        kept["average"] = averaging.ema_model
    if resume:
        newest = max(folder.glob("*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
        Checkpoint.load_objects(kept, torch.load(newest, weights_only=False))
    attach(engine, scenario, kept, averaging, folder)
    loader = DataLoader(
        Samples(scenario), batch_size=BATCH_SIZE, shuffle=scenario.shuffle, num_workers=scenario.workers
    )
    engine.run(loader, max_epochs=EPOCHS)
    return weights_of(network, None if averaging is None else averaging.ema_model)


def attach(engine: Engine, scenario: Scenario, kept: dict[str, Any], averaging: Any, folder: Path) -> None:
    """Have the schedule moved, the average followed, and everything saved."""
    engine.add_event_handler(Events.ITERATION_STARTED(every=scenario.accumulation), kept["schedule"])
    if averaging is not None:
        averaging.attach(engine, event=Events.ITERATION_COMPLETED(every=scenario.accumulation))
    saving = Checkpoint(kept, DiskSaver(str(folder), create_dir=True, require_empty=False), n_saved=None)
    when = Events.EPOCH_COMPLETED if scenario.by_epoch else Events.ITERATION_COMPLETED(every=scenario.saved_at)
    engine.add_event_handler(when, saving)
