"""Programs of the golden file that train by configs, as recommenders, and in architecture search."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.engine.parts import make_config
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
from tests.logs import forget_logs
from tests.nas import small as space
from tests.recsys.trainer import runs
from treadle import nas
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer, HookBase
from treadle.recsys.trainers import Trainer as RecommenderTrainer
from treadle.schedules.warmup_lr import WarmupCosineLR


class HookLog(HookBase):
    """Takes note of every moment, and dies in one if asked."""

    def __init__(self, calls: list[str], cut: int | None) -> None:
        self.calls, self.cut = calls, cut

    def before_train(self) -> None:
        self.calls.append(f"before_train {self.trainer.iter}")

    def before_step(self) -> None:
        self.calls.append("before_step")

    def after_step(self) -> None:
        self.calls.append("after_step")
        if self.cut is not None and self.trainer.iter + 1 == self.cut:
            raise CutError

    def after_train(self) -> None:
        self.calls.append(f"after_train {self.trainer.iter}")


class OwnStep(DefaultTrainer):
    """Writes a step itself."""

    def run_step(self) -> None:
        batch = next(self.core.batches)
        losses = self.model(batch["inputs"], batch["labels"])
        losses["losses"].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.write_metrics({"total_loss": losses["losses"]}, 0.0)


def engine(folder: Path, *, cut: int | None = None, kind: Any = DefaultTrainer, **train: Any) -> Record:
    """Train by a config, cut after some iteration and started again if asked, and return what happened."""
    calls: list[str] = []
    run_dir = folder / "run"

    def attempt(cut: int | None) -> Any:
        settings: dict[str, Any] = {"evaluation": {"enabled": True, "eval_period": 5}, "log_period": 2, "seed": 1}
        settings |= {"checkpointer": {"period": 3}}
        config = make_config(run_dir, **(settings | train))
        config.model.dropout = 0.2
        config.optim = LazyCall(torch.optim.AdamW)(lr=0.02)
        config.train.scheduler = LazyCall(WarmupCosineLR)(max_iter=10, warmup_iter=2, warmup_factor=0.1)
        config.train.resume = True
        trainer = kind(config)
        trainer.register_hooks([HookLog(calls, cut)])
        trainer.train()
        return trainer

    logging.getLogger("treadle").setLevel(logging.INFO)
    with Console() as console:
        if cut is not None:
            try:
                attempt(cut)
            except CutError:
                calls.append("-- killed --")
            forget_logs()
        trainer = attempt(None)
    forget_logs()
    found = Record(events=counted(calls), console=plain_console((run_dir / "log.txt").read_text(), folder))
    found.console += plain_console(console.text, folder) if not found.console else []
    found.metrics, found.keys, found.config = rows_in(run_dir, "metrics.json"), keys_in(run_dir), plain_config(run_dir)
    found.end = end_of(trainer.model, trainer.optimizer)
    return found


class OwnEpoch(RecommenderTrainer):
    """Writes the loop of an epoch itself, as RecBole's users do."""

    def _train_epoch(
        self, train_data: Any, epoch_idx: int, loss_func: Any = None, show_progress: bool = False
    ) -> float:
        self.model.train()
        total = 0.0
        for interaction in train_data:
            self.optimizer.zero_grad()
            loss = self.model.calculate_loss(interaction)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total


