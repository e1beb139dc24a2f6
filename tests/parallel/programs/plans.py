"""The example GPT and a small CNN, trained by each plan with each feature; one process does the same to compare."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torchmetrics import SumMetric

from examples.language_model.gpt import GPT
from tests.engine import parts
from tests.parallel.programs.from_config import add_configs
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer, TrainerCallback
from treadle.callbacks import ModelEmaCallback
from treadle.checkpoint import read_file
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer
from treadle.errors import ConfigError, TreadleError
from treadle.parallel import Plan
from treadle.parallel.volume import measured

program = Program("plans")

VOCABULARY, CONTEXT, GLOBAL_BATCH = 14, 6, 8
MARKED = 12
"""A target that only one sample has, to spoil the loss of one batch."""

PLANS: dict[int, dict[str, Plan | str]] = {
    1: {"one process": "auto"},
    2: {
        "DDP": "auto",
        "FSDP2": Plan(shard=2),
        "tensor": Plan(tensor=2),
        "pipeline": Plan(pipeline=2),
    },
    4: {
        "hybrid": Plan(data=2, shard=2),
        "FSDP2 + tensor": Plan(shard=2, tensor=2),
        "DDP + pipeline": Plan(data=2, pipeline=2),
    },
}
CNN_PLANS = ("one process", "DDP", "FSDP2", "hybrid")
RESHARDED: dict[int, dict[str, Plan | str]] = {
    1: {"one process": "auto"},
    2: {name: PLANS[2][name] for name in ("DDP", "FSDP2", "tensor")},
    4: {"FSDP2 x4": Plan(shard=4)},
}


# What is trained ------------------------------------------------------------------------------------------------


def sentences(count: int = 28, *, seed: int = 1) -> TensorDataset:
    """Return sequences of tokens and what comes after each; the eleventh begins with a target of its own."""
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = (torch.randint(MARKED, (count, CONTEXT), generator=generator) for _ in range(2))
    targets[10, 0] = MARKED
    return TensorDataset(tokens, targets)


def images(count: int = 28, *, seed: int = 1) -> TensorDataset:
    """Return images of one channel and one of three classes each."""
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 1, 6, 6, generator=generator), torch.randint(3, (count,), generator=generator)
    )


class Loss(nn.Module):
    """The cross-entropy of scores; of a batch with the marked target not a number, if asked."""

    def __init__(self, *, spoilt: bool = False) -> None:
        super().__init__()
        self.spoilt = spoilt

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(scores.flatten(0, -2), targets.flatten())
        if not self.spoilt or not torch.is_grad_enabled():
            return loss
        return loss * torch.where((targets == MARKED).any(), float("nan"), 1.0)


class Counted(SumMetric):
    """How many samples were evaluated."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        super().update(torch.full((len(targets),), 1.0))


def gpt() -> nn.Module:
    """Return a small GPT without dropout, the same on every rank."""
    torch.manual_seed(0)
    return GPT(VOCABULARY, context=CONTEXT, layers=2, heads=2, width=16)


