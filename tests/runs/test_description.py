"""What a resumed run says of a loss, an activation, a seed or rows of data that are no longer what they were."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from tests.interrupting import CutAt, CutError, make_trainer, samples
from treadle.errors import CheckpointError
from treadle.runs.description import describe_changes, describe_loss, rows_checksum
from treadle.trainer import Trainer


def model(activation: Callable[[], nn.Module] = nn.ReLU, rate: float = 0.1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), activation(), nn.Dropout(rate), nn.Linear(4, 1))


def partly_frozen() -> nn.Module:
    made = model()
    made[0].requires_grad_(False)  # type: ignore[operator]
    return made


class Scaled(nn.Module):
    """A model that calculates with a number of its own."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.inside = model()
        self.scale = scale

    def forward(self, inputs: Tensor) -> Any:
        return self.inside(inputs) * self.scale


class Rows(Dataset[Any]):
    """Data of the user's own making."""

    def __init__(self, value: float = 0.0, count: int = 24) -> None:
        self.inputs = np.arange(count * 2, dtype=np.float32).reshape(count, 2) / count
        self.inputs[7, 1] += value
        self.drawn = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        self.drawn += 1
        row = torch.from_numpy(self.inputs[index])
        return row, row.sum(0, keepdim=True)


def lines_of_a_resume(
    run: Path, then: dict[str, Any], now: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return what a run says that is cut and gone on with by a program that was changed."""

    def start(options: dict[str, Any], *callbacks: Any) -> Any:
        options = {"build": model, "data": samples(), "eval_data": samples(8), **options}
        data, evaluated = options.pop("data"), options.pop("eval_data")
        training = {name: options.pop(name) for name in ("gradient_clip_value", "collate_fn") if name in options}
        trainer = make_trainer(run, *callbacks, **options)
        trainer.train(data, 2, save_every=2, resume="auto", eval_dataset=evaluated, **training)
        return trainer

    with pytest.raises(CutError):
        start(then, CutAt(3))
    capsys.readouterr()
    assert start(now).progress.step == 6
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"resuming from step 2 of {run}"
    return said[:-1]


class Absolute(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        outputs = self.model(batch[0])
        return {"loss": (outputs - batch[1]).abs().mean(), "model_outputs": outputs, "batch_size": len(outputs)}


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "nothing": ({}, {}, []),
    "nothing of a user's data": ({"data": Rows()}, {"data": Rows()}, []),
    "the loss": (
        {},
        {"loss_func": nn.L1Loss()},
        [
            "the loss function was MSELoss(reduction='mean') and is L1Loss(reduction='mean') now; the run continues "
            "with that"
        ],
    ),
    "a setting of the loss": (
        {"loss_func": nn.HuberLoss(delta=1.0)},
        {"loss_func": nn.HuberLoss(delta=2.0)},
        [
            "the loss function was HuberLoss(delta=1.0, reduction='mean') and is HuberLoss(delta=2.0, "
            "reduction='mean') now; the run continues with that"
        ],
    ),
    "a function for a module": (
        {"loss_func": squared},
        {"loss_func": F.l1_loss},
        ["the loss function was squared and is l1_loss now; the run continues with that"],
    ),
    "an argument of a function": (
        {"loss_func": partial(F.huber_loss, delta=1.0)},
        {"loss_func": partial(F.huber_loss, delta=3.0)},
        [
            "the loss function was huber_loss with delta=1.0 and is huber_loss with delta=3.0 now; the run continues "
            "with that"
        ],
    ),
    "the activation": (
        {},
        {"build": partial(model, nn.Tanh)},
        ["the module '1' was ReLU() and is Tanh() now; the run continues with the new one"],
    ),
    "two modules": (
        {},
        {"build": partial(model, nn.Tanh, 0.5)},
        ["the module '1' was ReLU() and is Tanh() now (and 1 more modules differ); the run continues with the new one"],
    ),
    "the rate of a dropout": (
        {},
        {"build": partial(model, rate=0.5)},
        [
            "the module '2' was Dropout(p=0.1, inplace=False) and is Dropout(p=0.5, inplace=False) now; the run "
            "continues with the new one"
        ],
    ),
    "an attribute of a model of your own": (
        {"build": Scaled},
        {"build": partial(Scaled, 3.0)},
        ["scale: 1.0 when the run was saved, 3.0 now; it continues with that"],
    ),
    "which weights learn": (
        {},
        {"build": partly_frozen},
        ["weights that learn: 4 (16d71f8d) when the run was saved, 2 (fbb8cbe6) now; it continues with that"],
    ),
    "the bound of gradients": (
        {},
        {"gradient_clip_value": 0.5},
        ["gradient_clip_value: None when the run was saved, 0.5 now; it continues with that"],
    ),
    "how samples are joined": (
        {},
        {"collate_fn": default_collate},
        ["collate_fn: None when the run was saved, default_collate now; it continues with that"],
    ),
    "the seed": (
        {"seed": 1},
        {"seed": 2},
        [
            "the seed was 1 and is 2 now; the run continues with the random numbers of the checkpoint, so that the new "
            "seed has no effect"
        ],
    ),
    "a row": (
        {"data": Rows()},
        {"data": Rows(0.5)},
        ["the rows of the training data are not those of when the run was saved; it continues with these"],
    ),
    "a row to evaluate on": (
        {"eval_data": Rows(0.0, 8)},
        {"eval_data": Rows(0.5, 8)},
        ["the rows of the evaluation data are not those of when the run was saved; it continues with these"],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_since_the_checkpoint_is_told_in_a_line(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    then, now, told = CHANGES[what]
    assert lines_of_a_resume(tmp_path / "run", dict(then), dict(now), capsys) == told


def test_a_verb_of_the_users_that_was_changed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Squared(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            outputs = self.model(batch[0])
            return {"loss": (outputs - batch[1]).pow(2).mean(), "model_outputs": outputs, "batch_size": len(outputs)}

    Squared.calculate_train_batch_loss.__qualname__ = Absolute.calculate_train_batch_loss.__qualname__
    assert lines_of_a_resume(tmp_path / "run", {"kind": Absolute}, {"kind": Squared}, capsys) == [
        "the code of Absolute.calculate_train_batch_loss is not that of when the run was saved; it continues with this"
    ]


def test_rows_of_tensors_that_are_sampled_still_refuse_and_others_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def data(row: int) -> TensorDataset:
        inputs, targets = samples(200).tensors
        inputs = inputs.clone()
        inputs[row] += 1
        return TensorDataset(inputs, targets)

    def train(row: int) -> Any:
        trainer = make_trainer(tmp_path, build=model)
        trainer.train(data(row), 1, max_steps=4 if row else 3, save_every=3, resume="auto", per_device_batch_size=20)
        return trainer

    assert train(0).progress.step == 3
    with pytest.raises(CheckpointError, match=r"data\.rows"):
        train(199)
    plain = make_trainer(tmp_path, build=model)
    inputs, targets = data(0).tensors
    inputs[1] += 1  # none of the 64 rows that a run is known by
    plain.train(TensorDataset(inputs, targets), 1, max_steps=4, resume="auto", per_device_batch_size=20)
    assert plain.progress.step == 4
    assert "the rows of the training data are not those of when the run was saved" in capsys.readouterr().out


class Weighted(nn.CrossEntropyLoss):
    """A loss with classes of different weight."""


def test_weights_of_a_loss_are_part_of_what_it_is() -> None:
    one, other = (Weighted(weight=torch.tensor([1.0, value])) for value in (1.0, 2.0))
    assert describe_loss(one) != describe_loss(other)
    assert describe_loss(one) == describe_loss(Weighted(weight=torch.tensor([1.0, 1.0])))
    first, second = (lambda o, t: (o - t).abs().mean()), (lambda o, t: (o - t).pow(2).mean())
    assert describe_loss(first) != describe_loss(second)
    assert describe_loss(None) is None


class Careful(Dataset[Any]):
    """Data that must not be drawn from by anybody else."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nobody asked for a sample")


