"""The hooks that have no behaviour of their own in the other files."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.parts import Classifier
from treadle.engine import EagerTrainer, TrainerBase, hooks
from treadle.engine.hooks.lr_scheduler import reported_group
from treadle.errors import ConfigError


class Empty(TrainerBase):
    def run_step(self) -> None:
        torch.ones(8, 8) @ torch.ones(8, 8)


def test_a_callback_hook_calls_its_functions_with_the_trainer_again_in_a_second_run() -> None:
    calls: list[str] = []
    moments = ("before_train", "before_step", "after_step", "after_train")
    functions: Any = {name: lambda trainer, name=name: calls.append(f"{name} {trainer.iter}") for name in moments}
    trainer = Empty()
    trainer.register_hooks([hooks.CallbackHook(**functions), hooks.CallbackHook()])
    trainer.train(0, 1)
    trainer.train(0, 1)
    assert calls == ["before_train 0", "before_step 0", "after_step 0", "after_train 1"] * 2


def test_the_profiler_writes_a_trace_of_the_iterations_that_are_chosen(tmp_path: Path) -> None:
    trainer = Empty()
    profiler = hooks.TorchProfiler(lambda own: own.iter == 1, str(tmp_path / "traces"), save_tensorboard=False)
    trainer.register_hooks([profiler])
    trainer.train(0, 3)
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name == "profiler-trace-iter1.json"
    assert any("aten::mm" in event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"])


def test_the_profiler_stops_recording_when_the_run_dies(tmp_path: Path) -> None:
    class Dying(TrainerBase):
        def run_step(self) -> None:
            raise ValueError("no")

    trainer = Dying()
    trainer.register_hooks([hooks.TorchProfiler(lambda own: True, str(tmp_path))])
    with pytest.raises(ValueError, match="no"):
        trainer.train(0, 1)
    assert list(tmp_path.iterdir()) == []


def test_memory_statistics_do_nothing_without_cuda(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    trainer = Empty()
    trainer.register_hooks([hooks.TorchMemoryStats(period=1)])
    with caplog.at_level(logging.INFO, "treadle.engine.hooks"):
        trainer.train(0, 2)
    assert not [record for record in caplog.records if "reserved" in record.message]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"loss": self.norm(inputs).pow(2).mean() + self.norm.bias.sum()}


def test_precise_statistics_are_the_means_over_the_batches() -> None:
    batches = [{"inputs": torch.tensor([[1.0], [3.0]])}, {"inputs": torch.tensor([[5.0], [9.0]])}]
    model = Normed()
    trainer = EagerTrainer(model, batches, torch.optim.SGD(model.parameters(), lr=0.0))
    trainer.register_hooks([hooks.PreciseBN(0, model, batches, num_iter=2)])
    trainer.train(0, 3)
    assert model.norm.running_mean is not None
    assert model.norm.running_var is not None
    assert model.norm.running_mean.item() == pytest.approx((2 + 7) / 2)
    assert model.norm.running_var.item() == pytest.approx((2 + 8) / 2)
    assert model.norm.momentum == 0.1
    with pytest.raises(ConfigError, match=r"PreciseBN\(num_iter=0\) must be at least 1"):
        hooks.PreciseBN(1, model, batches, 0)


def test_a_model_without_statistics_is_left_alone() -> None:
    model = Classifier()
    hook = hooks.PreciseBN(1, model, [], num_iter=1)
    hook.update_stats()


def test_the_rate_reported_is_that_of_the_largest_group_or_the_commonest() -> None:
    def optimizer(*groups: tuple[int, float]) -> Any:
        made = [{"params": [nn.Parameter(torch.zeros(1)) for _ in range(count)], "lr": lr} for count, lr in groups]
        return torch.optim.SGD(made, lr=1.0)

    assert reported_group(optimizer((1, 0.1), (3, 0.2))) == 1
    assert reported_group(optimizer((1, 0.1), (1, 0.2), (1, 0.2))) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hooks.PeriodicCheckpointer(None, -1), "checkpointer.period=-1 must be 0, for the end only"),
        (lambda: hooks.BestCheckpointer(1, None, "a", "best"), r"BestCheckpointer\(mode='best'\): use 'max' or 'min'"),
        (lambda: hooks.EarlyStop("a", patience=0), r"EarlyStop\(patience=0, mode='max'\): use 1 or more"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_schedule_that_is_none_is_refused() -> None:
    trainer = Empty()
    hook = hooks.LRScheduler(scheduler=object())
    hook.trainer = trainer
    with pytest.raises(ConfigError, match="is no schedule of an optimizer"):
        hook.before_train()