def recommender(
    folder: Path,
    model: str = "BPR",
    *,
    cut: int | None = None,
    kind: Any = None,
    cuts: type[Exception] = CutError,
    **given: Any,
) -> Record:
    """Train a recommender, cut after some update and started again if asked, and return what happened."""
    events, run_dir = EventLog(), folder / "run"

    def attempt(*more: Any) -> Any:
        settings = {"run_dir": str(run_dir), "save_every": 2, "learning_rate": 0.01, **given}
        made = runs.make(folder, model, events, *more, kind=kind, **settings)
        made.trainer.fit(made.train, made.valid, verbose=True)
        print("test", {name: round(value, 4) for name, value in made.trainer.evaluate(made.test).items()})
        return made

    with Console() as console:
        if cut is not None:
            try:
                attempt(CutAt(cut))
            except cuts:
                events.calls.append("-- killed --")
        made = attempt()
    found = Record(events=counted(events.calls), console=plain_console(console.text, folder))
    found.metrics, found.keys, found.config = rows_in(run_dir), keys_in(run_dir), plain_config(run_dir)
    found.end = end_of(made.model)
    found.end["losses"] = {str(epoch): loss for epoch, loss in made.trainer.train_loss_dict.items()}
    found.end["best"] = [made.trainer.best_valid_score, made.trainer.cur_step]
    return found


def one_shot(folder: Path, kind: Any = nas.DartsTrainer, *, cut: int | None = None, **options: Any) -> Record:
    """Search by a one-shot trainer, cut after some update and started again if asked, and return what happened."""
    events, run_dir = EventLog(), folder / "run"

    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)

    def attempt(*more: Any) -> Any:
        torch.manual_seed(5)
        trainer = space.make(kind, run_dir=run_dir, callbacks=[events, *more], scheduler=schedule, **options)
        trainer.fit(resume="auto", save_every=1, log_every=2)
        print(trainer.export())
        return trainer

    with Console() as console:
        if cut is not None:
            try:
                attempt(CutAt(cut))
            except CutError:
                events.calls.append("-- killed --")
        trainer = attempt()
    found = Record(events=counted(events.calls), console=plain_console(console.text, folder))
    found.metrics, found.keys, found.config = rows_in(run_dir), keys_in(run_dir), plain_config(run_dir)
    found.end = end_of(trainer.supernet)
    return found


PROGRAMS: dict[str, Callable[[Path], Record]] = {}
for _precision in ("fp32", "bf16", "fp16"):
    for _parts in (1, 4):
        for _cut in (None, 5):
            _amp = {"enabled": _precision != "fp32", "dtype": "bf16" if _precision == "fp32" else _precision}
            PROGRAMS[f"engine {_precision} accumulation {_parts}{'' if _cut is None else ' resumed'}"] = partial(
                engine, cut=_cut, amp=_amp, num_accumulation_steps=_parts, train_micro_batch_size=8 // _parts
            )
PROGRAMS |= {
    "engine own step": partial(engine, kind=OwnStep),
    "engine own step resumed": partial(engine, kind=OwnStep, cut=5),
    "recommender BPR": recommender,
    "recommender BPR resumed": partial(recommender, cut=5),
    "recommender BPR bf16 resumed": partial(recommender, cut=5, precision="bf16"),
    "recommender KGAT": partial(recommender, model="KGAT", embedding_size=8, kg_embedding_size=8, layers="[8]"),
    "recommender KGAT resumed": partial(
        recommender, model="KGAT", embedding_size=8, kg_embedding_size=8, layers="[8]", cut=6
    ),
    "recommender own epochs": partial(recommender, kind=OwnEpoch),
    "recommender own epochs resumed": partial(recommender, kind=OwnEpoch, cut=7, save_every="1 epoch"),
    "recommender RecVAE": partial(
        recommender, model="RecVAE", hidden_dimension=8, latent_dimension=4, epochs=2, train_batch_size=16
    ),
    "recommender Pop": partial(recommender, model="Pop"),
    "search darts": one_shot,
    "search darts resumed": partial(one_shot, cut=5),
    "search darts of second order": partial(one_shot, unrolled=True, gradient_accumulation_steps=2),
    "search darts bf16": partial(one_shot, precision="bf16"),
    "search gumbel resumed": partial(one_shot, kind=nas.GumbelDartsTrainer, cut=5),
    "search proxyless": partial(one_shot, kind=nas.ProxylessTrainer),
    "search enas resumed": partial(one_shot, kind=nas.EnasTrainer, cut=4),
    "search spos": partial(one_shot, kind=nas.SposTrainer),
}
