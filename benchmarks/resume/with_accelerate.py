"""A loop by hand over what `Accelerator.prepare` returns, with its checkpoints."""

from pathlib import Path
from typing import Any, Literal

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from benchmarks.resume.work import (
    BATCH_SIZE,
    BATCHES,
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

Loader = Literal["plain", "seedable", "stateful"]


def run(scenario: Scenario, folder: Path, resume: bool, *, loader: Loader = "plain") -> Weights:
    """Train, from the newest state in the folder if asked to."""
    set_seed(SEED)
    accelerator = make_accelerator(scenario, loader)
    network = make_network(scenario)
    optimizer = make_optimizer(network)
    samples = Samples(scenario)
    data = DataLoader(samples, batch_size=BATCH_SIZE, shuffle=scenario.shuffle, num_workers=scenario.workers)
    parts = accelerator.prepare(network, optimizer, data, make_schedule(optimizer, scenario))
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(DECAY)) if scenario.ema else None
    if average is not None:
        accelerator.register_for_checkpointing(average)
    done = restore(accelerator, folder) if resume else 0
    train(accelerator, parts, average, scenario, folder, done, loader)
    return weights_of(network, average)


def make_accelerator(scenario: Scenario, loader: Loader) -> Accelerator:
    """Return the accelerator with the loader that was asked for."""
    config = DataLoaderConfiguration(
        use_seedable_sampler=loader == "seedable", use_stateful_dataloader=loader == "stateful"
    )
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=scenario.accumulation,
        mixed_precision="fp16" if scenario.fp16 else "no",
        dataloader_config=config,
    )
    if scenario.fp16 and accelerator.scaler is None:
        raise NotPossibleError("stays in fp32 on a CPU, without a word")
    return accelerator


def restore(accelerator: Accelerator, folder: Path) -> int:
    """Load the newest state and return after how many micro-batches it was saved, which its name says."""
    newest = max(folder.glob("state_*"), key=lambda path: int(path.name.removeprefix("state_")))
    accelerator.load_state(str(newest))
    return int(newest.name.removeprefix("state_"))


def train(
    accelerator: Accelerator, parts: Any, average: Any, scenario: Scenario, folder: Path, done: int, kind: Loader
) -> None:
    """Train the epochs that are left, leaving out what was seen of the first of them."""
    network, optimizer, data, schedule = parts
    network.train()
    first, skipped = divmod(done, BATCHES)
    for epoch in range(first, EPOCHS):
        if kind == "seedable":
            data.set_epoch(epoch)
        resumed = epoch == first and skipped and kind != "stateful"
        batches = accelerator.skip_first_batches(data, skipped) if resumed else data
        for inputs, labels in batches:
            with accelerator.accumulate(network):
                accelerator.backward(LOSS_FUNC(network(inputs), labels))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if average is not None and accelerator.sync_gradients:
                average.update_parameters(network)
            done += 1
            if not scenario.by_epoch and done == scenario.saved_at:
                accelerator.save_state(str(folder / f"state_{done}"))
        if scenario.by_epoch:
            accelerator.save_state(str(folder / f"state_{done}"))
