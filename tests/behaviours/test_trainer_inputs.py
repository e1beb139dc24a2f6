"""What `Trainer` can be given: data in every form, batches of every kind, metrics, accumulation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torchmetrics import Accuracy, MeanSquaredError, MetricCollection

from treadle.callback import TrainerCallback
from treadle.data import Stream
from treadle.trainer import Trainer

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(24, 2, generator=GENERATOR)
TARGETS = INPUTS @ torch.tensor([[1.0], [-2.0]]) + 0.5
DATA = TensorDataset(INPUTS, TARGETS)
BATCHES = list(zip(INPUTS.split(8), TARGETS.split(8), strict=True))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 1)


def make_trainer(*callbacks: Any, model: nn.Module | None = None, kind: type[Trainer] = Trainer, **kwargs: Any) -> Any:
    model = make_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"loss_func": nn.MSELoss(), "device": "cpu", "seed": 3, **kwargs}
    return kind(model, optimizer=optimizer, callbacks=callbacks, **options)


def by_hand(
    epochs: int, accumulation: int = 1, model: nn.Module | None = None, batches: list[Any] = BATCHES
) -> nn.Module:
    """The loop that everybody writes: the reference for all others, to the last bit."""
    model = make_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for start in range(0, len(batches), accumulation):
            window = batches[start : start + accumulation]
            for inputs, targets in window:
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss / len(window) if len(window) > 1 else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_same_weights(model: nn.Module, expected: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other), name


class Samples(Dataset[Any]):
    """A map-style data set with only the two methods that it must have."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index], TARGETS[index]

    def __len__(self) -> int:
        return 24


class SamplesTogether(Samples):
    """A map-style data set that fetches a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [self[index] for index in indices]


class Streamed(IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(DATA)


class Ready:
    """Ready batches, without a length and without an index."""

    def __iter__(self) -> Iterator[Any]:
        yield from BATCHES


class ReadyWithLength(Ready):
    def __len__(self) -> int:
        return 3


class Unsized:
    """A batch sampler with nothing but an iterator, which is all that torch asks of one."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([*range(8)], [*range(8, 16)], [*range(16, 24)])


FORMS: dict[str, Callable[[], Any]] = {
    "map-style data set": Samples,
    "data set that fetches together": SamplesTogether,
    "TensorDataset": lambda: DATA,
    "list of samples": lambda: [DATA[index] for index in range(24)],
    "tuple of samples": lambda: tuple(DATA[index] for index in range(24)),
    "DataLoader": lambda: DataLoader(DATA, batch_size=8),
    "DataLoader with a worker": lambda: DataLoader(DATA, batch_size=8, num_workers=1),
    "DataLoader with a sampler": lambda: DataLoader(DATA, batch_size=8, sampler=SequentialSampler(DATA)),
    "DataLoader with a list as sampler": lambda: DataLoader(DATA, batch_size=8, sampler=list(range(24))),
    "DataLoader with a list of batches": lambda: DataLoader(
        DATA, batch_sampler=[list(range(start, start + 8)) for start in (0, 8, 16)]
    ),
    "DataLoader with torch's BatchSampler": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), batch_size=8, drop_last=False)
    ),
    "DataLoader with a batch sampler without length": lambda: DataLoader(DATA, batch_sampler=Unsized()),
    "DataLoader without batching": lambda: DataLoader(BATCHES, batch_size=None),
    "IterableDataset": Streamed,
    "DataLoader of an IterableDataset": lambda: DataLoader(Streamed(), batch_size=8),
    "iterable of batches": Ready,
    "iterable of batches with a length": ReadyWithLength,
}


