"""Programs of the golden file that train by `treadle.Trainer` and by models with steps."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.execution.quick_compiler import quick_compiler
from tests.golden.recording import (
    Console,
    EventLog,
    Record,
    counted,
    end_of,
    keys_in,
    plain_config,
    plain_console,
    rows_in,
)
from tests.interrupting import CutAt, CutError
from treadle import Phase, Trainer, TrainerPlaceholderValues
from treadle.callbacks import (
    EarlyStoppingCallback,
    GradientNormMonitor,
    ModelEmaCallback,
    PrintProgressCallback,
    SaveBestModelCallback,
)
from treadle.checkpoint import Policy
from treadle.errors import StopTrainingError
from treadle.lightning import StepModel, StepTrainer
from treadle.precision import LossScaling

BATCH = 4


def samples(count: int = 26) -> TensorDataset:
    """26 samples: in batches of four, seven an epoch, the last one short."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 3, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def network() -> nn.Module:
    """A classifier with running statistics and dropout, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))


def one_cycle(**options: Any) -> Any:
    """Return a schedule over the whole run."""
    placeholders = TrainerPlaceholderValues
    return partial(
        OneCycleLR,
        max_lr=0.05,
        epochs=placeholders.NUM_EPOCHS,
        steps_per_epoch=placeholders.NUM_UPDATE_STEPS_PER_EPOCH,
        **options,
    )


TRAIN: dict[str, Any] = {
    "num_epochs": 3,
    "eval_dataset": samples(9),
    "per_device_batch_size": BATCH,
    "create_scheduler_fn": one_cycle(),
    "log_every": 2,
    "save_every": 2,
    "clip_norm": 0.5,
    "resume": "auto",
}


def core(
    folder: Path,
    *,
    cut: int | None = None,
    kind: Any = Trainer,
    build: Callable[[], nn.Module] = network,
    loss: Any = None,
    optimizer: Callable[[nn.Module], Any] | None = None,
    callbacks: Callable[[Path], tuple[Any, ...]] = lambda folder: (),
    data: Callable[[], Any] = samples,
    then: Callable[[Any], None] | None = None,
    train: dict[str, Any] | None = None,
    keeps: bool = True,
    **options: Any,
) -> Record:
    """Train by the core, cut after some step and started again if asked, and return what happened."""
    events, run_dir = EventLog(), folder / "run"

    def attempt(*more: Any) -> Any:
        model = build()
        made = torch.optim.AdamW(model.parameters(), lr=0.01) if optimizer is None else optimizer(model)
        chosen = nn.CrossEntropyLoss() if loss is None else loss
        told = (events, PrintProgressCallback, *callbacks(folder), *more)
        settings = {"seed": 1, "device": "cpu", **({"run_dir": run_dir} if keeps else {}), **options}
        trainer = kind(model, chosen, made, callbacks=told, **settings)
        asked = {**TRAIN, **(train or {})}
        if not keeps:
            asked = {name: value for name, value in asked.items() if name not in ("save_every", "resume")}
        trainer.train(data(), **asked)
        if then is not None:
            then(trainer)
        return trainer

    with Console() as console:
        if cut is not None:
            try:
                attempt(CutAt(cut))
            except CutError:
                events.calls.append("-- killed --")
        trainer = attempt()
    found = Record(events=counted(events.calls), console=plain_console(console.text, folder))
    found.end = end_of(trainer.model, *trainer.optimizers().values())
    found.end["history"] = {
        name: trainer.run_history.get_metric_values(name) for name in sorted(trainer.run_history.get_metric_names())
    }
    found.end["progress"] = str(trainer.progress)
    if keeps:
        found.metrics, found.keys, found.config = rows_in(run_dir), keys_in(run_dir), plain_config(run_dir)
    return found


class Adversaries(Trainer):
    """Two networks that take turns, each with its own optimizer and loss."""

    def phases(self, epoch: int) -> Iterable[Phase]:
        by = self.optimizers()
        (stream,) = self.streams.values()
        while stream.has_next():
            yield Phase("critic", stream, self.critic_loss, by["critic"], steps=2)
            yield Phase("maker", stream, self.maker_loss, by["maker"], steps=1, accumulation=2)

    def critic_loss(self, batch: Any) -> dict[str, Any]:
        made = self.model[0](batch[0]).detach()
        loss = self.model[1](made).mean() - self.model[1](batch[0]).mean()
        return {"loss": loss, "model_outputs": made, "batch_size": len(batch[0])}

    def maker_loss(self, batch: Any) -> dict[str, Any]:
        made = self.model[0](batch[0])
        return {"loss": -self.model[1](made).mean(), "model_outputs": made, "batch_size": len(batch[0])}

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.maker_loss(batch)


def pair() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))])


def both(model: Any) -> dict[str, Any]:
    return {
        "maker": torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9),
        "critic": torch.optim.Adam(model[1].parameters(), lr=0.02),
    }


class OwnEpochs(Trainer):
    """Writes the loop of an epoch itself."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        self.train_epoch_start()
        for batch in train_dl:
            output = self.calculate_train_batch_loss(batch)
            self._update_loss_tracker(output["loss"], output["batch_size"])
            output["loss"].backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.train_epoch_end()
        self._add_epoch_loss_to_run_history("train_loss_epoch")


