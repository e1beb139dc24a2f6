"""Recorded steps, on a recorder for the CPU: everything but the CUDA graph itself."""

import itertools
import random
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, default_collate
from torchmetrics.classification import MulticlassAccuracy

from tests.execution.recording import noted_steps
from tests.execution.taped import Recorded, data, same_state, train
from tests.interrupting import Updates, updates_of
from treadle import Trainer
from treadle.callbacks import ModelEmaCallback, TrainerCallback
from treadle.data import InMemoryDataset
from treadle.errors import CaptureError
from treadle.execution.cuda_graph.graph_cache import WARM_UP
from treadle.execution.cuda_graph.inputs import GatheredInputs

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.5},
    "short last batch": {"per_device_batch_size": 16},
    "accumulation": {"gradient_accumulation_steps": 2},
    "uneven accumulation": {"gradient_accumulation_steps": 3, "per_device_batch_size": 6},
    "clipped norm": {"clip_norm": 0.1},
    "clipped values": {"gradient_clip_value": 0.01},
    "skipping": {"trainer": {"on_nonfinite": "skip"}},
    "sums": {"trainer": {"loss_reduction": "sum"}},
    "bf16": {"trainer": {"precision": "bf16"}},
    "constant rate by epoch": {
        "create_scheduler_fn": lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        "scheduler_interval": "epoch",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_replayed_steps_give_the_bits_of_ordinary_ones(case: str) -> None:
    eager, expected = train(Trainer, **CASES[case])
    recorded, result = train(Recorded, **CASES[case])
    same_state(eager, recorded)
    assert result.history == expected.history
    assert recorded.recorder.captures >= 1
    assert recorded.recorder.replays > 2 * recorded.recorder.captures


def test_a_schedule_moves_the_rate_of_every_replay() -> None:
    def schedule(optimizer: optim.Optimizer) -> Any:
        # Powers of two are the same number in the tensor that the recorded step reads.
        return optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step % 4))

    eager, _ = train(Trainer, create_scheduler_fn=schedule, fused=True)
    recorded, _ = train(Recorded, create_scheduler_fn=schedule, fused=True)
    same_state(eager, recorded)
    assert recorded.recorder.captures == 1
    assert isinstance(recorded.optimizer.param_groups[0]["lr"], float)


def test_the_first_steps_are_ordinary_ones_and_a_new_shape_is_recorded_when_it_comes_again() -> None:
    recorded, _ = train(Recorded, per_device_batch_size=16)
    # 40 samples are two batches of 16 and one of 8, three times: three of the first kind and two of the
    # other are trained on by replays, and two more replays of each were compared with steps.
    assert recorded.recorder.captures == 2
    assert recorded.recorder.replays == (6 - 3) + (3 - 1) + 2 * 2


