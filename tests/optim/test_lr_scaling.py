"""Rates that follow the batch: the factor, and when it is applied."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.interrupting import make_trainer, samples
from treadle import LRScaling
from treadle.errors import ConfigError
from treadle.optim.lr_scaling import scale_rates


@pytest.mark.parametrize(
    ("rule", "batch", "factor"),
    [("linear", 512, 4.0), ("linear", 32, 0.25), ("sqrt", 512, 2.0), ("sqrt", 32, 0.5), ("none", 512, 1.0)],
)
def test_the_factor_is_that_of_the_rule(rule: str, batch: int, factor: float) -> None:
    assert LRScaling(rule, reference_batch_size=128).factor(batch) == factor


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("liner", 8), "lr_scaling: rule='liner' is unknown; did you mean 'linear'?"),
        (("cubic", 8), "lr_scaling: rule='cubic' is unknown; use one of ('none', 'linear', 'sqrt')"),
        (("linear", 0), "lr_scaling: reference_batch_size=0 must be a whole number above 0"),
        (("sqrt",), "lr_scaling: rule='sqrt' needs reference_batch_size=, the samples of one update that the rate was"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LRScaling(*arguments)
    assert str(caught.value).startswith(message)


def test_every_group_is_scaled_and_so_is_the_rate_that_a_schedule_starts_from() -> None:
    optimizer = torch.optim.SGD(
        [{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1}, {"params": [nn.Parameter(torch.zeros(1))], "lr": 0.3}]
    )
    optimizer.param_groups[1]["initial_lr"] = 0.6
    scale_rates(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.15]
    assert optimizer.param_groups[1]["initial_lr"] == 0.3


def rate(trainer: Any) -> float:
    return float(trainer.optimizer.param_groups[0]["lr"])


def test_a_run_has_its_rate_scaled_once_before_its_schedule_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(None)
    base, seen = rate(trainer), []

    def schedule(optimizer: Any) -> Any:
        seen.append(optimizer.param_groups[0]["lr"])
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)

    scaling = LRScaling("linear", reference_batch_size=2)
    options: dict[str, Any] = {"per_device_batch_size": 4, "gradient_accumulation_steps": 2, "lr_scaling": scaling}
    for _ in range(2):
        trainer.train(samples(), 1, create_scheduler_fn=schedule, **options)
    assert seen == [pytest.approx(4 * base)] * 2
    assert trainer.run_config.lr_scaling == {"rule": "linear", "reference_batch_size": 2}
    assert (
        "learning rates are multiplied by 4: linear in the batch, 8 samples where they were chosen for 2"
        in capsys.readouterr().out
    )
    trainer.train(samples(), 1)
    assert rate(trainer) == pytest.approx(base)


def test_batches_of_an_unknown_size_are_refused_with_what_to_do() -> None:
    batches = ([torch.ones(2, 2), torch.zeros(2, 1)] for _ in range(2))
    with pytest.raises(ConfigError, match="lr_scaling: rule='sqrt' needs a batch size, and the data comes in batches"):
        make_trainer(None).train(batches, 1, lr_scaling=LRScaling("sqrt", 4))


def test_a_rule_that_is_only_a_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lr_scaling='linear'; pass LRScaling\('linear', reference_batch_size=256\)"):
        make_trainer(None).train(samples(), 1, lr_scaling="linear")  # type: ignore[arg-type]