class OwnRun(Trainer):
    """Writes the loop over epochs itself, as pytorch-accelerated does."""

    def _run_training(self) -> None:
        self.training_run_start()
        self.callback_handler.call_event("on_training_run_start", self)
        for _ in range(self.run_config.num_epochs):
            try:
                self._run_train_epoch(self._train_dataloader)
                self._run_eval_epoch(self._eval_dataloader)
                self.training_run_epoch_end()
                self.callback_handler.call_event("on_training_run_epoch_end", self)
                self.run_history._increment_epoch()
            except StopTrainingError as error:
                self.print(error)
                break
        self.training_run_end()
        self.callback_handler.call_event("on_training_run_end", self)


class Planted(nn.Module):
    """A network whose loss is not a number for one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, inputs: Tensor) -> Tensor:
        factor = torch.where(inputs[:, :1] > 90, torch.nan, 1.0)
        output: Tensor = self.inner(inputs.clamp(max=9)) * factor
        return output


def poisoned() -> TensorDataset:
    data = samples()
    data.tensors[0][5] = 99.0
    return data


class Endless(IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        inputs, targets = samples().tensors
        yield from zip(inputs, targets, strict=True)


def watching(folder: Path) -> tuple[Any, ...]:
    return (
        GradientNormMonitor(),
        ModelEmaCallback(decay=0.9, save_path=folder / "average.pt"),
        SaveBestModelCallback(save_path=folder / "best.pt", watch_metric="eval_loss_epoch"),
        EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=0.5),
    )


def looks_again(trainer: Any) -> None:
    """Evaluate and predict after the run."""
    found = trainer.evaluate(samples(9), per_device_batch_size=BATCH)
    trainer.print({name: round(float(value), 5) for name, value in found.items()})
    trainer.print([round(float(value), 5) for value in trainer.predict(samples(5), per_device_batch_size=2).flatten()])


def goes_further(trainer: Any) -> None:
    """Train the same trainer once more, from where it is."""
    trainer.print(trainer.train(samples(9), 1, per_device_batch_size=3).steps)


class Line(StepModel):
    """A model with steps of its own, as Lightning's are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [StepLR(optimizer, 2, 0.5)]


