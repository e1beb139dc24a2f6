"""What `Trainer` can be given: data in every form, batches of every kind, limits, cadences, seeds, schedulers."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
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
    result = trainer.train(source, 2, eval_dataset=FORMS[form](), train_dataloader_kwargs={"shuffle": False})
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


# Limits and cadences ------------------------------------------------------------------------------------------


class Steps(TrainerCallback):
    """The steps at which each event of interest came."""

    def __init__(self) -> None:
        self.logs: list[int] = []
        self.evaluations: list[tuple[int, bool]] = []
        self.scalars: list[dict[str, Any]] = []

    def on_log(self, trainer: Any, scalars: Any = None, **kwargs: Any) -> None:
        self.logs.append(trainer.progress.step)
        self.scalars.append(scalars)

    def on_eval_epoch_end(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
        self.evaluations.append((trainer.progress.step, is_intermediate))


def test_a_run_may_be_limited_by_steps_alone() -> None:
    trainer = make_trainer()
    result = trainer.train(DATA, max_steps=7, train_dataloader_kwargs={"shuffle": False})
    assert (result.steps, result.epochs, result.stop_reason) == (7, 2, "all 7 steps are done")
    expected = by_hand(1, batches=[*BATCHES, *BATCHES, BATCHES[0]])
    assert_same_weights(trainer.model, expected)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("1 epoch", [(3, False), (6, False), (9, False), (12, False)]),
        ("2 epochs", [(6, False), (12, False)]),
        ("4 steps", [(4, True), (8, True), (12, True)]),
        (5, [(5, True), (10, True)]),
        (None, []),
    ],
)
def test_evaluations_come_as_often_as_asked(every: Any, expected: list[tuple[int, bool]]) -> None:
    watch = Steps()
    history = make_trainer(watch).train(DATA, 4, eval_dataset=DATA, eval_every=every).history
    assert watch.evaluations == expected
    assert len(history.get("eval_loss_epoch", [])) == len(expected)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (2, [2, 3, 4, 6, 6]),
        ("4 steps", [3, 4, 6]),
        ("1 epoch", [3, 6]),
        (50, [3, 6]),
    ],
)
def test_logs_come_as_often_as_asked_and_at_the_end_of_each_epoch(every: Any, expected: list[int]) -> None:
    watch = Steps()
    make_trainer(watch).train(DATA, 2, log_every=every)
    assert watch.logs == expected


def test_a_log_has_the_mean_loss_since_the_one_before_it() -> None:
    losses: list[float] = []

    class Losses(TrainerCallback):
        def on_train_step_end(self, trainer: Any, batch_output: Any = None, **kwargs: Any) -> None:
            losses.append(batch_output["loss"].item())

    watch = Steps()
    make_trainer(watch, Losses).train(DATA, 2, log_every=2)
    means = [scalars.get("train_loss") for scalars in watch.scalars]
    first, second, third, fourth, fifth, sixth = losses
    assert means == [(first + second) / 2, third, fourth, (fifth + sixth) / 2, None]


def test_nothing_of_a_log_depends_on_how_often_it_comes() -> None:
    histories = [make_trainer().train(DATA, 2, eval_dataset=DATA, log_every=every).history for every in (1, 2, 50)]
    assert histories[0] == histories[1] == histories[2]


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


def test_predictions_come_in_the_order_of_the_data() -> None:
    trainer = make_trainer()
    trainer.train(DATA, 1)
    with torch.no_grad():
        expected = trainer.model(INPUTS)
    for data in (DATA, TensorDataset(INPUTS), list(INPUTS), DataLoader(DATA, batch_size=7), Ready()):
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


# Seeds and generators -----------------------------------------------------------------------------------------


def noisy_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))


def test_two_runs_with_the_same_seed_are_equal_to_the_last_bit() -> None:
    first, second = (make_trainer(model=noisy_model(), seed=5) for _ in range(2))
    histories = []
    for trainer in (first, second):
        histories.append(trainer.train(DATA, 2, eval_dataset=DATA).history)
        torch.rand(3), random.random(), np.random.rand()
    assert histories[0] == histories[1]
    assert_same_weights(first.model, second.model)


def test_another_seed_gives_another_run() -> None:
    first, second = (make_trainer(model=noisy_model(), seed=seed) for seed in (5, 6))
    assert first.train(DATA, 1).history != second.train(DATA, 1).history


def test_without_a_seed_torchs_own_decides_the_run() -> None:
    histories = []
    for seed in (7, 7, 8):
        trainer = make_trainer(model=noisy_model(), seed=None)
        torch.manual_seed(seed)
        histories.append(trainer.train(DATA, 2).history)
    assert histories[0] == histories[1] != histories[2]


def test_without_a_seed_the_generators_of_python_and_numpy_are_left_alone() -> None:
    random.seed(1)
    np.random.seed(2)
    python, numpy = random.getstate(), np.random.get_state()[1].tolist()
    trainer = make_trainer(model=noisy_model(), seed=None)
    trainer.train(DATA, 2, eval_dataset=DATA)
    trainer.evaluate(DATA)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy


def test_building_a_trainer_draws_no_random_number() -> None:
    model = noisy_model()
    state, python = torch.get_rng_state(), random.getstate()
    make_trainer(model=model)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python


class NoisyEvaluation(Trainer):
    """Its evaluation draws from every generator and leaves the model in a mode of its own."""

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        torch.rand(3), random.random(), np.random.rand()
        self.model[1].train()
        return super().calculate_eval_batch_loss(batch)


def test_an_evaluation_leaves_every_mode_and_every_generator_as_it_found_them() -> None:
    with_evaluation = make_trainer(model=noisy_model(), kind=NoisyEvaluation)
    without = make_trainer(model=noisy_model())
    with_evaluation.train(DATA, 2, eval_dataset=DATA, eval_every=1)
    without.train(DATA, 2)
    assert_same_weights(with_evaluation.model, without.model)
    assert torch.equal(with_evaluation.model[2].running_mean, without.model[2].running_mean)


def test_a_part_of_the_model_that_is_in_evaluation_mode_stays_in_it() -> None:
    modes: list[list[bool]] = []

    class FrozenNorm(Trainer):
        def train_epoch_start(self) -> None:
            super().train_epoch_start()
            self.model[2].eval()

        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            modes.append([module.training for module in self.model])
            return super().calculate_train_batch_loss(batch)

    trainer = make_trainer(model=noisy_model(), kind=FrozenNorm)
    trainer.train(DATA, 1, eval_dataset=DATA, eval_every=1)
    assert modes == [[True, True, False, True]] * 3
    assert [module.training for module in trainer.model] == [True, True, False, True]


# Schedulers ---------------------------------------------------------------------------------------------------


class Rates(TrainerCallback):
    def __init__(self) -> None:
        self.by_step: list[float] = []
        self.by_epoch: list[float] = []

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.by_step.append(trainer.optimizer.param_groups[0]["lr"])

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self.by_epoch.append(trainer.optimizer.param_groups[0]["lr"])


HALVES = partial(StepLR, step_size=1, gamma=0.5)


def test_a_scheduler_moves_on_with_every_step() -> None:
    watch = Rates()
    make_trainer(watch).train(DATA, 1, create_scheduler_fn=HALVES)
    assert watch.by_step == [0.025, 0.0125, 0.00625]


def test_a_scheduler_moves_on_with_every_epoch_if_asked() -> None:
    watch = Rates()
    make_trainer(watch).train(DATA, 2, create_scheduler_fn=HALVES, scheduler_interval="epoch")
    assert watch.by_step == [0.05, 0.05, 0.05, 0.025, 0.025, 0.025]
    assert watch.by_epoch == [0.025, 0.0125]


class Scripted(Trainer):
    """Reports these evaluation losses."""

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        loss = [4.0, 3.0, 3.0, 3.0][self.progress.epoch]
        return {**super().calculate_eval_batch_loss(batch), "loss": torch.tensor(loss)}


def test_a_plateau_scheduler_follows_the_evaluation_loss_by_epochs() -> None:
    watch = Rates()
    plateau = partial(ReduceLROnPlateau, factor=0.5, patience=0)
    make_trainer(watch, kind=Scripted).train(DATA, 4, eval_dataset=DATA, create_scheduler_fn=plateau)
    assert watch.by_epoch == [0.05, 0.05, 0.025, 0.0125]


def test_a_plateau_scheduler_follows_the_training_loss_where_nothing_is_evaluated() -> None:
    metrics: list[float] = []

    class Plateau(ReduceLROnPlateau):
        def step(self, metrics_value: Any, epoch: Any = None) -> None:  # type: ignore[override]
            metrics.append(metrics_value)
            super().step(metrics_value)

    assert make_trainer().train(DATA, 2, create_scheduler_fn=Plateau).history["train_loss_epoch"] == metrics


def test_a_plateau_scheduler_can_follow_another_metric() -> None:
    class Scored(Trainer):
        def eval_epoch_end(self) -> None:
            self.run_history.update_metric("score", [0.5, 0.75, 0.75][self.progress.epoch])

    watch = Rates()
    plateau = partial(ReduceLROnPlateau, mode="max", factor=0.5, patience=0)
    trainer = make_trainer(watch, kind=Scored)
    trainer.train(DATA, 3, eval_dataset=DATA, create_scheduler_fn=plateau, scheduler_metric="score")
    assert watch.by_epoch == [0.05, 0.05, 0.025]


def test_a_plateau_scheduler_waits_where_an_epoch_was_not_evaluated() -> None:
    watch = Rates()
    plateau = partial(ReduceLROnPlateau, factor=0.5, patience=0)
    trainer = make_trainer(watch, kind=Scripted)
    trainer.train(DATA, 4, eval_dataset=DATA, eval_every="2 epochs", create_scheduler_fn=plateau)
    # Only the epochs 2 and 4 were evaluated, at 3.0 both times: one look without an improvement.
    assert watch.by_epoch == [0.05, 0.05, 0.05, 0.025]


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