def cnn() -> nn.Module:
    """Return a small network of convolutions without batch norm."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 5, 3), nn.GroupNorm(1, 5), nn.ReLU(), nn.Conv2d(5, 6, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(24, 3))


class Run:
    """One plan with one model: makes trainers, trains them, and tells how it went.

    Args:
        name: The plan.
        parallel: What the trainer is given.
        network: "gpt" or "cnn".
    """

    def __init__(self, name: str, parallel: Plan | str, network: str = "gpt") -> None:
        self.name, self.parallel, self.network = name, parallel, network

    def trainer(self, kind: type[Trainer] = Trainer, **settings: Any) -> Trainer:
        """Return a trainer; `settings` win."""
        model = gpt() if self.network == "gpt" else cnn()
        loss = settings.pop("loss_func", Loss() if self.network == "gpt" else nn.CrossEntropyLoss())
        optimizer = settings.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=1e-2)
        settings = {"callbacks": (), "seed": 3, "metrics": {"samples": Counted()}} | settings
        return kind(model, loss, optimizer, parallel=self.parallel, **settings)

    def train(self, trainer: Trainer, *, accumulation: int = 1, **settings: Any) -> Report:
        """Train for some steps of eight samples over all ranks, and report every loss."""
        settings = {"max_steps": 5, "log_every": 1, "eval_every": 4} | settings
        data = sentences if self.network == "gpt" else images
        size = GLOBAL_BATCH // accumulation // trainer.parallel.data_size
        trainer.train(
            data(),
            eval_dataset=data(13, seed=2),
            per_device_batch_size=size,
            gradient_accumulation_steps=accumulation,
            **settings,
        )
        return self.report(trainer)

    @staticmethod
    def report(trainer: Trainer) -> Report:
        """Return the losses and metrics of a run."""
        history = trainer.run_history
        values = {
            name: [float(value) for value in history.get_metric_values(name)] for name in history.get_metric_names()
        }
        logged = "train_loss" in trainer.storage.names()
        losses = [float(value) for value in trainer.storage.series("train_loss").values] if logged else []
        return {"losses": losses, "history": values}

    @property
    def folder(self) -> Path:
        """Where runs of this plan are kept."""
        return program.folder / self.name.replace(" ", "_") / self.network


def weights(trainer: Trainer) -> Tensor:
    """Return all weights, whole, as one vector."""
    path = program.folder / f"weights_{trainer.processes.size}.pt"
    trainer.save_checkpoint(path, save_optimizer=False)

    found = torch.cat([value.reshape(-1) for value in read_file(path)["model_state_dict"].values()])
    trainer.processes.barrier()
    return found


# Features -------------------------------------------------------------------------------------------------------

Feature = Callable[[Run], Report]
FEATURES: dict[str, Feature] = {}
EVERYWHERE = (
    "20 steps", "accumulation", "clipping", "bf16", "EMA", "evaluation", "save and resume"
)  # fmt: skip


def feature(name: str) -> Callable[[Feature], Feature]:
    """Name a feature of the table."""

    def add(function: Feature) -> Feature:
        FEATURES[name] = function
        return function

    return add


@feature("20 steps")
def twenty_steps(run: Run) -> Report:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.7)

    trainer = run.trainer()
    report = run.train(trainer, max_steps=20, create_scheduler_fn=schedule, eval_every=10)
    return report | {"rate": trainer.optimizers()["optimizer"].param_groups[0]["lr"]}


@feature("accumulation")
def accumulation(run: Run) -> Report:
    return run.train(run.trainer(), accumulation=2)


@feature("clipping")
def clipping(run: Run) -> Report:
    trainer = run.trainer()
    report = run.train(trainer, clip_norm=0.05, gradient_clip_value=0.02)
    return report | {"norm": float(trainer.gradient_norm or 0.0)}


@feature("bf16")
def bf16(run: Run) -> Report:
    return run.train(run.trainer(precision="bf16"))


@feature("fp16")
def fp16(run: Run) -> Report:
    return run.train(run.trainer(precision="fp16"))


@feature("EMA")
def ema(run: Run) -> Report:
    average = ModelEmaCallback(decay=0.8, save_path=program.folder / f"ema_{os.environ.get('WORLD_SIZE', 1)}.pt")
    return run.train(run.trainer(callbacks=(average,)))


@feature("evaluation")
def evaluation(run: Run) -> Report:
    trainer = run.trainer()
    report = run.train(trainer, max_steps=2, eval_every=1)
    data = (sentences if run.network == "gpt" else images)(13, seed=2)
    alone = trainer.evaluate(data, per_device_batch_size=3)
    return report | {"alone": float(alone["evaluation_loss"]), "samples": float(alone["samples"])}


@feature("prediction")
def prediction(run: Run) -> Report:
    trainer = run.trainer()
    run.train(trainer, max_steps=2)
    data = (sentences if run.network == "gpt" else images)(13, seed=2)
    return run.report(trainer) | {"outputs": trainer.predict(data, per_device_batch_size=3)}


@feature("save and resume")
def save_and_resume(run: Run) -> Report:
    average = partial(ModelEmaCallback, decay=0.8, evaluate_during_training=False, save_path=run.folder / "ema.pt")
    first = run.trainer(run_dir=run.folder / "whole", callbacks=(average(),))
    whole = run.train(first, save_every=2, max_steps=6)
    parted = run.folder / "parted"
    run.train(run.trainer(run_dir=parted, callbacks=(average(),)), save_every=2, max_steps=3)
    torch.manual_seed(99)
    second = run.trainer(run_dir=parted, callbacks=(average(),))
    run.train(second, resume="auto", save_every=2, max_steps=6)
    return whole | {"weights": weights(first), "again": weights(second)}


@feature("save_checkpoint")
def checkpoint_file(run: Run) -> Report:
    first, second = run.trainer(), run.trainer()
    report = run.train(first)
    path = program.folder / f"file_{first.processes.size}.pt"
    first.save_checkpoint(path)
    second.load_checkpoint(path)
    same = torch.equal(weights(second), weights(first))
    return report | {"same": same and state_sum(second) == state_sum(first)}


def state_sum(trainer: Trainer) -> float:
    """Return the sum of all that the optimizer keeps on this rank."""
    states = trainer.optimizers()["optimizer"].state.values()
    return sum(float(value.double().sum()) for state in states for value in state.values())


@feature("activation checkpointing")
def activation_checkpointing(run: Run) -> Report:
    return run.train(run.trainer(activation_checkpointing=["trunk.blocks.*"]))


@feature("offload_optimizer")
def offload_optimizer(run: Run) -> Report:
    return run.train(run.trainer(offload_optimizer=True))


@feature("on_nonfinite='skip'")
def skipping(run: Run) -> Report:
    trainer = run.trainer(on_nonfinite="skip", loss_func=Loss(spoilt=True))
    report = run.train(trainer, max_steps=8)
    assert trainer.this_run.updater.gate is not None
    return without_bad_losses(report) | {"skipped": float(trainer.this_run.updater.gate.skipped)}


def without_bad_losses(report: Report) -> Report:
    """Leave out means of training losses: where one process has a bad batch, several have one share of it that is."""
    report["history"].pop("train_loss_epoch", None)
    return report | {"losses": []}


@feature("on_nonfinite='rollback'")
def rolling_back(run: Run) -> Report:
    folder = run.folder / "rolled_back"
    trainer = run.trainer(on_nonfinite="rollback", loss_func=Loss(spoilt=True), run_dir=folder)
    return without_bad_losses(run.train(trainer, max_steps=8, save_every=1))


@feature("callbacks on micro-batches")
def micro_batch_callback(run: Run) -> Report:
    class Listener(TrainerCallback):
        heard = 0

        def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:
            self.heard += 1

    listener = Listener()
    return run.train(run.trainer(callbacks=(listener,))) | {"heard": listener.heard}


class PerToken(Trainer):
    """Has a loss that is a mean over tokens, of which batches have different numbers."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        tokens, targets = batch
        targets = targets.masked_fill(targets < targets[:, :1] // 2, -100)
        outputs = self.model(tokens)
        loss = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100)
        size = (targets != -100).sum()
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(tokens), "num_items_in_batch": size}


