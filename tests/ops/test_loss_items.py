"""Cross-entropies with class weights and ignored targets: micro-batches make the gradient of one batch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.guards.no_sync import no_sync
from tests.interrupting import assert_same_bits
from treadle import Phase, Trainer, linear_cross_entropy
from treadle.errors import LossError
from treadle.ops.loss_items import Criterion, MeansOverItems, find_criterion, items_in
from treadle.parallel.pipeline.loss import StageLoss

EXACT = 1e-12
WEIGHT = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
LOSSES: dict[str, Any] = {
    "weighted": nn.CrossEntropyLoss(WEIGHT),
    "ignored": nn.CrossEntropyLoss(ignore_index=1),
    "ignored by default": nn.CrossEntropyLoss(),
    "all of it": nn.CrossEntropyLoss(WEIGHT, ignore_index=2, label_smoothing=0.1),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.2, ignore_index=0),
    "likelihood": nn.Sequential,
    "partial": partial(F.cross_entropy, weight=WEIGHT),
    "function": F.cross_entropy,
}


def network(*, likelihood: bool = False) -> nn.Module:
    torch.manual_seed(3)
    end = [nn.LogSoftmax(-1)] if likelihood else []
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), *end).double()


def rows(count: int = 24, *, ignored: bool = False) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (count,), generator=generator)
    if ignored:
        # The whole of the second of six micro-batches, and some others.
        targets[torch.tensor([0, 4, 5, 6, 7, 9, 22])] = -100
    return TensorDataset(inputs, targets)


def train(loss: Any, data: Any, parts: int, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    """Make updates from windows of 12 samples, each of so many micro-batches."""
    model = options.pop("model", None) or network(likelihood=isinstance(loss, nn.NLLLoss))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    trainer = kind(model, loss, optimizer, callbacks=(), device="cpu", **options)
    trainer.train(
        data,
        2,
        per_device_batch_size=12 // parts,
        gradient_accumulation_steps=parts,
        train_dataloader_kwargs={"shuffle": False},
    )
    return trainer


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    for own, reference in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(own, reference, rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("parts", [2, 3])
def test_micro_batches_make_the_gradient_of_one_batch(name: str, parts: int) -> None:
    loss = nn.NLLLoss(WEIGHT) if name == "likelihood" else LOSSES[name]
    data = rows(ignored=name not in ("ignored", "smoothed", "all of it"))
    assert_same_weights(train(loss, data, parts), train(loss, data, 1))


def test_a_micro_batch_without_a_target_that_counts_adds_nothing_and_spoils_no_record() -> None:
    loss, data = nn.CrossEntropyLoss(), rows(ignored=True)
    parted, whole = train(loss, data, 3), train(loss, data, 1)
    assert_same_weights(parted, whole)
    assert parted.run_history.get_latest_metric("train_loss_epoch") > 0


def test_a_batch_without_a_target_that_counts_spoils_no_evaluation() -> None:
    inputs, targets = rows().tensors
    targets = targets.clone()
    targets[:4] = -100
    loss = nn.CrossEntropyLoss()
    model = nn.Linear(inputs.shape[1], 3).double()
    trainer = Trainer(model, loss, None, callbacks=(), device="cpu")
    found = trainer.evaluate(TensorDataset(inputs, targets), per_device_batch_size=4)
    # The first batch says nothing; the others are means of samples that all count.
    assert found["evaluation_loss"] == pytest.approx(loss(model(inputs[4:]), targets[4:]).item(), rel=EXACT)


def test_targets_of_several_dimensions_count_one_by_one() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer = nn.Conv1d(2, 3, 3, padding=1).double()

        def forward(self, inputs: Tensor) -> Tensor:
            scores: Tensor = self.layer(inputs)
            return scores

    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(3, (24, 5), generator=generator)
    targets[:5, 1:] = -100
    data = TensorDataset(torch.randn(24, 2, 5, generator=generator, dtype=torch.float64), targets)
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(WEIGHT)):
        assert_same_weights(train(loss, data, 4, model=Pixels()), train(loss, data, 1, model=Pixels()))


def test_probabilities_as_targets_are_a_mean_over_samples() -> None:
    inputs, targets = rows().tensors
    data = TensorDataset(inputs, F.one_hot(targets, 3).double() * 0.9 + 0.03)
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(WEIGHT)):
        assert_same_weights(train(loss, data, 3), train(loss, data, 1))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("parts", [3, 4])
def test_where_all_targets_count_alike_the_bits_are_those_of_any_other_loss(precision: str, parts: int) -> None:
    """22 samples leave a short window with a short micro-batch at the end."""
    inputs, targets = rows(22).tensors
    data = TensorDataset(inputs.float(), targets)
    ways = (nn.CrossEntropyLoss(), lambda outputs, targets: F.cross_entropy(outputs, targets))
    plain, counted = (train(way, data, parts, model=network().float(), precision=precision) for way in ways)
    assert_same_bits(plain.model.state_dict(), counted.model.state_dict())
    assert plain.run_history.get_metric_values("train_loss_epoch") == counted.run_history.get_metric_values(
        "train_loss_epoch"
    )


class Guarded(Trainer):
    """A trainer whose updates must not read the device."""

    def update(self, phase: Phase, window: list[Any]) -> None:
        with no_sync("cpu"):
            super().update(phase, window)


def test_an_update_with_counted_targets_reads_nothing() -> None:
    assert train(nn.CrossEntropyLoss(WEIGHT), rows(ignored=True), 3, Guarded).progress.step == 4


# Losses of your own ----------------------------------------------------------------------------------------


class Own(Trainer):
    """A loss verb as users write it."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        outputs = self.model(inputs)
        return {"loss": self.loss_func(outputs, targets), "model_outputs": outputs, "batch_size": len(targets)}


