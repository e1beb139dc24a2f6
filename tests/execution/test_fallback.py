"""Runs that turn out not to be recordable: they go on step by step, and are resumed in the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

from tests.execution.taped import Recorded, data, same_state, train
from tests.interrupting import starts_of
from treadle import Trainer
from treadle.callbacks import StepTimer, TrainerCallback
from treadle.data import InMemoryDataset


class OnTheDevice(nn.Parameter):
    """A weight that is taken for one on a GPU, where optimizers can choose where they count."""

    is_cuda = True


class Counting(optim.Optimizer):
    """Takes larger steps if it counts on the device, as other optimizers take other roundings there."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {"lr": 0.1, "capturable": False})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(weight.grad, alpha=group["lr"] * (1.5 if group["capturable"] else 1.0))


class Keeping(TrainerCallback):
    """Keeps where the optimizer counted in each update."""

    def __init__(self) -> None:
        self.on_device: list[bool] = []

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self.on_device.append(trainer.optimizer.param_groups[0]["capturable"])


class Listening(Keeping):
    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:
        pass


class Reading(Recorded):
    """Cannot be recorded, which is found out when it is tried."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch[:2])
        if output["loss"].item() > 100:
            output["loss"] = output["loss"] / 2
        return output


class Pairs(Recorded):
    """Takes batches that have something else behind inputs and targets."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return super().calculate_train_batch_loss(batch[:2])


def batches() -> DataLoader[Any]:
    """Return a loader of ready batches, of which every other one holds what no recording can."""
    inputs, targets = data().tensors
    cuts = [(inputs[first : first + 8], targets[first : first + 8]) for first in range(0, 40, 8)]
    ready: Any = [(*cut, object()) if place % 2 else cut for place, cut in enumerate(cuts)]
    return DataLoader(ready, batch_size=None)


def schedule(optimizer: optim.Optimizer) -> Any:
    # Rates that are no numbers of single precision, to which recorded runs round them.
    return optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.37 * step))


def trained(kind: type[Recorded], dataset: Any, *callbacks: Any, folder: Path | None = None, **run: Any) -> Recorded:
    """Return a trainer that has trained."""
    torch.manual_seed(0)
    network = nn.Linear(4, 3)
    network.weight = OnTheDevice(network.weight.detach().clone())
    network.bias = OnTheDevice(network.bias.detach().clone())
    optimizer = Counting(network.parameters())
    options = {"callbacks": callbacks, "seed": 3, "run_dir": folder, "required": False}
    trainer = kind(network, nn.CrossEntropyLoss(), optimizer, **options)
    trainer.train(dataset, num_epochs=3, per_device_batch_size=8, create_scheduler_fn=schedule, **run)
    assert not optimizer.param_groups[0]["capturable"]
    return trainer


def end_of(kind: type[Recorded], dataset: Any, **run: Any) -> list[Tensor]:
    """Train and return the weights."""
    return [weight.detach().clone() for weight in trained(kind, dataset, **run).model.parameters()]


@pytest.mark.parametrize("cut", [1, 3, 9])
@pytest.mark.parametrize(("kind", "dataset"), [(Reading, data()), (Pairs, batches())], ids=["step", "batch"])
def test_a_run_that_could_not_be_recorded_is_resumed_in_the_same_bits(
    kind: type[Recorded], dataset: Any, cut: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = end_of(kind, dataset)
    assert "execution='auto' goes step by step: " in capsys.readouterr().out
    end_of(kind, dataset, folder=tmp_path / "run", save_every="1 step", max_steps=cut)
    resumed = end_of(kind, dataset, folder=tmp_path / "run", resume="auto")
    assert starts_of(tmp_path / "run") == [0, cut]
    assert all(map(torch.equal, resumed, whole))


def test_all_steps_of_a_run_that_is_tried_to_record_count_alike() -> None:
    tried, refused = Keeping(), Listening()
    trained(Reading, data(), tried)
    assert tried.on_device == [True] * 15
    trained(Reading, data(), refused)
    assert refused.on_device == [False] * 15


class Greedy(Recorded):
    """Has memory for half a batch."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        if len(batch[0]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().calculate_train_batch_loss(batch)


def test_data_in_memory_is_cut_finer_where_memory_runs_out_in_the_first_step() -> None:
    class Eager(Greedy):
        def create_recorder(self) -> Any:
            return None

    ends = []
    for kind in (Greedy, Eager):
        options = {"required": False, "microbatch": "auto"}
        ends.append(train(kind, dataset=InMemoryDataset(*data().tensors), trainer=options)[0])
    assert ends[0].this_run.updater.splits.parts == 2
    same_state(*ends)


def test_an_error_in_a_step_tells_the_shapes_of_batches_that_were_gathered_from_memory() -> None:
    class Failing(Recorded):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing") as caught:
        train(Failing, dataset=InMemoryDataset(*data().tensors))
    assert caught.value.__notes__ == [
        "at step 1, epoch 1, in calculate_train_batch_loss, for batches of [float32 (8, 4), int64 (8,)]"
    ]


def test_the_parts_of_a_step_are_timed_once_it_is_known_that_none_is_replayed() -> None:
    trainer = trained(Reading, data(), StepTimer(every=1))
    assert not trainer.this_run.execution.replays
    timed = trainer.storage.names("step")
    assert {"step_time/recorded", "step_time/forward", "step_time/backward", "step_time/update"} <= timed