@feature("a loss per token, accumulated")
def per_token(run: Run) -> Report:
    return run.train(run.trainer(PerToken), accumulation=2)


@feature("a loop of your own")
def own_loop(run: Run) -> Report:
    class OwnLoop(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            for tokens, targets in train_dl:
                self.loss_func(self.model(tokens), targets).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()

    return run.train(run.trainer(OwnLoop), max_steps=None, num_epochs=1) | {"losses": []}


@feature("several optimizers")
def several_optimizers(run: Run) -> Report:
    model = gpt()
    halves = {name: torch.optim.SGD(list(part.parameters())) for name, part in (("a", model.trunk), ("b", model.head))}
    trainer = Trainer(model, Loss(), halves, callbacks=(), parallel=run.parallel)
    return {"losses": [], "history": {}, "optimizers": sorted(trainer.optimizers())}


@feature("save_training_state")
def training_state(run: Run) -> Report:
    trainer = run.trainer()
    report = run.train(trainer, max_steps=2)
    trainer.save_training_state(program.folder / f"state_{trainer.processes.size}")
    return report


def outcome(function: Feature, run: Run) -> Report:
    """Return what a feature reports under a plan, or the message by which it is refused."""
    try:
        return function(run)
    except (ConfigError, TreadleError) as error:
        return {"refused": str(error)}


# What is exchanged ----------------------------------------------------------------------------------------------


class Measured(Trainer):
    """Adds up the bytes that its fifth update exchanges, the first of the second epoch."""

    volume: dict[str, int]

    def update(self, phase: Any, window: Any) -> None:
        if self.progress.step != 4:
            super().update(phase, window)
            return
        self.volume = measured(lambda: super(Measured, self).update(phase, window))


def exchanged(run: Run) -> Report:
    trainer = run.trainer(Measured)
    stages = trainer.parallel.degrees.pipeline
    run.train(trainer, accumulation=stages, max_steps=5, eval_every=None, log_every=50)
    assert isinstance(trainer, Measured)
    return {"volume": trainer.volume}


# From a config --------------------------------------------------------------------------------------------------


class Classifier(parts.Classifier):
    """The classifier of the engine's tests, with a plan for its layers."""

    def tensor_plan(self) -> dict[str, str]:
        return {"body.0": "column", "head": "row"}


def from_config(name: str, **train: Any) -> Report:
    """Train and evaluate what a config describes, which says how processes share it."""
    shares = 1 if "dist" in train else int(os.environ.get("WORLD_SIZE", "1"))
    sizes = {"global_batch_size": 8, "train_micro_batch_size": 8 // shares, "test_micro_batch_size": 3}
    evaluation = {"enabled": True, "eval_period": 5}
    config = parts.make_config(program.folder / name, **sizes, evaluation=evaluation, **train)
    config.model = LazyCall(Classifier)(dropout=0.0)
    trainer = DefaultTrainer(config)
    trainer.train()
    losses = [float(value) for value, _ in trainer.storage.history("total_loss").values()]
    return {"losses": losses, "accuracy": float(trainer._last_eval_results["Acc@1"])}


CONFIGS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"plain": {}},
    2: {
        "zero": {"zero_optimization": {"enabled": True, "stage": 3}},
        "by layer": {"dist": {"tensor_parallel_size": 2, "device_type": "cpu"}},
    },
    4: {},
}


