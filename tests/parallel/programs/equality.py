"""Trainings that must not depend on the number of processes; run alone and under torchrun."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from tests.parallel.programs.models import classifier, flat, outcome, per_device, samples, sgd, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer

program = Program("equality")


def train(count: int = 48, *, trainer: Trainer | None = None, data: Any = None, **settings: Any) -> Report:
    """Train for two epochs with an evaluation after each, logging every other step."""
    trainer = trainer or trainer_of(classifier())
    settings = {"num_epochs": 2, "log_every": 2, "per_device_batch_size": per_device(trainer)} | settings
    result = trainer.train(samples(count) if data is None else data, eval_dataset=samples(17, seed=1), **settings)
    return outcome(trainer, result)


# With a global batch of 12, 49 and 50 samples leave one and two over: fewer than the ranks there may be.
for count in (1, 48, 49, 50, 53):
    program.add(f"samples_{count}", partial(train, count))
for count, parts in ((48, 2), (53, 2), (53, 3), (49, 3), (50, 8)):
    program.add(f"accumulation_{parts}_of_{count}", partial(train, count, gradient_accumulation_steps=parts))


@program.scenario
def initial_weights_that_differ_by_rank() -> Report:
    rank = trainer_of(classifier()).processes.rank
    return train(trainer=trainer_of(classifier(seed=7 + rank)))


@program.scenario
def adam() -> Report:
    model = classifier()
    return train(53, trainer=trainer_of(model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01)))


@program.scenario
def order_from_the_users_own_seed() -> Report:
    trainer = trainer_of(classifier(), seed=None)
    torch.manual_seed(11)
    return train(53, trainer=trainer)


@program.scenario
def clip_norm() -> Report:
    return train(53, clip_norm=0.05, gradient_accumulation_steps=2)


@program.scenario
def clip_value() -> Report:
    return train(53, gradient_clip_value=0.01, gradient_accumulation_steps=2)


def train_with_sum(count: int, parts: int) -> Report:
    model = classifier()
    trainer = trainer_of(
        model, loss_func=nn.CrossEntropyLoss(reduction="sum"), optimizer=sgd(model, 0.005), loss_reduction="sum"
    )
    return train(count, trainer=trainer, gradient_accumulation_steps=parts)


for count, parts in ((48, 1), (53, 1), (49, 1), (50, 3)):
    program.add(f"sum_{parts}_of_{count}", partial(train_with_sum, count, parts))


class TokenTrainer(Trainer):
    """Predicts a class for each of up to five tokens; the loss is the mean over tokens that are there."""

    as_tensor = False

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        outputs = self.model(inputs)
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        tokens = (targets != -100).sum()
        return {
            "loss": loss / tokens.clamp_min(1),
            "model_outputs": outputs,
            "batch_size": len(targets),
            "num_items_in_batch": tokens if self.as_tensor else int(tokens),
        }

    calculate_eval_batch_loss = calculate_train_batch_loss


class TokenTensorTrainer(TokenTrainer):
    """Like it, with the count of tokens left on the device."""

    as_tensor = True


def token_samples(count: int, *, seed: int, shortest: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 5, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (count, 5), generator=generator)
    lengths = torch.randint(shortest, 6, (count, 1), generator=generator)
    return TensorDataset(inputs, targets.masked_fill(torch.arange(5) >= lengths, -100))


def train_on_tokens(kind: type[Trainer], count: int, parts: int, shortest: int = 1) -> Report:
    trainer = trainer_of(classifier(), kind, metrics=None)
    result = trainer.train(
        token_samples(count, seed=4, shortest=shortest),
        num_epochs=2,
        eval_dataset=token_samples(17, seed=5, shortest=1),
        per_device_batch_size=per_device(trainer),
        gradient_accumulation_steps=parts,
        log_every=2,
    )
    return outcome(trainer, result)


for parts in (1, 3):
    program.add(f"tokens_counted_on_the_host_{parts}", partial(train_on_tokens, TokenTrainer, 53, parts))
    program.add(f"tokens_counted_on_the_device_{parts}", partial(train_on_tokens, TokenTensorTrainer, 53, parts))
# The last batch has samples without any token, so that a rank may have nothing to be a mean over.
program.add("tokens_may_be_missing", partial(train_on_tokens, TokenTrainer, 49, 2, shortest=0))


class RecommenderLike(nn.Module):
    """A model whose loss is a method of its own, and which has no forward at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = classifier()

    def calculate_loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])


class RecommenderTrainer(Trainer):
    """Calls it from the loss verbs."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return {"loss": self.model.calculate_loss(batch), "model_outputs": None, "batch_size": len(batch[1])}

    calculate_eval_batch_loss = calculate_train_batch_loss


@program.scenario
def loss_outside_forward() -> Report:
    trainer = trainer_of(RecommenderLike(), RecommenderTrainer, loss_func=None, metrics=None)
    return train(53, trainer=trainer, gradient_accumulation_steps=2)


class WithoutLength(IterableDataset[Any]):
    """Samples one after the other, without a length."""

    def __init__(self, data: TensorDataset) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return iter([self._data[place] for place in range(len(self._data))])


def train_on_iterable(count: int, parts: int) -> Report:
    return train(data=WithoutLength(samples(count)), gradient_accumulation_steps=parts)


for count, parts in ((48, 1), (53, 1), (49, 3)):
    program.add(f"iterable_{parts}_of_{count}", partial(train_on_iterable, count, parts))


class ReadyBatches:
    """Batches that somebody else made, in order."""

    def __init__(self, data: TensorDataset, size: int) -> None:
        self._tensors, self._size = data.tensors, size

    def __iter__(self) -> Iterator[Any]:
        return zip(*(tensor.split(self._size) for tensor in self._tensors), strict=True)


@program.scenario
def ready_batches() -> Report:
    trainer = trainer_of(classifier())
    return train(trainer=trainer, data=ReadyBatches(samples(53), per_device(trainer)))


def loader(trainer: Trainer, **settings: Any) -> DataLoader[Any]:
    return DataLoader(samples(53), batch_size=per_device(trainer), **settings)


@program.scenario
def ready_loader_in_order() -> Report:
    trainer = trainer_of(classifier())
    return train(trainer=trainer, data=loader(trainer))


@program.scenario
def ready_loader_with_its_own_generator() -> Report:
    trainer = trainer_of(classifier())
    return train(trainer=trainer, data=loader(trainer, shuffle=True, generator=torch.Generator().manual_seed(5)))


@program.scenario
def ready_loader_that_shuffles() -> Report:
    trainer = trainer_of(classifier())
    return train(trainer=trainer, data=loader(trainer, shuffle=True))


@program.scenario
def ready_loader_with_workers() -> Report:
    trainer = trainer_of(classifier())
    return train(trainer=trainer, data=loader(trainer, num_workers=1))


@program.scenario
def weighted_sampler() -> Report:
    trainer = trainer_of(classifier())
    weights = torch.arange(1.0, 54.0).tolist()
    return train(trainer=trainer, data=loader(trainer, sampler=WeightedRandomSampler(weights, 53)))


@program.scenario
def drop_last() -> Report:
    return train(53, train_dataloader_kwargs={"drop_last": True})


@program.scenario
def loss_with_weights_of_its_own() -> Report:
    model, loss = classifier(), LossWithWeights()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    report = train(53, trainer=trainer_of(model, loss_func=loss, optimizer=optimizer))
    return report | {"weights": torch.cat([flat(model), flat(loss)])}


class LossWithWeights(nn.Module):
    """A loss that learns, as those of metric learning do."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs * self.temperature, targets)
