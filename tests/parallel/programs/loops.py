"""Phases and loops of your own, on one process and on several; and what DDP does not see by itself."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.contract.own_loops import OwnEverything
from tests.parallel.programs.models import classifier, flat, outcome, per_device, samples, sgd, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import Phase, Trainer, TrainerCallback, alternate
from treadle.parallel import GradientAverager

program = Program("loops")


# Phases ---------------------------------------------------------------------------------------------------


class Pair(nn.Module):
    """A generator and a discriminator as one model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.generator = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        self.discriminator = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()


class PairTrainer(Trainer):
    """Trains the two in turns on the same batches; each loss reaches the weights of both."""

    def phases(self, epoch: int) -> Iterable[Phase]:
        stream, pair, parts = self._train_dataloader, self.model, self.settings.gradient_accumulation_steps
        assert stream is not None
        yield from alternate(
            Phase(
                "discriminator",
                stream,
                self.discriminator_loss,
                self.optimizer["discriminator"],
                parameters=list(pair.discriminator.parameters()),
                accumulation=parts,
                steps=1,
            ),
            Phase(
                "generator",
                stream,
                self.generator_loss,
                self.optimizer["generator"],
                parameters=list(pair.generator.parameters()),
                steps=1,
                reuse=True,
            ),
        )

    def _weighed(self, loss: Tensor, batch: Any) -> dict[str, Any]:
        size = len(batch[1])
        return {"loss": loss * size if self.loss_reduction == "sum" else loss, "batch_size": size}

    def discriminator_loss(self, batch: Any) -> dict[str, Any]:
        real, noise = self.model.discriminator(batch[0]), batch[0][:, :2]
        made = self.model.discriminator(self.model.generator(noise))
        return self._weighed(nn.functional.softplus(-real).mean() + nn.functional.softplus(made).mean(), batch)

    def generator_loss(self, batch: Any) -> dict[str, Any]:
        made = self.model.discriminator(self.model.generator(batch[0][:, :2]))
        return self._weighed(nn.functional.softplus(-made).mean(), batch)


def train_pair(count: int, parts: int = 1, reduction: str = "mean", **settings: Any) -> Report:
    pair = Pair()
    rate = 0.1 if reduction == "mean" else 0.005
    optimizers = {"discriminator": sgd(pair.discriminator, rate), "generator": sgd(pair.generator, rate)}
    trainer = trainer_of(
        pair, PairTrainer, loss_func=None, optimizer=optimizers, metrics=None, loss_reduction=reduction
    )
    settings |= {"gradient_accumulation_steps": parts, "per_device_batch_size": per_device(trainer)}
    result = trainer.train(samples(count), num_epochs=2, log_every=2, **settings)
    return outcome(trainer, result)


for name, arguments in {
    "phases_48": {"count": 48},
    "phases_49": {"count": 49},
    "phases_accumulated": {"count": 53, "parts": 2},
    "phases_clipped": {"count": 48, "clip_norm": 0.05},
    "phases_sum": {"count": 48, "reduction": "sum"},
}.items():
    program.add(name, partial(train_pair, **arguments))


# Loops of your own ---------------------------------------------------------------------------------------


class HandWritten(Trainer):
    """A loop as a user writes it: forward, backward and step by hand, and nothing of the trainer's update."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        self.model.train()
        for batch in train_dl:
            output = self.calculate_train_batch_loss(batch)
            output["loss"].backward()
            self._update_loss_tracker(output["loss"], output["batch_size"])
            self.optimizer.step()
            self.optimizer.zero_grad()


def train_by_hand(**settings: Any) -> Report:
    rank = trainer_of(classifier()).processes.rank
    trainer = trainer_of(classifier(seed=7 + rank), HandWritten)
    result = trainer.train(
        samples(48), num_epochs=2, eval_dataset=samples(17, seed=1), per_device_batch_size=per_device(trainer)
    )
    return outcome(trainer, result)


program.add("hand_written", train_by_hand)


class Bounded(OwnEverything):
    """Bounds the norm of its gradients by the accelerator, before the optimizer has them averaged."""

    def _clip_gradients(self) -> None:
        self._accelerator.clip_grad_norm_(self.model.parameters(), 0.05)


def train_by_own_loops(kind: type[Trainer], bound: float | None) -> Report:
    trainer = trainer_of(classifier(), kind)
    settings = {"gradient_accumulation_steps": 2, "gradient_clip_value": bound}
    result = trainer.train(samples(48), 2, samples(17, seed=1), per_device(trainer), **settings)
    return outcome(trainer, result)


program.add("own_loops", partial(train_by_own_loops, OwnEverything, None))
program.add("own_loops_clipped", partial(train_by_own_loops, OwnEverything, 0.01))
program.add("own_loops_bounded", partial(train_by_own_loops, Bounded, 0.01))


class OwnStepAfterwards(Trainer):
    """Runs the trainer's epoch and then makes an update of its own."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        super()._run_train_epoch(train_dl)
        half = len(samples(48)) // self.processes.size
        own = slice(half * self.processes.rank, half * (self.processes.rank + 1))
        inputs, targets = (tensor[own] for tensor in samples(48).tensors)
        self.loss_func(self.model(inputs), targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@program.scenario
def own_step_after_the_trainers_epoch() -> Report:
    trainer = trainer_of(classifier(), OwnStepAfterwards)
    result = trainer.train(samples(48), num_epochs=2, per_device_batch_size=per_device(trainer))
    return outcome(trainer, result) | {"weights": flat(trainer.model)}


@program.scenario
def averaged_gradients() -> Report:
    """Give three parameters a gradient on all ranks, on the last only, and on none."""
    processes = trainer_of(classifier()).processes
    everywhere, somewhere, nowhere = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3))
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    everywhere.grad = torch.full_like(everywhere, float(processes.rank + 1))
    if processes.rank == processes.size - 1:
        somewhere.grad = torch.tensor([6.0, 12.0], dtype=torch.float64)
    GradientAverager(processes).average([everywhere, somewhere, nowhere, frozen])
    assert somewhere.grad is not None
    return {
        "everywhere": everywhere.grad,
        "somewhere": somewhere.grad,
        "nowhere_is_none": nowhere.grad is None,
        "frozen_is_none": frozen.grad is None,
    }