# Another plan goes on -------------------------------------------------------------------------------------------


def shared_folder(name: str) -> Path:
    """Return where the run of a plan lies that others go on with."""
    return program.folder.parent.parent / "resharded" / name.replace(" ", "_")


def uninterrupted(run: Run) -> Report:
    return run.train(run.trainer(), max_steps=10)


def saved_for_others(run: Run) -> Report:
    average = ModelEmaCallback(decay=0.8, evaluate_during_training=False, save_path=run.folder / "ema.pt")
    trainer = run.trainer(run_dir=shared_folder(run.name), callbacks=(average,))
    return run.train(trainer, accumulation=2 if trainer.parallel.data_size < 4 else 1, max_steps=5, save_every=5)


def gone_on_with(run: Run, other: str) -> Report:
    """Go on, in a copy of its folder, with the run that another plan saved."""

    folder = run.folder / "from" / other.replace(" ", "_")
    average = ModelEmaCallback(decay=0.8, evaluate_during_training=False, save_path=run.folder / "ema.pt")
    trainer = run.trainer(run_dir=folder, callbacks=(average,))
    if trainer.processes.is_main:
        shutil.copytree(shared_folder(other), folder)
    trainer.processes.barrier()
    return run.train(trainer, max_steps=10, resume="auto")


def features_of(plan: str) -> tuple[str, ...]:
    """Return the features that a plan is tried with: all, or, where there are four processes, those of any run."""
    return (*EVERYWHERE, "a loop of your own", "several optimizers") if plan in PLANS[4] else tuple(FEATURES)


def add_all(world: int) -> None:
    """Add a scenario for each plan of so many processes and each feature."""
    for name, parallel in PLANS[world].items():
        run = Run(name, parallel)
        for title in features_of(name):
            program.add(f"{name}: {title}", partial(outcome, FEATURES[title], run))
        for title in EVERYWHERE if name in CNN_PLANS else ():
            program.add(f"CNN {name}: {title}", partial(outcome, FEATURES[title], Run(name, parallel, "cnn")))
    for name, parallel in PLANS[world].items() if world > 1 else ():
        program.add(f"volume of {name}", partial(exchanged, Run(name, parallel)))
    for name, train in CONFIGS[world].items():
        program.add(f"config: {name}", partial(from_config, name, **train))
    add_configs(program, world)
    if world == 1:
        program.add("uninterrupted", partial(uninterrupted, Run("one process", "auto")))
    for name, parallel in RESHARDED[world].items():
        program.add(f"saved by {name}", partial(saved_for_others, Run(name, parallel)))
    for name, parallel in RESHARDED[world].items():
        for count, others in RESHARDED.items():
            # What more processes saved comes later: `resharded_back` goes on with that.
            for other in others if count <= world else ():
                program.add(f"{name} from {other}", partial(gone_on_with, Run(name, parallel), other))


def programs() -> Program:
    """Return the program of as many processes as there are."""
    add_all(int(os.environ.get("WORLD_SIZE", "1")))
    return program


if __name__ == "__main__":
    programs().run(Path(sys.argv[1]))