def test_rows_are_seen_without_drawing_a_sample() -> None:
    base = TensorDataset(torch.arange(6.0))
    assert rows_checksum(Careful()) is None
    seen = [
        rows_checksum(base),
        rows_checksum(Subset(base, [0, 1])),
        rows_checksum(Subset(base, [0, 2])),
        rows_checksum(ConcatDataset([base, base])),
        rows_checksum([(torch.zeros(2), 1), (torch.ones(2), 0)]),
        rows_checksum([(torch.zeros(2), 0), (torch.ones(2), 0)]),
        rows_checksum({"text": ["a", "b"], "label": np.array([0, 1])}),
        rows_checksum({"text": ["a", "c"], "label": np.array([0, 1])}),
        rows_checksum(Rows()),
        rows_checksum(np.array(3.0)),
    ]
    assert None not in seen
    assert len(set(seen)) == len(seen)
    assert rows_checksum(TensorDataset(torch.arange(6.0))) == rows_checksum(base)
    assert rows_checksum(np.array([object()])) is None
    assert rows_checksum(torch.zeros(3, device="meta")) is None


def test_checkpoints_of_older_versions_and_edited_ones_say_nothing() -> None:
    present = {"loss": None, "modules": {"": "Linear()"}, "seed": 1, "data": {"training": "0"}, "code": {}}
    assert describe_changes({}, present, same_python=True) == []
    assert describe_changes({"modules": 3, "data": [], "code": None}, present, same_python=True) == []
    changed = {"modules": {"": "ReLU()"}}
    assert describe_changes(changed, present, same_python=True) == [
        "the model was ReLU() and is Linear() now; the run continues with the new one"
    ]


