"""Wrong results that other trainers gave their users: each by its number in the survey, if no other test has it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.interrupting import (
    CutAt,
    CutError,
    adamw,
    assert_same_bits,
    assert_same_run,
    checkpoint_steps,
    contents,
    make_trainer,
    metric_lines,
    momentum,
    network,
    plain_network,
    samples,
    train_through,
    updates_of,
)
from treadle import Phase, TrainerCallback
from treadle.callbacks import ModelEmaCallback, SaveTrainingStateCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.data import Stream
from treadle.trainer import Trainer

# 1 to 5: accumulation -------------------------------------------------------------------------------------

TOKENS = 5


def sentences() -> tuple[Tensor, Tensor, Tensor]:
    """16 sentences of up to five words, their targets, and which words are there."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(16, TOKENS, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(16, TOKENS, generator=generator, dtype=torch.float64)
    lengths = torch.arange(16) % TOKENS + 1
    return words, targets, torch.arange(TOKENS)[None, :] < lengths[:, None]


class Reader(nn.Module):
    """A model of words; it returns its own loss, a mean over words, if it is given targets."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, words: Tensor, targets: Tensor | None = None, there: Tensor | None = None) -> Any:
        outputs = self.layer(words).squeeze(-1)
        if targets is None or there is None:
            return outputs
        loss = (outputs - targets).square()[there].mean()
        return {"loss": loss, "logits": outputs, "num_items_in_batch": there.sum()}


class ByVerb(Trainer):
    """The loss over words by the verb, with the number of words it is a mean over."""

    count: Any = staticmethod(lambda there: int(there.sum()))

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        words, targets, there = batch
        loss = (self.model(words) - targets).square()[there].mean()
        return {"loss": loss, "model_outputs": None, "batch_size": len(words), "num_items_in_batch": self.count(there)}


class ByVerbOnDevice(ByVerb):
    count = staticmethod(lambda there: there.sum())


class SummedVerb(Trainer):
    """The sum over words: no count is needed to add sums up."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        words, targets, there = batch
        loss = (self.model(words) - targets).square()[there].sum() / 48
        return {"loss": loss, "model_outputs": None, "batch_size": len(words)}


class OwnLoss(Trainer):
    """The loss that the model returns, with its count, as the verb hands it on."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = self.model(*batch)
        return {**output, "model_outputs": output["logits"], "batch_size": len(batch[0])}


PATHS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a verb that counts": (ByVerb, {}),
    "a verb that counts on the device": (ByVerbOnDevice, {}),
    "a verb that sums": (SummedVerb, {"loss_reduction": "sum"}),
    "the model's own loss": (OwnLoss, {}),
}


@pytest.mark.parametrize("path", list(PATHS))
@pytest.mark.parametrize("size", [8, 3, 1, 5])
def test_bug_01_and_02_the_split_into_micro_batches_does_not_show(path: str, size: int) -> None:
    kind, options = PATHS[path]

    def gradient(batch: int) -> Tensor:
        model = Reader()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = kind(model, None, optimizer, callbacks=(), device="cpu", seed=1, **options)
        before = model.layer.weight.detach().clone()
        trainer.train(
            TensorDataset(*sentences()),
            1,
            per_device_batch_size=batch,
            gradient_accumulation_steps=-(-16 // batch),
            train_dataloader_kwargs={"shuffle": False},
        )
        assert trainer.progress.step == 1
        return before - model.layer.weight.detach()

    words, targets, there = sentences()
    model = Reader()
    (model(words) - targets).square()[there].mean().backward()
    assert int(there.sum()) == 46
    expected = model.layer.weight.grad
    assert expected is not None
    scale = 46 / 48 if "sums" in path else 1.0
    torch.testing.assert_close(gradient(size), expected * scale, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("accumulation", [2, 8])
def test_bug_04_a_short_window_is_averaged_over_what_is_in_it(accumulation: int) -> None:
    trainer = make_trainer(None, build=plain_network, optimizer=partial(torch.optim.SGD, lr=0.1))
    options: dict[str, Any] = {"per_device_batch_size": 4, "train_dataloader_kwargs": {"shuffle": False}}
    trainer.train(samples(20), 1, gradient_accumulation_steps=accumulation, **options)
    assert trainer.progress.step == -(-5 // accumulation)
    reference = make_trainer(None, build=plain_network, optimizer=partial(torch.optim.SGD, lr=0.1))
    reference.train(samples(20), 1, **(options | {"per_device_batch_size": 4 * accumulation}))
    torch.testing.assert_close(trainer.model.weight, reference.model.weight, rtol=1e-6, atol=0)


def test_bug_05_an_evaluation_does_not_know_of_accumulation() -> None:
    def losses(accumulation: int) -> list[float]:
        trainer = make_trainer(None, build=plain_network, optimizer=partial(torch.optim.SGD, lr=0.0))
        result = trainer.train(samples(), 1, samples(20), gradient_accumulation_steps=accumulation)
        values: list[float] = result.history["eval_loss_epoch"]
        return values

    assert losses(1) == losses(3)


# 8 to 12: resume ------------------------------------------------------------------------------------------


def test_bug_08_a_run_resumed_into_a_new_folder_touches_nothing_outside_it(tmp_path: Path) -> None:
    states = SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=4)
    whole = make_trainer(tmp_path / "first", states)
    whole.train(samples(), 4, log_every=1)
    before = contents(tmp_path)
    resumed = make_trainer(tmp_path / "second", checkpoints=Policy(keep_last=1))
    resumed.train(samples(), 4, log_every=1, resume_from=tmp_path / "states" / "step_4")
    assert {name: content for name, content in contents(tmp_path).items() if not name.startswith("second")} == before
    assert updates_of(resumed) == (4, 8)
    assert_same_run(resumed, whole)
    assert [row["step"] for row in metric_lines(tmp_path / "second")] == list(range(5, 13))


def test_bug_08_a_run_that_falls_back_keeps_no_best_of_the_future(tmp_path: Path) -> None:
    def train(*callbacks: Any) -> Any:
        trainer = make_trainer(tmp_path, *callbacks, checkpoints=Policy(keep_last=None, best="eval_loss_epoch"))
        trainer.train(samples(), 3, samples(8), resume="auto")
        return trainer

    train()
    store = CheckpointStore(tmp_path / "checkpoints", Policy())
    for step in store.steps()[1:]:
        (store.path(step) / "rank_0.json").write_text("{}")
    cut = CutAt(4)
    with pytest.raises(CutError):
        train(cut)
    assert (cut.began, cut.made) == (3, 1)
    assert store.pointer("last") == 3
    assert store.pointer("best") in (None, 3)


class Recorded(Dataset[Any]):
    """Samples that carry their own numbers."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), 1.0]), torch.tensor([1.0]), index


