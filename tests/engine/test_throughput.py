"""How fast a run is: what is reported, from which iterations, and what it costs."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.parts import Classifier, make_config
from treadle.engine import DefaultTrainer, EagerTrainer, TrainerBase, hooks
from treadle.engine.hooks.throughput import FlopsCounter, count_forward, device_peak_flops, peak_by_name
from treadle.errors import ConfigError
from treadle.events import get_event_storage


class Empty(TrainerBase):
    def run_step(self) -> None:
        pass


@pytest.mark.parametrize(("warmup", "expected"), [(3, 48), (0, 50), (1, 50), (100, 0)])
def test_b39_the_first_iterations_are_left_out_of_the_time(warmup: int, expected: int) -> None:
    trainer = Empty()
    trainer.register_hooks([hooks.IterationTimer(warmup_iter=warmup)])
    trainer.train(0, 50)
    times = trainer.storage.history("time").values() if expected else []
    assert len(times) == expected
    assert ("time" in trainer.storage.names()) == bool(expected)


def test_b39_the_timer_says_how_fast_the_run_was(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Empty()
    trainer.register_hooks([hooks.IterationTimer()])
    with caplog.at_level(logging.INFO, "treadle"):
        trainer.train(0, 10)
    assert "overall training speed: 8 iterations in 0:00:00" in caplog.text
    assert "total training time: 0:00:00" in caplog.text


def test_b39_every_rate_is_logged(tmp_path: Path) -> None:
    made = make_config(tmp_path, train_iter=8)
    made.train.tokens_per_sample = 5
    made.train.peak_flops = 1e12
    trainer = DefaultTrainer(made)
    trainer.train()
    names = {"samples_per_second", "steps_per_second", "tokens_per_second", "mfu", "data_time", "time", "eta_seconds"}
    lines = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    assert names | {"peak_memory_mib"} <= set(lines[-1])
    assert "mfu" not in lines[2]
    assert lines[0]["data_time"] >= 0
    values = {name: trainer.storage.latest()[name][0] for name in names}
    # 8 samples, 5 tokens each; two layers of 2 x 8 and 8 x 2, a multiplication and an addition, forward and backward.
    assert values["samples_per_second"] == pytest.approx(8 * values["steps_per_second"])
    assert values["tokens_per_second"] == pytest.approx(5 * values["samples_per_second"])
    assert values["mfu"] == pytest.approx(values["samples_per_second"] * 3 * 2 * (16 + 16) / 1e12)


def test_b39_counting_operations_leaves_the_run_as_it_would_be(tmp_path: Path) -> None:
    passes: list[int] = []

    class Reporting(Classifier):
        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            passes.append(1)
            get_event_storage().put_scalar("mean_input", inputs.mean())
            return super().forward(inputs, labels)

    class Own(DefaultTrainer):
        def build_hooks(self) -> list[Any]:
            return [hook for hook in super().build_hooks() if counting or not isinstance(hook, hooks.Throughput)]

        @classmethod
        def build_model(cls, cfg: Any) -> nn.Module:
            return Reporting(dropout=0.5)

    weights = []
    for counting in (True, False):
        trainer = Own(make_config(tmp_path / str(counting)))
        trainer.train()
        weights.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        assert len(trainer.storage.history("mean_input").values()) == 10
    assert all(torch.equal(own, other) for own, other in zip(*weights, strict=True))


def test_a_model_that_cannot_be_counted_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    class Reading(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * inputs.sum().item()

    counter = FlopsCounter()
    with caplog.at_level(logging.INFO, "treadle"):
        counter.count(Reading(), (torch.ones(2),), {})
    assert counter.flops_per_sample is None
    assert "mfu is not reported: the operations of Reading cannot be counted" in caplog.text


def test_the_length_of_a_token_input_is_the_tokens_of_a_sample() -> None:
    class Embedding(nn.Embedding):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids)

    counter = FlopsCounter()
    counter.count(Embedding(3, 2), (), {"input_ids": torch.zeros(4, 7, dtype=torch.long)})
    assert counter.tokens_per_sample == 7


def test_recomputed_blocks_are_counted_once() -> None:
    from treadle.engine.config.builders import set_activation_checkpoint

    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    set_activation_checkpoint(model, ["Linear"])
    assert count_forward(model, (torch.zeros(2, 4),), {}) == 48


def test_operations_are_counted_in_a_step_of_ones_own_too() -> None:
    class Own(EagerTrainer):
        def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
            self.model(**get_batch(next(self._data_loader_iter)))["losses"].backward()
            self.optimizer.step()

    model = Classifier()
    batch = {"inputs": torch.ones(4, 2), "labels": torch.zeros(4, dtype=torch.long)}
    trainer = Own(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.register_hooks([hooks.Throughput(period=5, peak_flops=1.0)])
    trainer.train(0, 5)
    samples = trainer.storage.latest()["samples_per_second"][0]
    assert trainer.storage.latest()["mfu"][0] == pytest.approx(samples * 3 * 2 * 32)
    assert not model._forward_pre_hooks


def test_the_peak_of_a_device_is_looked_up_by_its_name() -> None:
    assert peak_by_name("NVIDIA H100 80GB HBM3", "bf16") == 989e12
    assert peak_by_name("NVIDIA H100 PCIe", "fp16") == 756e12
    assert peak_by_name("NVIDIA A100-SXM4-40GB", "fp32") == 19.5e12
    assert peak_by_name("Something else", "bf16") is None
    assert device_peak_flops(torch.device("cpu"), "fp32") is None


def test_a_period_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Throughput\(period=0\) must be at least 1"):
        hooks.Throughput(0)
