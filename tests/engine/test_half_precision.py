"""fp16 in this door: overflows leave updates out, and where no scale helps the run continues in another format."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.parts import Classifier, iterations_of, make_config
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer, hooks
from treadle.optim.param_groups import get_default_optimizer_params


class Bending(Classifier):
    """A classifier whose gradients in fp16 are infinite until `last` of its passes, or whose loss is from there on."""

    def __init__(self, last: int, kind: str) -> None:
        super().__init__()
        self.last, self.kind, self.passes = last, kind, 0
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = super().forward(inputs, labels)
        self.passes += 1
        kept = self.get_buffer("kept").add_(1)
        half = self.head(inputs.new_zeros(1, 8)).dtype == torch.float16
        if half and self.kind == "gradient" and self.passes <= self.last:
            # The gradient of sqrt at 0 is infinite.
            outputs["losses"] = outputs["losses"] + torch.sqrt(self.head.weight.sum() * 0)
        if half and self.kind == "loss" and kept >= self.last:
            outputs["losses"] = outputs["losses"] * math.inf
        return outputs


def config(folder: Path, last: int, kind: str = "gradient", **train: Any) -> Any:
    made = make_config(folder, log_period=20, **{"train_iter": 70, **train})
    made.train.amp = {"enabled": True, "dtype": "fp16"}
    made.model = LazyCall(Bending)(last=last, kind=kind)
    groups = LazyCall(get_default_optimizer_params)(clip_grad_max_norm=1.0, clip_grad_norm_type=2.0)
    made.optim = LazyCall(torch.optim.SGD)(params=groups, lr=0.1, momentum=0.9)
    return made


def cut_at(iteration: int, trainer: Any) -> Any:
    """Let the run die after an iteration."""

    def cut(own: Any) -> None:
        if own.iter == iteration:
            raise RuntimeError("cut")

    trainer.register_hooks([hooks.CallbackHook(after_step=cut)])
    return trainer


def test_the_norm_of_a_gradient_that_overflowed_is_no_reason_to_end_the_run(tmp_path: Path) -> None:
    trainer = DefaultTrainer(config(tmp_path, last=3, train_iter=25))
    trainer.train()
    assert trainer.core.precision.kind == "fp16"
    assert trainer.core.storage.series("skipped_steps").values[-1] >= 3
    assert not all(map(math.isfinite, trainer.core.storage.series("grad_norm").values))
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


def test_where_no_scale_helps_the_run_goes_on_in_another_format(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        trainer = DefaultTrainer(config(tmp_path, last=100))
        before = [weight.detach().clone() for weight in trainer.model.parameters()]
        seen: list[bool] = []

        def compare(own: Any) -> None:
            seen.append(all(map(torch.equal, own.model.parameters(), before)))

        trainer.register_hooks([hooks.CallbackHook(after_step=compare)])
        trainer.train()
    assert seen == [True] * 60 + [False] * 10
    assert trainer.core.precision.kind == "fp32"
    assert "precision='fp16' will not do: the gradients of 8 updates in a row overflowed" in caplog.text


def test_a_loss_that_is_not_finite_in_fp16_is_tried_in_another_format(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        trainer = DefaultTrainer(config(tmp_path, last=10, kind="loss"))
        trainer.train()
    assert trainer.core.precision.fallback["step"] == 20
    assert "precision='fp16' will not do: total_loss is inf at iteration 9" in caplog.text
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


def test_a_run_that_fell_back_is_resumed_as_it_was(tmp_path: Path) -> None:
    whole = DefaultTrainer(config(tmp_path / "whole", last=100, checkpointer={"period": 15}))
    whole.train()
    with pytest.raises(RuntimeError, match="cut"):
        cut_at(53, DefaultTrainer(config(tmp_path / "cut", last=100, checkpointer={"period": 15}))).train()
    again = cut_at(67, DefaultTrainer(config(tmp_path / "cut", last=100, checkpointer={"period": 15}, resume=True)))
    with pytest.raises(RuntimeError, match="cut"):
        again.train()
    resumed = DefaultTrainer(config(tmp_path / "cut", last=100, checkpointer={"period": 15}, resume=True))
    made = iterations_of(resumed)
    resumed.train()
    assert made == list(range(60, 70))
    assert resumed.core.precision.fallback == whole.core.precision.fallback
    for own, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_bad_loss_that_nobody_had_looked_at_when_the_run_was_saved_is_acted_on_after_it_is_resumed(
    tmp_path: Path,
) -> None:
    def made(name: str, **train: Any) -> Any:
        return config(tmp_path / name, last=10, kind="loss", checkpointer={"period": 15}, **train)

    whole = DefaultTrainer(made("whole"))
    whole.train()
    with pytest.raises(RuntimeError, match="cut"):
        cut_at(16, DefaultTrainer(made("cut"))).train()
    resumed = DefaultTrainer(made("cut", resume=True))
    iterations = iterations_of(resumed)
    resumed.train()
    assert iterations == list(range(15, 70))
    assert resumed.core.precision.fallback == whole.core.precision.fallback
    for own, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(own, other)


class Normalised(Classifier):
    """A classifier with a block that has running means."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.BatchNorm1d(8))

    def set_activation_checkpoint(self) -> list[nn.Module]:
        return [self.body]


def test_running_means_of_recomputed_blocks_move_once(tmp_path: Path) -> None:
    def trained(name: str, enabled: bool) -> Any:
        made = make_config(tmp_path / name, activation_checkpoint={"enabled": enabled})
        made.model = LazyCall(Normalised)()
        trainer = DefaultTrainer(made)
        trainer.train()
        return trainer.model

    for one, other in zip(trained("a", True).buffers(), trained("b", False).buffers(), strict=True):
        assert torch.equal(one, other)
