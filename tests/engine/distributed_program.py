"""What the tests of several processes run under torchrun; each scenario reports what its ranks saw."""

import json
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.engine.parts import Classifier, Points, make_config
from tests.engine.test_evaluation import Seen
from tests.engine.test_iterations import Remembering
from treadle.config import LazyCall
from treadle.engine import DatasetEvaluator, DefaultTrainer, EagerTrainer, dist, hooks, inference_on_dataset
from treadle.engine.checkpointer import Checkpointer
from treadle.errors import ConfigError, NonFiniteError
from treadle.optim.param_groups import get_default_optimizer_params


def config(folder: Path, *, processes: int, **train: Any) -> Any:
    """Return a config whose global batch is 8 samples, whatever the number of processes."""
    settings = {"train_micro_batch_size": 8 // processes, "global_batch_size": 8, "train_iter": 12, **train}
    made = make_config(folder, **settings)
    made.dataloader.train = LazyCall(Points)(count=40)
    made.optim = LazyCall(torch.optim.SGD)(
        params=LazyCall(get_default_optimizer_params)(clip_grad_max_norm=0.05, clip_grad_norm_type=2.0), lr=0.1
    )
    return made


def report_of(trainer: DefaultTrainer) -> dict[str, Any]:
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    storage = trainer.storage
    return {
        "weights": weights.tolist(),
        "losses": storage.history("total_loss").values(),
        "norms": storage.history("grad_norm").values(),
        "samples": storage.samples,
        "results": trainer._last_eval_results,
        "start": trainer.start_iter,
        "steps": trainer.checkpointer.store.steps(),
        "best": trainer.checkpointer.store.pointer("best"),
    }


def whole(folder: Path) -> dict[str, Any]:
    trainer = DefaultTrainer(
        config(folder, processes=dist.get_world_size(), evaluation={"enabled": True, "eval_period": 4})
    )
    trainer.train()
    return report_of(trainer)


def interrupted(folder: Path) -> dict[str, Any]:
    """Ask to stop after seven of twelve iterations, for another number of processes to go on."""
    trainer = DefaultTrainer(config(folder, processes=dist.get_world_size(), checkpointer={"period": 7}))
    trainer.register_hooks([hooks.CallbackHook(after_step=lambda own: own.iter == 6 and own.request_stop("enough"))])
    trainer.train()
    return {"done": trainer.iter}


def resumed(folder: Path) -> dict[str, Any]:
    trainer = DefaultTrainer(config(folder, processes=dist.get_world_size(), resume=True))
    consumed: list[tuple[int, int]] = []
    note = hooks.CallbackHook(after_step=lambda own: consumed.append((own.iter, own.storage.samples)))
    trainer.register_hooks([note])
    trainer.train()
    return report_of(trainer) | {"consumed": consumed}


def own_step(folder: Path) -> dict[str, Any]:
    trainer = DefaultTrainer(config(folder, processes=dist.get_world_size()))
    trainer._trainer = Remembering(trainer.model, trainer.train_loader, trainer.optimizer)
    trainer.train()
    return report_of(trainer)


class Beside(Remembering):
    """Trains something of its own beside the model, with an optimizer that it makes itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        torch.manual_seed(5)
        self.probe = torch.nn.Linear(1, 1)
        self.opt_probe = torch.optim.SGD(self.probe.parameters(), lr=0.1)

    def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
        super().run_step(get_batch)
        self.opt_probe.zero_grad()
        (self.probe.weight.sum() * sum(self.previous_output.values()).detach()).backward()
        self.opt_probe.step()


def own_optimizer(folder: Path) -> dict[str, Any]:
    trainer = DefaultTrainer(config(folder, processes=dist.get_world_size()))
    inner = trainer._trainer = Beside(trainer.model, trainer.train_loader, trainer.optimizer)
    trainer.train()
    return report_of(trainer) | {"probe": inner.probe.weight.item()}


def evaluated(folder: Path) -> dict[str, Any]:
    model = DefaultTrainer(config(folder, processes=dist.get_world_size())).model
    found: dict[str, Any] = {}
    for count in (1, 5, 8, 11):
        evaluator = Seen()
        loader = torch.utils.data.DataLoader(Points(count), batch_size=2)
        inference_on_dataset(model, loader, evaluator=evaluator)
        found[str(count)] = sorted(evaluator.samples)
    return found


class Normed(Classifier):
    """A classifier with a batch norm, whose statistics each rank moves by its own batches, outside of its `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = self.body
        self.body = nn.Sequential(self.model, nn.BatchNorm1d(8))


class Strength(DatasetEvaluator):
    """The sum of all scores: a number that no two models share."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total = 0.0

    def process(self, inputs: Any, outputs: Any) -> None:
        self.total += float(outputs["prediction_scores"].double().abs().sum())

    def evaluate(self) -> dict[str, float]:
        return {"strength": self.total}


class OwnStep(DefaultTrainer):
    """Makes its steps itself, so that nothing of torch's keeps buffers alike."""

    def run_step(self) -> None:
        batch = next(self.core.batches)
        loss = self.model(**batch)["losses"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.storage.put_scalar("total_loss", loss.detach())


class Dying:
    """Dies in its second evaluation, when the iteration before it is saved."""

    calls = 0

    @classmethod
    def test(cls, *args: Any, **kwargs: Any) -> Any:
        cls.calls += 1
        if cls.calls == 2:
            raise RuntimeError("killed")
        return super().test(*args, **kwargs)  # type: ignore[misc]

    @classmethod
    def of(cls, kind: type[DefaultTrainer]) -> Any:
        return type("Dead", (cls, kind), {})


def normed_config(folder: Path, **train: Any) -> Any:
    evaluation = {"enabled": True, "eval_period": 4, "eval_metric": "strength", "evaluator": LazyCall(Strength)()}
    made = config(folder, processes=dist.get_world_size(), evaluation=evaluation, checkpointer={"period": 2}, **train)
    made.model = LazyCall(Normed)()
    return made


def strength_of(folder: Path, iteration: int) -> float:
    """Return what the model of a checkpoint is worth, seen by this process alone."""
    model = Normed()
    Checkpointer(model).load(folder / "checkpoints" / f"step_{iteration:08d}")
    data = Points(count=20, seed=1)
    return float(model.eval()(data.points, data.labels)["prediction_scores"].double().abs().sum())


def normed(folder: Path) -> dict[str, Any]:
    """Train with batch norm in one go, and dead before an evaluation and resumed; by the core's step and an own one."""
    found: dict[str, Any] = {}
    for name, kind in (("core", DefaultTrainer), ("own", OwnStep)):
        by_hand: list[float] = []
        place = folder / name / "whole"
        trainer = kind(normed_config(place))
        own = weakref.proxy(trainer)

        def look(own: Any = own, by_hand: list[float] = by_hand) -> dict[str, Any]:
            # As somebody evaluates who never heard of Treadle: this rank, its model, all of the data.
            data, mode = Points(count=20, seed=1), own.model.training
            scores = own.model.eval()(data.points, data.labels)["prediction_scores"]
            own.model.train(mode)
            by_hand.append(float(scores.double().abs().sum()))
            return {}

        trainer.register_hooks([hooks.EvalHook(4, look)])
        trainer.train()
        reported = trainer.storage.history("strength").values()
        saved = [strength_of(place, iteration) for iteration in (4, 8, 12)]
        with suppress(RuntimeError):
            Dying.of(kind)(normed_config(folder / name / "dead")).train()
        again = kind(normed_config(folder / name / "dead", resume=True))
        again.train()
        found[name] = {
            "reported": [value for value, _ in reported],
            "by_hand": by_hand,
            "saved": saved,
            "start": again.start_iter,
            "resumed": [value for value, _ in again.storage.history("strength").values()],
        }
    return found


def eager(folder: Path) -> dict[str, Any]:
    """Train without a config in one go, and stopped and resumed; then with a hook that one process alone has."""

    def start(place: Path, end: int, *, resume: bool, alone: bool = False) -> EagerTrainer:
        torch.manual_seed(7)
        model = Classifier(dropout=0.5)
        loader = torch.utils.data.DataLoader(Points(), batch_size=4, shuffle=True)
        trainer = EagerTrainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        checkpointer = Checkpointer(model, place, trainer=trainer)
        saves = dist.is_main_process() or not alone
        trainer.register_hooks([hooks.PeriodicCheckpointer(checkpointer, 2) if saves else None])
        checkpointer.resume_or_load("", resume=resume)
        trainer.train(trainer.iter + 1 if resume and checkpointer.has_checkpoint() else 0, end)
        return trainer

    def weights(trainer: EagerTrainer) -> list[float]:
        return torch.cat([one.detach().flatten() for one in trainer.model.parameters()]).tolist()

    whole = start(folder / "whole", 6, resume=False)
    start(folder / "cut", 4, resume=False)
    gone_on = start(folder / "cut", 6, resume=True)
    error = ""
    try:
        start(folder / "alone", 4, resume=False, alone=True)
    except ConfigError as found:
        error = str(found)
    return {"whole": weights(whole), "resumed": weights(gone_on), "start": gone_on.start_iter, "error": error}


def waiting(folder: Path) -> dict[str, Any]:
    """Let the last rank wait for its data."""

    class Slow(Points):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.05 if dist.is_last_process() else 0.0)
            return super().__getitem__(index)

    class Own(DefaultTrainer):
        @classmethod
        def build_train_loader(cls, cfg: Any, tokenizer: Any = None) -> Any:
            return torch.utils.data.DataLoader(Slow(16), batch_size=cfg.train.train_micro_batch_size)

    trainer = Own(config(folder, processes=dist.get_world_size(), train_iter=2))
    trainer.train()
    return {"waited": trainer.storage.latest()["data_time"][0], "own": trainer.core.data_time}


def poisoned(folder: Path) -> dict[str, Any]:
    """Make the loss of the last rank alone no number, in one iteration."""

    class Own(DefaultTrainer):
        def get_batch(self, data: Any) -> Any:  # type: ignore[override]
            bad = dist.is_last_process() and self.iter == 2
            return {**data, "inputs": data["inputs"] * (float("nan") if bad else 1.0)}

    trainer = Own(config(folder, processes=dist.get_world_size(), log_period=4))
    try:
        trainer.train()
    except NonFiniteError as error:
        return {"error": str(error), "iter": trainer.iter}
    return {}


SCENARIOS: tuple[Callable[[Path], dict[str, Any]], ...] = (
    *(whole, interrupted, resumed, own_step, own_optimizer, evaluated, normed, eager, waiting, poisoned),
)


def main(folder: Path, names: list[str]) -> None:
    """Run the scenarios called `names`, each in a folder of its own unless a name gives another."""
    known = {scenario.__name__: scenario for scenario in SCENARIOS}
    for entry in names:
        name, _, place = entry.partition(":")
        found = known[name](folder / (place or name))
        (folder / f"{name}.rank{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