class Seen(TrainerCallback):
    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def on_train_step_end(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        self.batches[trainer.progress.step + 1] = batch[2].tolist()


class FirstTwo(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return super().calculate_train_batch_loss(batch[:2])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("own", [False, True], ids=["data set", "loader"])
def test_bug_10_no_sample_is_repeated_or_lost_by_a_resume_within_an_epoch(
    tmp_path: Path, workers: int, own: bool
) -> None:
    def train(run_dir: Path, *callbacks: Any) -> dict[int, list[int]]:
        seen = Seen()
        trainer = make_trainer(run_dir, seen, *callbacks, kind=FirstTwo, build=plain_network)
        data: Any = Recorded()
        options: dict[str, Any] = {"train_dataloader_kwargs": {"num_workers": workers}}
        if own:
            data, options = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers), {}
        try:
            trainer.train(data, max_steps=60, save_every=30, resume="auto", **options)
        except CutError:
            return {}
        return seen.batches

    whole = train(tmp_path / "whole")
    train(tmp_path / "cut", CutAt(33))
    rest = train(tmp_path / "cut")
    assert rest == {step: whole[step] for step in range(31, 61)}
    epoch = [whole[step] for step in range(21, 31)] + [rest[step] for step in range(31, 41)]
    assert sorted(index for batch in epoch for index in batch) == list(range(160))


def test_bug_11_a_second_resume_in_one_epoch_does_not_lose_the_place(tmp_path: Path) -> None:
    def train(trainer: Any) -> None:
        trainer.train(samples(48), 2, per_device_batch_size=4, save_every=1, resume="auto")

    whole = make_trainer(tmp_path / "whole")
    train(whole)
    cut = train_through([2, 4, 6, 8, 10], partial(make_trainer, tmp_path / "cut"), train, saved=1)
    assert_same_run(cut, whole)


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), (1, False), pytest.param(2, False, marks=pytest.mark.slow), (1, True)],
)
def test_bug_12_a_stream_that_was_begun_goes_to_the_place_it_is_told(workers: int, persistent: bool) -> None:
    def stream() -> Stream:
        loader = DataLoader(
            TensorDataset(torch.arange(40)), batch_size=4, num_workers=workers, persistent_workers=persistent
        )
        return Stream(loader, device=torch.device("cpu"), seed=1)

    begun = stream()
    begun.begin(0)
    first = [begun.window(1)[0][0].tolist() for _ in range(6)]
    state = begun.state_dict()
    other = stream()
    other.begin(0)
    other.window(1)
    other.load_state_dict(state)
    assert other.window(1)[0][0].tolist() == [24, 25, 26, 27]
    assert other.state_dict()["drawn"] == 7
    other.window(1)
    again = stream()
    again.load_state_dict(other.state_dict())
    assert again.window(1)[0][0].tolist() == [32, 33, 34, 35]
    assert first[0] == [0, 1, 2, 3]