@program.scenario
def averaged_gradients_of_several_types() -> Report:
    """Average a float32, a bfloat16 and a non-contiguous float64 gradient in one call."""
    processes = trainer_of(classifier()).processes
    single = nn.Parameter(torch.zeros(3))
    half = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    turned = nn.Parameter(torch.zeros(2, 3, dtype=torch.float64).t())
    for parameter in (single, half, turned):
        parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(torch.arange(float(parameter.numel())).view(parameter.shape) * processes.rank)
    GradientAverager(processes).average([single, half, turned])
    return {"single": single.grad, "half": half.grad, "turned": turned.grad}


@program.scenario
def averaged_sparse_gradients() -> Report:
    """Average an embedding's sparse gradient: rows of each rank, one shared; another, on one rank only."""
    processes = trainer_of(classifier()).processes
    both, one = (nn.Embedding(6, 2, sparse=True, dtype=torch.float64) for _ in range(2))
    both(torch.tensor([0, processes.rank + 1, processes.rank + 1])).sum().backward()
    if processes.rank == 0:
        one(torch.tensor([3])).sum().backward()
    GradientAverager(processes).average([both.weight, one.weight])
    gradients = [both.weight.grad, one.weight.grad]
    return {
        "sparse": [bool(gradient.is_sparse) for gradient in gradients if gradient is not None],
        "both": gradients[0].to_dense(),
        "one": gradients[1].to_dense(),
    }


# What a wrapper does not see by itself --------------------------------------------------------------------


class SparseModel(nn.Module):
    """An embedding with sparse gradients before a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embedding = nn.Embedding(20, 4, sparse=True, dtype=torch.float64)
        self.layers = classifier()

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.embedding(ids))


def train_sparse(kind: type[Trainer], count: int, parts: int = 1, **settings: Any) -> Report:
    generator = torch.Generator().manual_seed(3)
    ids, classes = torch.randint(20, (count,), generator=generator), torch.randint(3, (count,), generator=generator)
    model = SparseModel()
    trainer = trainer_of(model, kind, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    settings |= {"gradient_accumulation_steps": parts, "per_device_batch_size": per_device(trainer)}
    return outcome(trainer, trainer.train(TensorDataset(ids, classes), num_epochs=2, **settings))


program.add("sparse_embedding", partial(train_sparse, Trainer, 53))
program.add("sparse_embedding_accumulated", partial(train_sparse, Trainer, 53, 2))
program.add("sparse_embedding_clipped_by_norm", partial(train_sparse, Trainer, 53, clip_norm=0.05))
program.add("sparse_embedding_clipped_by_value", partial(train_sparse, Trainer, 53, gradient_clip_value=0.01))
program.add("sparse_embedding_by_hand", partial(train_sparse, HandWritten, 48))


class Thaw(TrainerCallback):
    """Lets the first layer learn from the second epoch on."""

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if trainer.progress.epoch == 1:
            trainer.model[0].requires_grad_(True)


@program.scenario
def thawed_in_the_middle() -> Report:
    model = classifier()
    trainer = trainer_of(model, callbacks=(Thaw,))
    model[0].requires_grad_(False)
    result = trainer.train(samples(48), num_epochs=3, per_device_batch_size=per_device(trainer))
    return outcome(trainer, result)


@program.scenario
def unused_parameter() -> Report:
    model = classifier()
    model.spare = nn.Linear(2, 2).double()
    trainer = trainer_of(model, UsesTheFirstThree)
    return outcome(trainer, trainer.train(samples(48), num_epochs=2, per_device_batch_size=per_device(trainer)))


class UsesTheFirstThree(Trainer):
    """Leaves out the last module of the model."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        outputs = self.model[:3](batch[0])
        return {"loss": self.loss_func(outputs, batch[1]), "model_outputs": outputs, "batch_size": len(batch[1])}


@program.scenario
def batch_norm() -> Report:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    trainer = trainer_of(model)
    result = trainer.train(
        samples(53), num_epochs=2, eval_dataset=samples(17, seed=1), per_device_batch_size=per_device(trainer)
    )
    return outcome(trainer, result)


@program.scenario
def half_precision_weights() -> Report:
    model = classifier().to(torch.bfloat16)
    data = TensorDataset(samples(53).tensors[0].to(torch.bfloat16), samples(53).tensors[1])
    trainer = trainer_of(model)
    return outcome(trainer, trainer.train(data, num_epochs=1, per_device_batch_size=per_device(trainer)))