@pytest.mark.parametrize("form", list(FORMS))
def test_the_same_data_in_any_form_trains_as_the_loop_written_by_hand(form: str) -> None:
    trainer = make_trainer()
    source = FORMS[form]()
    in_order = {"shuffle": False} if hasattr(source, "__getitem__") and not isinstance(source, DataLoader) else None
    result = trainer.train(source, 2, eval_dataset=FORMS[form](), train_dataloader_kwargs=in_order)
    assert_same_weights(trainer.model, by_hand(2))
    assert (result.steps, result.epochs, trainer.progress.samples) == (6, 2, 48)
    assert len(result.history["eval_loss_epoch"]) == 2


def test_a_generator_lasts_for_one_epoch() -> None:
    trainer = make_trainer()
    assert trainer.train((batch for batch in BATCHES), 1).steps == 3
    assert_same_weights(trainer.model, by_hand(1))


def test_an_endless_iterable_trains_until_the_step_limit() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield from BATCHES

    trainer = make_trainer()
    result = trainer.train(endless(), max_steps=6)
    assert (result.steps, result.stop_reason) == (6, "all 6 steps are done")
    assert_same_weights(trainer.model, by_hand(2))


class Seen(TrainerCallback):
    def __init__(self) -> None:
        self.epochs: list[list[list[float]]] = []

    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        self.epochs.append([])

    def on_train_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        self.epochs[-1].extend(batch[0].tolist())


SHUFFLED: dict[str, Callable[[], Any]] = {
    "the trainer's own": lambda: DATA,
    "DataLoader(shuffle=True)": lambda: DataLoader(DATA, batch_size=8, shuffle=True),
    "DataLoader with a RandomSampler": lambda: DataLoader(DATA, batch_size=8, sampler=RandomSampler(DATA)),
    "DataLoader with a generator": lambda: DataLoader(
        DATA, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(4)
    ),
}


@pytest.mark.parametrize("form", list(SHUFFLED))
def test_shuffled_data_comes_in_another_order_each_epoch_and_the_same_in_each_run(form: str) -> None:
    runs = []
    for _ in range(2):
        watch = Seen()
        make_trainer(watch).train(SHUFFLED[form](), 2)
        runs.append(watch.epochs)
    first, second = runs[0]
    assert runs[0] == runs[1]
    assert first != second
    assert sorted(first) == sorted(second) == sorted(INPUTS.tolist())


# Batches of other kinds ---------------------------------------------------------------------------------------


def dict_samples() -> list[dict[str, Tensor]]:
    return [{"features": INPUTS[index], "labels": TARGETS[index]} for index in range(24)]


class FeatureModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = make_model()

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features)


@dataclass
class Output:
    """What a model of Hugging Face's returns, as far as it matters here."""

    loss: Tensor | None
    logits: Tensor