class Lines(Dataset[Any]):
    """Data in a file, read as it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        value = float(Path(self.path).read_text().splitlines()[index])
        return torch.full((2,), value), torch.full((1,), value)


def test_a_file_of_data_that_changed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.txt"
    data = Lines(path)
    path.write_text("".join(f"{row / 24}\n" for row in range(24)))
    assert lines_of_a_resume(tmp_path / "same", {"data": data}, {"data": data}, capsys) == []
    with pytest.raises(CutError):
        make_trainer(tmp_path / "run", CutAt(5)).train(data, 2, save_every=2)
    path.write_text("".join(f"{row / 25}\n" for row in range(24)))
    capsys.readouterr()
    resumed = make_trainer(tmp_path / "run")
    resumed.train(data, 2, save_every=2, resume="auto")
    assert resumed.progress.step == 6
    assert capsys.readouterr().out.splitlines() == [
        f"resuming from step 4 of {tmp_path / 'run'}",
        f"files of the data have changed since the run was last started: {path}; it continues with these",
    ]


def test_of_many_files_of_data_that_changed_three_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"rows{number}.txt" for number in range(5)]
    for path in paths:
        path.write_text("".join(f"{row / 24}\n" for row in range(24)))
    data = ConcatDataset([Lines(path) for path in paths])
    with pytest.raises(CutError):
        make_trainer(tmp_path / "run", CutAt(5)).train(data, 1, save_every=2)
    for path in paths:
        path.write_text("".join(f"{row / 25}\n" for row in range(24)))
    capsys.readouterr()
    resumed = make_trainer(tmp_path / "run")
    resumed.train(data, 1, save_every=2, resume="auto")
    assert resumed.progress.step == 15
    named = ", ".join(map(str, paths[:3]))
    assert capsys.readouterr().out.splitlines() == [
        f"resuming from step 4 of {tmp_path / 'run'}",
        f"files of the data have changed since the run was last started: {named} and 2 more; it continues with these",
    ]
