"""A step of this door never reads the device, between the iterations at which a log is due."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from tests.engine.parts import Classifier
from tests.guards.no_sync import DEVICES, no_sync
from treadle.engine import EagerTrainer, Graph, GraphTrainer, hooks
from treadle.engine.core import EngineCore, EngineRun
from treadle.optim.param_groups import get_default_optimizer_params


class OwnStep(EagerTrainer):
    """Draws its data, which a host may read, and then does everything else guarded."""

    def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
        data = get_batch(next(self._data_loader_iter))
        with no_sync(data["inputs"].device.type):
            losses = self.model(**data)
            losses["losses"].backward()
            self.write_metrics(losses, 0.0)
            self.optimizer.step()
            self.optimizer.zero_grad()


def guarded(method: Callable[..., None], calls: list[int]) -> Callable[..., None]:
    """Return a method of the core or its run that may read nothing, but in the first iteration and in the last."""

    def guard(of: EngineCore | EngineRun) -> AbstractContextManager[None]:
        core = of.trainer if isinstance(of, EngineRun) else of
        if not 0 < core.face.iter < core.face.max_iter - 1:
            return nullcontext()
        calls.append(core.face.iter)
        return no_sync(core.device.type)

    def call(of: EngineCore | EngineRun, *args: Any) -> None:
        with guard(of):
            method(of, *args)

    return call


@pytest.mark.parametrize("mode", ["eager", "accumulated", "graph", "own step"])
@pytest.mark.parametrize("device", DEVICES)
def test_b37_no_iteration_waits_for_the_device(mode: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(EngineRun, "after_update", guarded(EngineRun.after_update, calls))
    if mode != "own step":
        monkeypatch.setattr(EngineCore, "update", guarded(EngineCore.update, calls))
    model = Classifier().to(device)
    groups = get_default_optimizer_params(model, clip_grad_max_norm=1.0, clip_grad_norm_type=2.0)
    optimizer = torch.optim.SGD(groups, lr=0.1)
    batch = {"inputs": torch.ones(4, 2, device=device), "labels": torch.zeros(4, dtype=torch.long, device=device)}
    trainer: EagerTrainer = EagerTrainer(model, [batch], optimizer, 2 if mode == "accumulated" else 1)
    if mode == "graph":
        trainer = GraphTrainer(Graph(model, optimizer, backend="eager"), [batch])
    elif mode == "own step":
        trainer = OwnStep(model, [batch], optimizer)
    trainer.register_hooks(
        [
            hooks.IterationTimer(),
            hooks.Throughput(period=100),
            hooks.LRScheduler(scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)),
            hooks.EvalHook(0, lambda: {"accuracy": 1.0}),
            hooks.EarlyStop("accuracy"),
            hooks.PeriodicWriter([], period=100),
        ]
    )
    trainer.train(0, 8)
    assert sorted(set(calls)) == [1, 2, 3, 4, 5, 6]
    assert len(trainer.storage.history("total_loss").values()) == 8
