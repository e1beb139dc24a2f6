"""What every trainer is asked to do, be killed in, and resume."""

import math
import os
import random
import signal
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

SEED = 0
SAMPLES, FEATURES, CLASSES, BATCH_SIZE, EPOCHS = 160, 8, 4, 8, 3
BATCHES = SAMPLES // BATCH_SIZE
"""Micro-batches of an epoch."""
AFTER = 3
"""So many micro-batches after the one that was saved, the process dies."""
DECAY = 0.9
"""Of the moving average."""
LOSS_FUNC = nn.CrossEntropyLoss()

Sample = tuple[Tensor, Tensor]
Weights = dict[str, Tensor]


class NotPossibleError(Exception):
    """A trainer cannot do a scenario at all, and says why."""


@dataclass(frozen=True)
class Scenario:
    """One row of the table: a run, and where it is killed.

    Attributes:
        name: What the row is called.
        saved_at: After how many micro-batches the run is saved.
        by_epoch: Whether it is saved whenever an epoch ends, and not at steps.
        shuffle: Whether the data comes in random order.
        dropout: How much of the hidden layer is dropped.
        workers: Processes that fetch data.
        augments: Whether samples are changed by numbers from Python's, NumPy's and torch's generators.
        accumulation: Micro-batches of one update.
        schedule: Whether the learning rate falls along a cosine.
        ema: Whether a moving average of the weights is kept, and compared too.
        fp16: Whether the run is in fp16 with a loss scaler.
    """

    name: str
    saved_at: int = 30
    by_epoch: bool = False
    shuffle: bool = True
    dropout: float = 0.0
    workers: int = 0
    augments: bool = False
    accumulation: int = 1
    schedule: bool = False
    ema: bool = False
    fp16: bool = False

    @property
    def saved_step(self) -> int:
        """After how many updates the run is saved."""
        return self.saved_at // self.accumulation

    @property
    def deadline(self) -> int:
        """The micro-batch in which the process dies."""
        return self.saved_at + AFTER

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the whole run."""
        return EPOCHS * BATCHES

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return self.micro_batches // self.accumulation


SCENARIOS = (
    Scenario("at the end of an epoch", saved_at=40, by_epoch=True),
    Scenario("in an epoch, data in order", shuffle=False),
    Scenario("in an epoch, shuffled"),
    Scenario("dropout, data in order", shuffle=False, dropout=0.5),
    Scenario("shuffled, dropout", dropout=0.5),
    Scenario("at the end of an epoch, dropout", saved_at=40, by_epoch=True, dropout=0.5),
    Scenario("2 workers", workers=2),
    Scenario("augmentation from `random`, NumPy and torch", augments=True),
    Scenario("augmentation in 2 workers", augments=True, workers=2),
    Scenario("accumulation over 4", saved_at=32, accumulation=4),
    Scenario("cosine schedule", schedule=True),
    Scenario("moving average (EMA)", ema=True),
    Scenario("fp16 with a loss scaler", fp16=True),
    Scenario(
        "all but fp16 together",
        saved_at=32,
        dropout=0.5,
        workers=2,
        augments=True,
        accumulation=4,
        schedule=True,
        ema=True,
    ),
)


class Samples(Dataset[Sample]):
    """Rows and their classes, changed by chance where the scenario says so."""

    def __init__(self, scenario: Scenario) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
        self.augments = scenario.augments

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> Sample:
        inputs = self.inputs[place]
        if self.augments:
            inputs = (
                inputs * random.uniform(0.8, 1.2) + float(numpy.random.normal(0, 0.1)) + 0.1 * torch.randn(FEATURES)
            )
        return inputs, self.labels[place]


class Network(nn.Module):
    """A small network that counts what it is trained on, and ends its process when its time has come.

    The death is in the model, where every trainer passes, so that no trainer is told of it beforehand.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, CLASSES))
        self.seen = 0
        self.deadline = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores of the classes."""
        if self.training:
            self.seen += 1
            if self.seen == self.deadline:
                os.kill(os.getpid(), signal.SIGKILL)
        scores: Tensor = self.layers(inputs)
        return scores


def make_network(scenario: Scenario) -> Network:
    """Return the network with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = Network(scenario.dropout)
    network.deadline = DEADLINE.micro_batch
    MADE.append(network)
    return network


@dataclass
class Deadline:
    """When networks of this process die: 0 for never."""

    micro_batch: int = 0


DEADLINE = Deadline()
MADE: list[Network] = []
"""The networks of this process, to count what they saw."""


def make_optimizer(network: nn.Module) -> Optimizer:
    """Return the optimizer of the network."""
    return AdamW(network.parameters(), lr=0.01)


def make_schedule(optimizer: Optimizer, scenario: Scenario) -> LambdaLR:
    """Return a schedule: a cosine over all updates, or a constant."""
    updates = scenario.updates

    def factor(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * step / updates)) if scenario.schedule else 1.0

    return LambdaLR(optimizer, factor)


def weights_of(network: nn.Module, average: nn.Module | None = None) -> Weights:
    """Return copies of the weights of a network and of their average."""
    found = {f"network.{name}": value.detach().clone() for name, value in network.state_dict().items()}
    if average is not None:
        found |= {f"average.{name}": value.detach().clone() for name, value in average.state_dict().items()}
    return found