class ModelWithLoss(nn.Module):
    """Computes its own loss when it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = make_model()

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layer(features)
        return Output(None if labels is None else nn.functional.mse_loss(logits, labels), logits)


class DictModelWithLoss(ModelWithLoss):
    def forward(self, features: Tensor, labels: Tensor | None = None) -> Any:
        output = super().forward(features, labels)
        return {"loss": output.loss, "logits": output.logits}


class PositionalModelWithLoss(ModelWithLoss):
    """Takes inputs and targets by position."""


@pytest.mark.parametrize("name", ["labels", "label", "targets", "target"])
def test_batches_that_are_dicts_give_inputs_by_keyword_and_targets_to_the_loss(name: str) -> None:
    trainer = make_trainer(model=FeatureModel())
    data = [{"features": sample["features"], name: sample["labels"]} for sample in dict_samples()]
    trainer.train(data, 2, eval_dataset=data, train_dataloader_kwargs={"shuffle": False})
    assert_same_weights(trainer.model.layer, by_hand(2))


@pytest.mark.parametrize("kind", [ModelWithLoss, DictModelWithLoss])
def test_a_model_that_returns_its_own_loss_needs_no_loss_function(kind: type[nn.Module]) -> None:
    trainer = make_trainer(model=kind(), loss_func=None, metrics={"mse": MeanSquaredError()})
    data = dict_samples()
    shuffle = {"shuffle": False}
    if kind is DictModelWithLoss:
        trainer = make_trainer(model=kind(), loss_func=None)
    history = trainer.train(data, 2, eval_dataset=data, train_dataloader_kwargs=shuffle).history
    assert_same_weights(trainer.model.layer, by_hand(2))
    if kind is ModelWithLoss:
        assert history["mse"] == pytest.approx(history["eval_loss_epoch"], rel=1e-6)


def test_a_model_that_returns_its_own_loss_takes_pairs_by_position() -> None:
    trainer = make_trainer(model=PositionalModelWithLoss(), loss_func=None)
    trainer.train(DATA, 2, train_dataloader_kwargs={"shuffle": False})
    assert_same_weights(trainer.model.layer, by_hand(2))


def test_a_loss_function_gets_the_logits_of_an_output_object() -> None:
    trainer = make_trainer(model=ModelWithLoss())
    data = dict_samples()
    trainer.train(data, 2, eval_dataset=data, train_dataloader_kwargs={"shuffle": False})
    assert_same_weights(trainer.model.layer, by_hand(2))


def test_a_loss_function_gets_the_logits_of_an_output_object_for_pairs_as_well() -> None:
    trainer = make_trainer(model=ModelWithLoss())
    trainer.train(DATA, 2, train_dataloader_kwargs={"shuffle": False})
    assert_same_weights(trainer.model.layer, by_hand(2))


# Metrics and predictions --------------------------------------------------------------------------------------


def classes() -> TensorDataset:
    return TensorDataset(INPUTS, (TARGETS[:, 0] > 0).long())


def classifier(**kwargs: Any) -> Any:
    torch.manual_seed(0)
    return make_trainer(model=nn.Linear(2, 2), loss_func=nn.CrossEntropyLoss(), **kwargs)


def accuracy_of(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(INPUTS).argmax(1) == classes().tensors[1]).double().mean())


def test_torchmetrics_are_kept_computed_and_reset_by_the_trainer() -> None:
    seen: list[float] = []

    class Reference(TrainerCallback):
        def on_eval_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            seen.append(accuracy_of(trainer.model))

    trainer = make_trainer(
        Reference,
        model=classifier().model,
        loss_func=nn.CrossEntropyLoss(),
        metrics={"accuracy": Accuracy(task="multiclass", num_classes=2)},
    )
    with torch.no_grad():
        trainer.model.weight.copy_(torch.tensor([[0.5, -1.0], [-0.5, 1.0]]))  # as wrong as can be
    history = trainer.train(classes(), 3, eval_dataset=classes(), per_device_batch_size=5).history
    assert history["accuracy"] == pytest.approx(seen, rel=1e-6)
    assert len(set(seen)) > 1
    assert trainer.evaluate(classes())["accuracy"] == pytest.approx(seen[-1], rel=1e-6)


def test_a_collection_of_metrics_reports_each_under_its_own_name() -> None:
    collection = MetricCollection({"top1": Accuracy(task="multiclass", num_classes=2)})
    for metrics in (collection, {"all": collection}):
        history = classifier(metrics=metrics).train(classes(), 1, eval_dataset=classes()).history
        assert set(history) == {"train_loss_epoch", "eval_loss_epoch", "top1"}


def test_an_evaluation_on_other_data_changes_nothing_for_the_next_one_without() -> None:
    trainer = make_trainer()
    trainer.train(DATA, 1, eval_dataset=DATA)
    expected = trainer.evaluate()["evaluation_loss"]
    words = [("one", 1.0), ("two", 2.0)]

    def collate(samples: list[tuple[str, float]]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(len(samples), 2), torch.tensor([[number] for _, number in samples])

    assert trainer.evaluate(words, collate_fn=collate)["evaluation_loss"] != expected
    assert trainer.evaluate()["evaluation_loss"] == expected


def test_a_prediction_that_fails_closes_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(Stream, "close", lambda stream: closed.append(stream.source))
    loader = DataLoader(TensorDataset(torch.ones(4, 3)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        make_trainer().predict(loader)
    assert closed == [loader]


def test_predictions_come_in_the_order_of_the_data() -> None:
    trainer = make_trainer()
    trainer.train(DATA, 1)
    ready: list[tuple[Any, int]] = [(DataLoader(DATA, batch_size=7), 7), (Ready(), 8)]
    for data, size in [(DATA, 5), (TensorDataset(INPUTS), 5), (list(INPUTS), 5), *ready]:
        # Some processors round products otherwise in batches of another size.
        with torch.no_grad():
            expected = torch.cat([trainer.model(part) for part in INPUTS.split(size)])
        assert torch.equal(trainer.predict(data, per_device_batch_size=5), expected)


def test_predictions_of_dict_batches_leave_the_targets_out_and_outputs_that_are_no_tensors_come_as_a_list() -> None:
    trainer = make_trainer(model=ModelWithLoss(), loss_func=None)
    outputs = trainer.predict(dict_samples(), per_device_batch_size=16)
    assert [output.loss for output in outputs] == [None, None]
    assert torch.equal(torch.cat([output.logits for output in outputs]), trainer.model(INPUTS).logits)


def test_predictions_are_made_in_evaluation_mode_without_gradients_and_leave_no_trace() -> None:
    torch.manual_seed(0)
    trainer = make_trainer(model=nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)))
    state = torch.get_rng_state()
    predicted = trainer.predict(DATA)
    assert not predicted.requires_grad
    assert torch.equal(predicted, trainer.model[0](INPUTS))
    assert trainer.model.training
    assert trainer.model[1].training
    assert torch.equal(torch.get_rng_state(), state)


# Accumulation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_a_window_of_equal_batches_is_equal_to_the_loop_written_by_hand(accumulation: int) -> None:
    trainer = make_trainer()
    trainer.train(DATA, 3, gradient_accumulation_steps=accumulation, train_dataloader_kwargs={"shuffle": False})
    assert_same_weights(trainer.model, by_hand(3, accumulation))


def test_a_ragged_batch_by_itself_is_equal_to_the_loop_written_by_hand() -> None:
    data = TensorDataset(INPUTS[:19], TARGETS[:19])
    batches = list(zip(INPUTS[:19].split(8), TARGETS[:19].split(8), strict=True))
    trainer = make_trainer()
    trainer.train(data, 3, train_dataloader_kwargs={"shuffle": False})
    assert_same_weights(trainer.model, by_hand(3, batches=batches))


def test_the_samples_of_a_short_last_batch_weigh_as_much_as_any_other() -> None:
    """Batches of 8, 8 and 3 in one window: one step over 19 samples, not a mean of three means."""
    data = TensorDataset(INPUTS[:19], TARGETS[:19])
    trainer = make_trainer()
    trainer.train(data, 1, gradient_accumulation_steps=3, train_dataloader_kwargs={"shuffle": False})
    expected = by_hand(1, batches=[(INPUTS[:19], TARGETS[:19])])
    for one, other in zip(trainer.model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)


def test_clipping_by_norm_is_equal_to_the_loop_written_by_hand() -> None:
    trainer = make_trainer()
    trainer.train(DATA, 1, clip_norm=0.1, train_dataloader_kwargs={"shuffle": False})
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets in BATCHES:
        nn.functional.mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    assert_same_weights(trainer.model, model)


def test_a_run_may_be_limited_by_steps_alone() -> None:
    trainer = make_trainer()
    result = trainer.train(DATA, max_steps=7, train_dataloader_kwargs={"shuffle": False})
    assert (result.steps, result.epochs, result.stop_reason) == (7, 2, "all 7 steps are done")
    expected = by_hand(1, batches=[*BATCHES, *BATCHES, BATCHES[0]])
    assert_same_weights(trainer.model, expected)