def steps(folder: Path, *, cut: int | None = None, **options: Any) -> Record:
    """Train a model with steps, cut and started again if asked."""
    events, run_dir = EventLog(), folder / "run"

    def attempt(*more: Any) -> Any:
        trainer = StepTrainer(
            num_epochs=3,
            progress=False,
            device="cpu",
            seed=1,
            run_dir=run_dir,
            callbacks=[events, *more],
            save_every=2,
            log_every=2,
            **options,
        )
        model = Line()
        loaders = DataLoader(samples(), batch_size=BATCH, shuffle=True), DataLoader(samples(9), batch_size=BATCH)
        trainer.fit(model, *loaders, resume="auto")
        return model

    with Console() as console:
        if cut is not None:
            try:
                attempt(CutAt(cut))
            except CutError:
                events.calls.append("-- killed --")
        model = attempt()
    return Record(
        events=counted(events.calls),
        metrics=rows_in(run_dir),
        keys=keys_in(run_dir),
        config=plain_config(run_dir),
        end=end_of(model),
        console=plain_console(console.text, folder),
    )


def compiled(folder: Path, **options: Any) -> Record:
    with quick_compiler():
        return core(folder, **options)


SCALING = LossScaling(initial=2.0**10)
PROGRAMS: dict[str, Callable[[Path], Record]] = {}
for _precision in ("fp32", "bf16", "fp16"):
    for _parts in (1, 3):
        for _cut in (None, 4):
            _name = f"core {_precision} accumulation {_parts}{'' if _cut is None else ' resumed'}"
            _scaled = {"loss_scaling": SCALING} if _precision == "fp16" else {}
            PROGRAMS[_name] = partial(
                core, precision=_precision, cut=_cut, train={"gradient_accumulation_steps": _parts}, **_scaled
            )
for _precision in ("fp32", "bf16"):
    for _cut in (None, 5):
        _name = f"core phases {_precision}{'' if _cut is None else ' resumed'}"
        _quiet: dict[str, Any] = {"create_scheduler_fn": None}
        PROGRAMS[_name] = partial(
            core, kind=Adversaries, build=pair, optimizer=both, precision=_precision, cut=_cut, train=_quiet
        )
PROGRAMS |= {
    "core own epochs": partial(core, kind=OwnEpochs, train={"clip_norm": None}),
    "core own epochs resumed": partial(core, kind=OwnEpochs, cut=9, train={"clip_norm": None, "save_every": "1 epoch"}),
    "core own run": partial(core, kind=OwnRun),
    "core own run resumed": partial(core, kind=OwnRun, cut=9),
    "core skips bad steps": partial(core, build=Planted, data=poisoned, on_nonfinite="skip"),
    "core rolls back": partial(core, build=Planted, data=poisoned, on_nonfinite="rollback"),
    "core auto execution": partial(core, execution="auto"),
    "core compiled": partial(compiled, execution="compile"),
    "core compiled resumed": partial(compiled, execution="compile", cut=4),
    "core iterable data resumed": partial(core, data=Endless, cut=4, train={"create_scheduler_fn": None}),
    "core workers resumed": partial(core, cut=4, train={"train_dataloader_kwargs": {"num_workers": 1}}),
    "core limited steps": partial(core, train={"max_steps": 9, "num_epochs": None}),
    "core by epochs": partial(
        core, train={"save_every": "1 epoch", "log_every": "1 epoch", "eval_every": "2 epoch", "num_epochs": 4}
    ),
    "core evaluates by steps resumed": partial(core, cut=5, train={"eval_every": "3 steps"}),
    "core callbacks": partial(core, callbacks=watching, checkpoints=Policy(keep_last=2, best="eval_loss_epoch")),
    "core callbacks resumed": partial(core, callbacks=watching, cut=8),
    "core without a folder": partial(core, keeps=False, then=looks_again),
    "core trains twice": partial(core, keeps=False, then=goes_further),
    "core clips values of sums": partial(
        core,
        loss=nn.CrossEntropyLoss(reduction="sum"),
        loss_reduction="sum",
        train={"clip_norm": None, "gradient_clip_value": 0.1, "gradient_accumulation_steps": 2},
    ),
    "core small memory": partial(
        core, microbatch="auto", offload_optimizer=True, activation_checkpointing=["0", "3"], deterministic=True
    ),
    "steps": steps,
    "steps resumed": partial(steps, cut=5),
    "steps bf16": partial(steps, precision="bf16"),
    "steps bf16 resumed": partial(steps, precision="bf16", cut=5),
}
