"""The loss of a model of transformers is averaged over its labels, however the batch is split."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.hf.models import KINDS, Padded, build, weights
from treadle import Trainer
from treadle.errors import LossError
from treadle.ops.model_loss import label_rule


def train(model: nn.Module, parts: int, **options: Any) -> Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, None, optimizer, callbacks=(), seed=0, device="cpu", **options)
    trainer.train(Padded(), num_epochs=2, per_device_batch_size=8 // parts, gradient_accumulation_steps=parts)
    return trainer


EXACT = {"gpt2": 1e-12, "bert": 1e-12, "llama": 1e-7, "t5": 1e-7}
"""Llama and T5 normalise in single precision, whatever the model is in."""


@pytest.mark.parametrize("kind", KINDS)
def test_padded_micro_batches_make_the_update_of_one_batch(kind: str) -> None:
    whole, split = (train(build(kind, torch.float64), parts) for parts in (1, 4))
    assert whole.progress.step == split.progress.step == 6
    torch.testing.assert_close(weights(split.model), weights(whole.model), rtol=0, atol=EXACT[kind])


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5"])
def test_the_update_is_that_of_a_loop_over_whole_batches_written_by_hand(kind: str) -> None:
    model, rows = build(kind, torch.float64), Padded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    split = Trainer(build(kind, torch.float64), None, None, callbacks=(), device="cpu")
    split.optimizer = torch.optim.SGD(split.model.parameters(), lr=0.1, momentum=0.9)
    options = {"per_device_batch_size": 2, "gradient_accumulation_steps": 4}
    split.train(rows, num_epochs=1, train_dataloader_kwargs={"shuffle": False}, **options)
    for begin in range(0, len(rows), 8):
        batch = torch.utils.data.default_collate([rows[index] for index in range(begin, begin + 8)])
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(weights(split.model), weights(model), rtol=0, atol=EXACT[kind])


def test_one_batch_on_one_process_is_left_as_it_is() -> None:
    seen: list[Any] = []

    class Told(nn.Module):
        loss_type, config = "ForCausalLM", object()

        def __init__(self) -> None:
            super().__init__()
            self.inner = build("llama")

        def forward(self, **kwargs: Any) -> Any:
            seen.append(kwargs.get("num_items_in_batch"))
            return self.inner(**kwargs)

    train(Told(), 1)
    assert seen == [None] * 6
    train(Told(), 2)
    assert [int(items) for items in seen[6:8]] == [int((batch_labels(k)[:, 1:] != -100).sum()) for k in (0, 1)]


def batch_labels(number: int) -> Tensor:
    """The labels of a micro-batch of four, in the order of the first epoch with seed 0."""
    seen: list[Tensor] = []

    class Look(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            seen.append(batch["labels"])
            return super().calculate_train_batch_loss(batch)

    model = build("llama")
    trainer = Look(model, None, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(), seed=0, device="cpu")
    trainer.train(Padded(), max_steps=1, per_device_batch_size=4, gradient_accumulation_steps=2)
    return seen[number]


@pytest.mark.parametrize(("kind", "shifted"), [("gpt2", True), ("llama", True), ("bert", False), ("t5", False)])
def test_the_kind_of_a_model_says_which_labels_count(kind: str, shifted: bool) -> None:
    rule = label_rule(build(kind))
    assert rule is not None
    assert (rule.shifted, rule.takes_items) == (shifted, True)


def test_an_adapter_is_looked_through() -> None:
    peft = pytest.importorskip("peft", reason="the extra hf is not installed")
    adapted = peft.get_peft_model(build("llama"), peft.LoraConfig(r=2, target_modules="all-linear"))
    assert label_rule(adapted) == label_rule(build("llama"))


def test_other_models_have_no_rule() -> None:
    assert label_rule(nn.Linear(2, 2)) is None


class Wrong(nn.Module):
    """Says that it is a language model, and predicts each label in its place."""

    loss_type, config = "ForCausalLM", object()

    def __init__(self, losses: int = 1) -> None:
        super().__init__()
        self.losses, self.head = losses, nn.Embedding(40, 40)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = self.head(input_ids)
        pairs = (found.flatten(0, 1), labels.flatten()), (found[:, 0], labels[:, 0])
        return {"loss": torch.stack([F.cross_entropy(*pair) for pair in pairs[: self.losses]]).sum()}


def test_a_model_that_computes_another_loss_than_its_kind_lets_expect_is_refused() -> None:
    with pytest.raises(LossError, match=r"is a mean over \d+ targets where its labels have \d+ that count.*override"):
        train(Wrong(), 2)
    assert train(Wrong(), 1).progress.step == 6


def test_a_model_with_two_losses_from_its_labels_is_refused() -> None:
    with pytest.raises(LossError, match=r"has 2 cross-entropies, each a mean over targets of its own.*override"):
        train(Wrong(2), 2)


def test_a_micro_batch_without_labels_that_count_weighs_nothing() -> None:
    class Empty(Padded):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            row = super().__getitem__(index)
            return row if index % 8 else {**row, "labels": torch.full_like(row["labels"], -100)}

    model, other = build("gpt2", torch.float64), build("gpt2", torch.float64)
    for one, size in ((model, 1), (other, 8)):
        trainer = Trainer(one, None, torch.optim.SGD(one.parameters(), lr=0.1), callbacks=(), seed=0, device="cpu")
        trainer.train(Empty(), num_epochs=1, per_device_batch_size=size, gradient_accumulation_steps=8 // size)
    torch.testing.assert_close(weights(model), weights(other), rtol=0, atol=1e-12)
