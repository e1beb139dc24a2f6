"""Metrics of training go on where a run was cut: the epoch's value is that of the run that was not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAUROC

from tests.interrupting import CutAt, CutError, Updates, updates_of
from treadle import Trainer

NAMES = ("train_accuracy", "train_auroc", "train_f1", "train_share", "train_torch")


def share(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.softmax(1).gather(1, targets[:, None])).mean()


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 4, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def built(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    # One that keeps every score, in lists.
    metrics = {name: name for name in ("accuracy", "auroc", "f1")} | {"share": share, "torch": MulticlassAUROC(3)}
    options = {"metrics": metrics, "train_metrics": True} | options
    return Trainer(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.2), callbacks, run_dir=folder, **options
    )


def train(trainer: Trainer) -> Trainer:
    # Six updates an epoch; saved every two.
    trainer.train(data(), 2, per_device_batch_size=4, save_every=2, resume="auto")
    return trainer


def values(trainer: Trainer) -> dict[str, list[float]]:
    return {name: [float(one) for one in trainer.run_history.get_metric_values(name)] for name in NAMES}


@pytest.mark.parametrize("cut", [5, 9])
def test_an_epoch_that_was_cut_has_the_metrics_of_one_that_was_not(tmp_path: Path, cut: int) -> None:
    whole = train(built(tmp_path / "whole", Updates()))
    with pytest.raises(CutError):
        train(built(tmp_path / "cut", CutAt(cut)))
    resumed = train(built(tmp_path / "cut", Updates()))
    # It went on inside the epoch, from what was saved, and not from its beginning.
    assert updates_of(resumed) == (cut - 1, 12 - (cut - 1))
    assert values(resumed) == values(whole)


def test_a_run_that_is_measured_from_the_middle_of_an_epoch_on_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CutError):
        train(built(tmp_path / "run", CutAt(5), metrics=None, train_metrics=None))
    resumed = train(built(tmp_path / "run", Updates()))
    assert updates_of(resumed) == (4, 8)
    assert "those of this epoch are over the rest of it" in capsys.readouterr().out
    assert len(resumed.run_history.get_metric_values("train_accuracy")) == 2


def test_a_run_that_is_no_longer_measured_goes_on(tmp_path: Path) -> None:
    with pytest.raises(CutError):
        train(built(tmp_path / "run", CutAt(5)))
    resumed = train(built(tmp_path / "run", Updates(), train_metrics=False))
    assert updates_of(resumed) == (4, 8)