# 19 to 28 -------------------------------------------------------------------------------------------------


def test_bug_21_a_state_saved_while_the_average_is_evaluated_has_the_weights_that_are_trained(tmp_path: Path) -> None:
    class SavesInside(TrainerCallback):
        def on_eval_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.save_training_state(tmp_path / "inside")

    average = ModelEmaCallback(decay=0.9, save_path=tmp_path / "average.pt", callbacks=[SavesInside])
    trainer = make_trainer(None, average)
    trainer.train(samples(), 1, samples(8))
    trained = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    assert not torch.equal(average.ema_model.module[0].weight, trainer.model[0].weight)
    trainer.load_training_state(tmp_path / "inside")
    assert_same_bits(trainer.model.state_dict(), trained)


def test_bug_22_an_evaluation_after_a_resume_is_the_whole_evaluation(tmp_path: Path) -> None:
    counts: dict[int, int] = {}

    class Counts(TrainerCallback):
        def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
            counts[trainer.progress.step] = counts.get(trainer.progress.step, 0) + 1

    def train(run_dir: Path, *callbacks: Any) -> Any:
        trainer = make_trainer(run_dir, *callbacks)
        trainer.train(samples(), 4, samples(20), eval_every="2 steps", save_every=1, resume="auto")
        return trainer

    whole = train(tmp_path / "whole")
    with pytest.raises(CutError):
        train(tmp_path / "cut", CutAt(5))
    resumed = train(tmp_path / "cut", Counts)
    assert counts == {6: 3, 8: 3, 10: 3, 12: 3}
    assert updates_of(resumed) == (4, 8)
    assert_same_run(resumed, whole)


def test_bug_23_two_optimizers_count_one_step_for_each_update(tmp_path: Path) -> None:
    class Taking(Trainer):
        def phases(self, epoch: int) -> Any:
            stream, loss = self._train_dataloader, self.calculate_train_batch_loss
            for _ in range(3):
                for name in ("one", "two"):
                    yield Phase(name, stream, loss, self.optimizer[name], steps=1)  # type: ignore[arg-type]

    model: Any = network()
    optimizers = {"one": momentum(model[0].parameters()), "two": adamw(model[3].parameters())}
    options: dict[str, Any] = {"callbacks": (), "seed": 1, "device": "cpu", "checkpoints": Policy(keep_last=None)}
    trainer = Taking(model, nn.MSELoss(), optimizers, run_dir=tmp_path, **options)
    result = trainer.train(samples(), 2, per_device_batch_size=4, log_every=1, save_every=3)
    assert result.steps == 12
    assert [row["step"] for row in metric_lines(tmp_path)] == list(range(1, 13))
    assert [step for step in checkpoint_steps(tmp_path) if step > 0] == [3, 6, 9, 12]


def test_bug_26_the_curve_has_each_step_once_after_any_number_of_cuts(tmp_path: Path) -> None:
    def train(trainer: Any) -> None:
        trainer.train(samples(), 4, log_every=1, save_every=3, resume="auto")

    train_through([2, 4, 5, 8, 8, 11], partial(make_trainer, tmp_path), train, saved=3)
    assert [row["step"] for row in metric_lines(tmp_path)] == list(range(1, 13))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_bug_28_the_loss_that_is_shown_is_not_scaled(accumulation: int) -> None:
    def losses(precision: str) -> Any:
        trainer = make_trainer(
            None, build=plain_network, precision=precision, optimizer=partial(torch.optim.SGD, lr=0.0)
        )
        arguments = {"per_device_batch_size": 2, "gradient_accumulation_steps": accumulation, "log_every": 1}
        trainer.train(samples(), 1, samples(8), **arguments)
        epoch = [trainer.run_history.get_latest_metric(name) for name in ("train_loss_epoch", "eval_loss_epoch")]
        return [*epoch, *trainer.storage.series("train_loss").values]

    assert losses("fp16") == pytest.approx(losses("fp32"), rel=2e-3)