class OwnWithItems(Own):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        items = items_in(self.loss_func, batch[1])
        return {**super().calculate_train_batch_loss(batch), "num_items_in_batch": items}


REMEDY = (
    'return "num_items_in_batch" beside "loss": the sum of the weights of the targets that are not ignored, which '
    "treadle.ops.loss_items.items_in(loss_func, targets) gives"
)
APART = "not over samples, and several micro-batches or processes would not make the gradient of one batch"


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, weight=WEIGHT) + outputs.square().mean()


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(WEIGHT), own_loss], ids=["module", "function"])
def test_class_weights_in_a_verb_of_ones_own_are_refused_by_name(loss: Any) -> None:
    with pytest.raises(LossError) as caught:
        train(loss, rows(), 3, Own)
    assert str(caught.value) == (
        "calculate_train_batch_loss computes cross_entropy with class weights: that is a mean over the weights of the "
        f"targets, {APART}; {REMEDY}"
    )
    train(loss, rows(), 1, Own)


def test_class_weights_in_a_verb_that_is_compiled_are_refused_too() -> None:
    with pytest.raises(LossError, match="computes cross_entropy with class weights"):
        train(nn.CrossEntropyLoss(WEIGHT), rows(), 3, Own, execution="compile")


def test_a_loss_function_of_ones_own_with_class_weights_is_refused_too() -> None:
    with pytest.raises(LossError, match="computes cross_entropy with class weights"):
        train(own_loss, rows(), 3)


def test_class_weights_at_the_end_of_stages_are_refused_too() -> None:
    loss = StageLoss(own_loss)
    loss.means = MeansOverItems(REMEDY)
    inputs, targets = rows().tensors
    with pytest.raises(LossError, match=r"the last stage computes cross_entropy with class weights: .*not over"):
        loss.looked_at(nn.Linear(4, 3).double(), inputs, {"targets": targets})


def test_ignored_targets_in_a_verb_of_ones_own_are_refused_when_the_log_is_read() -> None:
    with pytest.raises(LossError) as caught:
        train(nn.CrossEntropyLoss(), rows(ignored=True), 3, Own)
    assert str(caught.value) == (
        "calculate_train_batch_loss computes a cross-entropy in which targets of -100 are ignored: that is a mean over "
        f"the others, {APART}; {REMEDY}"
    )
    assert train(nn.CrossEntropyLoss(), rows(), 3, Own).progress.step == 4


def test_a_model_that_returns_its_own_loss_is_looked_at_too_and_may_say_its_items() -> None:
    class Model(nn.Module):
        says = False

        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
            loss = linear_cross_entropy(self.body[1](self.body[0](inputs)), self.body[2].weight, targets)
            return {"loss": loss, **({"num_items_in_batch": (targets != -100).sum()} if self.says else {})}

    data = TensorDataset(*(tensor[8:] for tensor in rows(32, ignored=True).tensors))
    with pytest.raises(LossError, match="targets of -100 are ignored"):
        train(None, data, 3, model=Model())
    Model.says = True
    assert_same_weights(train(None, data, 3, model=Model()), train(None, data, 1, model=Model()))


@pytest.mark.parametrize("name", ["weighted", "all of it"])
def test_a_verb_of_ones_own_that_says_its_items_makes_the_gradient_of_one_batch(name: str) -> None:
    loss = LOSSES[name]
    assert_same_weights(train(loss, rows(), 3, OwnWithItems), train(loss, rows(), 1, Own))


# What is found ----------------------------------------------------------------------------------------------


class Focal(nn.CrossEntropyLoss):
    """A cross-entropy that is something else."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return (super().forward(input, target) ** 2).mean()


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (nn.CrossEntropyLoss(ignore_index=7), Criterion(None, 7)),
        (nn.NLLLoss(), Criterion(None, -100)),
        (F.nll_loss, Criterion(None, -100)),
        (partial(F.cross_entropy, ignore_index=3), Criterion(None, 3)),
        (partial(F.cross_entropy, reduction="sum"), None),
        (nn.CrossEntropyLoss(reduction="sum"), None),
        (Focal(), None),
        (nn.MSELoss(), None),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)), None),
        (None, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_cross_entropy_is_known_by_what_computes_it(loss: Any, found: Criterion | None) -> None:
    assert find_criterion(loss) == found


def test_the_items_of_a_loss_are_weights_of_targets_or_samples() -> None:
    targets = torch.tensor([0, 1, 1, 2])
    assert float(items_in(nn.CrossEntropyLoss(WEIGHT, ignore_index=2), targets)) == 21.0
    assert float(items_in(nn.CrossEntropyLoss(), targets)) == 4.0
    assert items_in(nn.MSELoss(), targets) == 4
    assert items_in(nn.CrossEntropyLoss(), torch.ones(2, 3)) == 2