def test_the_average_of_the_weights_moves_inside_of_the_recording(tmp_path: Path) -> None:
    averages, expected = (
        ModelEmaCallback(decay=0.5, evaluate_during_training=False, save_path=tmp_path / f"{name}.pt")
        for name in ("recorded", "expected")
    )
    recorded, _ = train(Recorded, callbacks=(averages,))
    train(Trainer, callbacks=(expected,))
    assert recorded.this_run.execution.recorded_callbacks == {averages}
    for mine, theirs in zip(averages.ema_model.parameters(), expected.ema_model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_what_a_verb_puts_is_put_again_by_every_replay() -> None:
    class Putting(Recorded):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            self.storage.put_scalar("largest", output["model_outputs"].max())
            return output

    class EagerlyPutting(Putting):
        def create_recorder(self) -> Any:
            return None

    recorded, _ = train(Putting)
    eager, _ = train(EagerlyPutting)
    mine, theirs = recorded.storage.series("largest"), eager.storage.series("largest")
    assert mine.values == theirs.values
    assert mine.steps == theirs.steps == list(range(15))


def test_callbacks_at_the_end_of_an_update_keep_working() -> None:
    class Counting(TrainerCallback):
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.norms: list[float] = []

        def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
            self.steps.append(trainer.progress.step)
            self.norms.append(float(trainer.gradient_norm))  # type: ignore[arg-type]

    recorded, eager = Counting(), Counting()
    train(Recorded, callbacks=(recorded,), clip_norm=0.1)
    train(Trainer, callbacks=(eager,), clip_norm=0.1)
    assert recorded.steps == list(range(1, 16))
    assert recorded.norms == eager.norms


class Listening(TrainerCallback):
    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:
        pass


class Appending(Recorded):
    seen: list[int]

    def training_run_start(self) -> None:
        self.seen = []

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.seen.append(len(batch[0]))
        return super().calculate_train_batch_loss(batch)


class Counting(Recorded):
    calls = 0

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.calls += 1
        return super().calculate_train_batch_loss(batch)


class UpdatingAMetric(Recorded):
    accuracy: Any

    def training_run_start(self) -> None:
        self.accuracy = MulticlassAccuracy(3, validate_args=False)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        self.accuracy.update(output["model_outputs"], batch[1])
        return output


class ReadingTheEpoch(Recorded):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * (1 + self.run_history.current_epoch)
        return output


class ReadingTheStep(Recorded):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * (1 + self.progress.step)
        return output


class CallingRandom(Recorded):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * random.random()
        return output


class SettingAFloatRate(Recorded):
    def optimizer_step(self) -> None:
        self.optimizer.param_groups[0]["lr"] *= 0.9
        super().optimizer_step()


class ReadingTheDevice(Recorded):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        if output["loss"].item() > 100:
            output["loss"] = output["loss"] / 2
        return output


class ReplacingATensor(Recorded):
    running: Tensor

    def training_run_start(self) -> None:
        self.running = torch.zeros(())

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        self.running = 0.9 * self.running + output["loss"].detach()
        return output


class HiddenCounter(Recorded):
    """Counts where no attribute shows it."""

    def training_run_start(self) -> None:
        self.numbers = itertools.count(1)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * next(self.numbers)
        return output


class Box:
    calls = 0


class CountingInAnObject(Recorded):
    """Changes a number that an object of its own keeps."""

    def training_run_start(self) -> None:
        self.box = Box()

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.box.calls += 1
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * self.box.calls
        return output


FAULTS: dict[type[Recorded], str] = {
    Appending: r"the step changes trainer\.seen",
    Counting: r"the step changes trainer\.calls",
    UpdatingAMetric: r"the step changes trainer\.accuracy\._update_count",
    ReadingTheEpoch: r"reads trainer\.run_history\.current_epoch at test_graph_on_tape\.py:\d+: output\[\"loss\"\]",
    ReadingTheStep: r"reads trainer\.progress\.step at test_graph_on_tape\.py:\d+",
    CallingRandom: r"draws from Python's generator on the host",
    SettingAFloatRate: r"sets a learning rate",
    ReadingTheDevice: r"the host wait for the device",
    ReplacingATensor: r"reads trainer\.running and then puts a new tensor",
    CountingInAnObject: r"the step changes trainer\.box\.calls; a replay runs no Python",
    HiddenCounter: r"two steps do not end where the same two steps ended before: ",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_step_that_a_replay_would_not_repeat_is_refused_by_name(fault: type[Recorded]) -> None:
    with pytest.raises(CaptureError, match=FAULTS[fault]):
        train(fault)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_auto_says_why_it_goes_step_by_step_and_loses_nothing(
    fault: type[Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    class Eager(fault):  # type: ignore[misc,valid-type]
        def create_recorder(self) -> Any:
            return None

    random.seed(0)
    automatic, _ = train(fault, trainer={"required": False})
    assert "execution='auto' goes step by step: " in capsys.readouterr().out
    random.seed(0)
    eager, _ = train(Eager, trainer={"required": False})
    if fault is HiddenCounter:  # it counted the steps that were tried, which nobody could know
        return
    same_state(automatic, eager)
    for name in ("seen", "calls", "running"):
        assert getattr(automatic, name, None) == getattr(eager, name, None)
    if fault is UpdatingAMetric:
        assert automatic.accuracy.compute() == eager.accuracy.compute()
        assert automatic.accuracy._update_count == 15


class CountingOnTheDevice(Recorded):
    """Changes tensors in place that nobody tracks."""

    def training_run_start(self) -> None:
        self.total = torch.zeros(())
        self.model.samples = torch.zeros((), dtype=torch.int64)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        self.total.add_(output["loss"].detach())
        self.model.samples.add_(len(batch[0]))
        return output


def test_tensors_that_a_step_changes_in_place_do_not_see_the_steps_that_were_only_tried() -> None:
    class Eager(CountingOnTheDevice):
        def create_recorder(self) -> Any:
            return None

    recorded, _ = train(CountingOnTheDevice, per_device_batch_size=16)
    eager, _ = train(Eager, per_device_batch_size=16)
    assert recorded.recorder.captures == 2
    assert torch.equal(recorded.total, eager.total)
    assert int(recorded.model.samples) == 3 * 40


def test_a_callback_on_micro_batches_is_refused_before_anything_is_recorded() -> None:
    with pytest.raises(CaptureError, match="Listening acts on every micro-batch"):
        train(Recorded, callbacks=(Listening(),))


def test_a_tensor_that_a_step_only_writes_is_harmless() -> None:
    class Keeping(Recorded):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            self.latest = output["loss"].detach()
            return output

    recorded, _ = train(Keeping)
    assert recorded.recorder.captures == 1


def test_a_run_that_is_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Any) -> None:
    whole, _ = train(Recorded, dropout=0.5)
    options = {"run_dir": tmp_path / "run"}
    train(Recorded, dropout=0.5, trainer=options, max_steps=8, save_every="1 step")
    resumed, _ = train(Recorded, dropout=0.5, trainer=options, resume="auto", callbacks=[Updates()])
    assert updates_of(resumed) == (8, 7)
    same_state(whole, resumed)


def test_a_rollback_records_anew(tmp_path: Any) -> None:
    class Poisoned(Recorded):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            output["loss"] = output["loss"] / (batch[0][0, 0] != MARK)
            return output

    class EagerlyPoisoned(Poisoned):
        def create_recorder(self) -> Any:
            return None

    ends = []
    for kind in (Poisoned, EagerlyPoisoned):
        options = {"run_dir": tmp_path / kind.__name__, "on_nonfinite": "rollback"}
        poisoned, _ = train(kind, trainer=options, save_every="2 steps", log_every=1, per_device_batch_size=4)
        assert poisoned.this_run.updater.skipped.steps
        ends.append(poisoned)
    same_state(*ends)


MARK = float(data().tensors[0][17, 0])


def test_frozen_weights_and_other_modes_of_modules_are_recorded_anew() -> None:
    class Thawing(TrainerCallback):
        def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
            first = trainer.model.get_submodule("0")
            first.requires_grad_(trainer.progress.epoch > 0)

    eager, _ = train(Trainer, callbacks=(Thawing(),))
    recorded, _ = train(Recorded, callbacks=(Thawing(),))
    for mine, theirs in zip(eager.model.parameters(), recorded.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert recorded.recorder.captures == 2


@pytest.mark.parametrize(
    "run", [{}, {"gradient_accumulation_steps": 2, "per_device_batch_size": 4}, {"per_device_batch_size": 16}]
)
def test_data_in_memory_is_gathered_inside_of_the_recording(
    run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = noted_steps(monkeypatch)
    eager, expected = train(Trainer, **run)
    recorded, result = train(Recorded, dataset=InMemoryDataset(*data().tensors), **run)
    same_state(eager, recorded)
    assert result.history == expected.history
    assert recorded.recorder.replays > 4
    assert steps
    assert all(isinstance(step.inputs, GatheredInputs) for step in steps)


def test_places_that_follow_each_other_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[int]] = []
    setting = GatheredInputs._set

    def noted(inputs: GatheredInputs, places: list[int]) -> None:
        written.append(places)
        setting(inputs, places)

    monkeypatch.setattr(GatheredInputs, "_set", noted)
    recorded, _ = train(Recorded, dataset=InMemoryDataset(*data().tensors), num_epochs=3, per_device_batch_size=4)
    first = 4 * WARM_UP
    # Two replays that are compared with steps, the end of recording, where the run continues, and each later epoch.
    assert written == [[first], [first], [first], [first], [0], [0]]
    assert recorded.recorder.replays == 2 + recorded.progress.step - WARM_UP


class Encoding(UserDict[str, Tensor]):
    """A mapping that is no dict, as tokenizers return it."""


def encoded(samples: list[Any]) -> Encoding:
    inputs, targets = default_collate(samples)
    return Encoding({"input": inputs, "labels": targets})


def test_batches_that_are_mappings_of_a_type_of_their_own_are_recorded() -> None:
    eager, _ = train(Trainer, dataset=DataLoader(data(), 8, collate_fn=encoded))
    recorded, _ = train(Recorded, dataset=DataLoader(data(), 8, collate_fn=encoded))
    same_state(eager, recorded)
    assert recorded.recorder.captures == 1


def test_data_in_memory_with_a_transform_is_gathered_before_the_step() -> None:
    def noisy(batch: Any, generator: torch.Generator) -> Any:
        return [batch[0] + torch.randn(batch[0].shape, generator=generator), batch[1]]

    eager, _ = train(Trainer, dataset=InMemoryDataset(*data().tensors, transform=noisy))
    recorded, _ = train(Recorded, dataset=InMemoryDataset(*data().tensors, transform=noisy))
    same_state(eager, recorded)
    assert recorded.recorder.captures == 1


def test_sgd_that_is_not_fused_cannot_follow_a_schedule_by_steps() -> None:
    with pytest.raises(CaptureError, match="SGD reads its learning rate on the host unless fused=True"):
        train(Recorded, create_scheduler_fn=lambda optimizer: optim.lr_scheduler.ConstantLR(optimizer))


def test_a_loop_of_ones_own_is_refused() -> None:
    class Looping(Recorded):
        def _run_train_epoch(self, train_dl: Any) -> None:
            for _ in train_dl:
                pass

    with pytest.raises(CaptureError, match="the loop of an epoch is your own"):
        train(Looping)


def test_momenta_that_change_each_step_are_recorded_up_to_the_budget_and_then_done_step_by_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def schedule(optimizer: optim.Optimizer) -> Any:
        return optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=100)

    eager, _ = train(Trainer, create_scheduler_fn=schedule, num_epochs=8, fused=True)
    recorded, _ = train(Recorded, create_scheduler_fn=schedule, num_epochs=8, fused=True)
    assert "cycle_momentum=False" in capsys.readouterr().out
    for mine, theirs in zip(eager.model.parameters(), recorded.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


class Holding(nn.Module):
    """Holds a sparse matrix and a table with holes, which no step changes."""

    def __init__(self, layout: torch.layout, *, multiplies: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.multiplies = multiplies
        self.graph: Tensor
        self.register_buffer("graph", torch.eye(8).to_sparse(layout=layout))
        self.register_buffer("table", torch.tensor([1.0, float("nan"), float("inf")]))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return torch.sparse.mm(self.graph, outputs) if self.multiplies else outputs


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=["coo", "csr"])
@pytest.mark.parametrize("multiplies", [False, True], ids=["only held", "multiplied with"])
def test_a_sparse_matrix_that_a_model_holds_keeps_no_run_from_going_on(layout: torch.layout, multiplies: bool) -> None:
    def end_of(kind: type[Trainer], **options: Any) -> Any:
        network = Holding(layout, multiplies=multiplies)
        optimizer = optim.SGD(network.parameters(), lr=0.125, momentum=0.5, foreach=True)
        trainer = kind(network, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=3, **options)
        trainer.train(data(), num_epochs=2, per_device_batch_size=8)
        return trainer

    automatic = end_of(Recorded, required=False)
    # The recorder of the tests is no more able to record sparse products than CUDA is.
    assert automatic.recorder.captures == (0 if multiplies else 1)
    assert torch.equal(automatic.model.layer.weight, end_of(Trainer).model.layer.weight)


NAMED = ["accuracy", "f1", "auroc", "perplexity"]


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}], ids=["plain", "accumulated"])
def test_metrics_of_training_are_recorded_with_the_step(settings: dict[str, Any]) -> None:
    options = {"metrics": NAMED}
    recorded, _ = train(Recorded, trainer=options, **settings)
    eager, _ = train(Trainer, trainer={**options, "execution": "eager"}, **settings)
    assert recorded.recorder.replays > 0
    same_state(recorded, eager)
    for name in NAMED:
        found = recorded.run_history.get_metric_values(f"train_{name}")
        assert len(found) == 3
        assert found == eager.run_history.get_metric_values(f"train_{name}")


def test_torchmetrics_that_count_in_training_are_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"metrics": {"accuracy": MulticlassAccuracy(3)}, "train_metrics": True, "required": False}
    trainer, _ = train(Recorded, trainer=options)
    assert trainer.recorder.replays == 0
    assert "train_metrics['accuracy']" in capsys.readouterr().out
    assert len(trainer.run_history.get_metric_values("train_accuracy")) == 3
