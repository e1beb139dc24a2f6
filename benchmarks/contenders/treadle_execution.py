"""Treadle in each way of execution: all that `benchmarks.execution.compare` knows of Treadle stands here."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.execution.fashion_task import EVALUATION_BATCH, Task
from benchmarks.execution.work import Clock, Material
from benchmarks.job import LOSS_FUNC, Job
from treadle import DEFAULT_CALLBACKS, StopTrainingError, Trainer, TrainerCallback, linear_cross_entropy
from treadle.data import InMemoryDataset, Stream, make_loader
from treadle.execution import Compile

TRUNK = Compile(modules="trunk")
"""Compiles the module called `trunk` and nothing else."""


class EpochClock(TrainerCallback):
    """Times every epoch; it acts at no other event, so that a step costs what it costs without it.

    Args:
        clock: What times.
        before: Called before each epoch, outside of its time; the run ends if it returns False.
    """

    def __init__(self, clock: Clock, before: Callable[[], bool] | None = None) -> None:
        self._clock, self._before = clock, before

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Begin."""
        if self._before is not None and not self._before():
            raise StopTrainingError("time is up")
        self._clock.begin()

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """End."""
        self._clock.end()


def train(job: Job, clock: Clock, *, execution: str = "eager", compiled: bool | str = False, epochs: int = 2) -> None:
    """Train on ready batches, wherever these are, with the callbacks that a user gets without asking."""
    _small_trainer(job, clock, execution, compiled).train(job.loader, num_epochs=epochs)


def train_resident(
    job: Job,
    clock: Clock,
    material: Material,
    *,
    execution: str = "eager",
    compiled: bool | str = False,
    epochs: int = 2,
    shuffled: bool = True,
) -> None:
    """Train on data that lives on the device."""
    _small_trainer(job, clock, execution, compiled).train(
        InMemoryDataset(material.inputs, material.targets),
        num_epochs=epochs,
        per_device_batch_size=material.work.batch_size,
        train_dataloader_kwargs={"shuffle": shuffled},
    )


def _small_trainer(job: Job, clock: Clock, execution: str, compiled: bool | str) -> Trainer:
    return Trainer(
        job.model,
        LOSS_FUNC,
        job.optimizer,
        callbacks=[*DEFAULT_CALLBACKS, EpochClock(clock)],
        execution=execution,
        compile=compiled,
        device=next(job.model.parameters()).device,
    )


def train_language_model(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Any,
    clock: Clock,
    *,
    execution: str,
    compile: bool | Compile,
    epochs: int,
    before: Callable[[], bool],
) -> None:
    """Train a model that returns its own loss in bf16, with clipping; `before` is called before each epoch."""
    trainer = Trainer(
        model,
        None,
        optimizer,
        callbacks=[*DEFAULT_CALLBACKS, EpochClock(clock, before)],
        precision="bf16",
        execution=execution,
        compile=compile,
        device=next(model.parameters()).device,
    )
    trainer.train(batches, num_epochs=epochs, clip_norm=1.0)


class FusedHead(nn.Module):
    """A head of a language model that never has the scores of all rows.

    Args:
        width: The size of a hidden state.
        vocabulary_size: How many tokens there are.
    """

    def __init__(self, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary_size, width))

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return linear_cross_entropy(hidden, self.weight, targets)


class StopAt(TrainerCallback):
    """Ends a run when the accuracy of an evaluation is high enough, and keeps all of them.

    Args:
        target: High enough.
        accuracies: Where they are kept.
    """

    def __init__(self, target: float, accuracies: list[float]) -> None:
        self._target, self._accuracies = target, accuracies

    def on_eval_epoch_end(self, trainer: Trainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Look at the newest accuracy."""
        self._accuracies.append(float(trainer.run_history.get_latest_metric("accuracy")))
        if self._accuracies[-1] >= self._target:
            raise StopTrainingError(f"reached {self._accuracies[-1]:.4f}")


class Accuracy:
    """The share of samples whose highest score is that of their class; counted on the device."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        self._right: Any = 0
        self._count = 0

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Count one batch."""
        self._right = self._right + (scores.argmax(1) == targets).sum()
        self._count += len(targets)

    def compute(self) -> Any:
        """Return the share."""
        return self._right / self._count


def train_to_accuracy(task: Task, *, execution: str, compiled: bool = False, resident: bool = True) -> list[float]:
    """Train until an evaluation after an epoch reaches the target; return the accuracies of all of them."""
    accuracies: list[float] = []
    trainer = Trainer(
        task.model,
        LOSS_FUNC,
        task.optimizer,
        callbacks=[*DEFAULT_CALLBACKS, StopAt(task.target, accuracies)],
        metrics={"accuracy": Accuracy()},
        seed=task.seed,
        execution=execution,
        compile=compiled,
        device=task.device,
    )
    dataset: Any = InMemoryDataset if resident else TensorDataset
    trainer.train(
        dataset(*task.train_data),
        num_epochs=task.most_epochs,
        eval_dataset=dataset(*task.test_data),
        per_device_batch_size=task.batch_size,
        eval_dataloader_kwargs={"batch_size": EVALUATION_BATCH},
    )
    return accuracies


def stream_batches(dataset: Any, batch_size: int, epoch: int) -> Iterator[Any]:
    """Yield the shuffled batches of an epoch as a trainer on the CPU draws them."""
    stream = Stream(make_loader(dataset, shuffle=True, batch_size=batch_size), device=torch.device("cpu"), seed=1)
    stream.begin(epoch)
    return stream.rest()
