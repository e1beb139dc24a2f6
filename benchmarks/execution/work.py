"""The small models whose steps are timed, the jobs that contenders get, and the clock that they start and stop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter, process_time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.job import LOSS_FUNC, Batch, Job

CLASSES = 10
RATE = 1e-3

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Clock:
    """Times epochs: by the wall on a GPU, which is idle at both ends; elsewhere by the time of this process.

    Args:
        device: Where the work is done.

    Attributes:
        seconds: How long each epoch took.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        # On the CPU others may be at work too; there the time of all threads of this process is what a step costs.
        self._now = perf_counter if self._cuda else process_time
        self._began = 0.0
        self.seconds: list[float] = []

    def begin(self) -> None:
        """Begin an epoch."""
        self._wait()
        self._began = self._now()

    def end(self) -> None:
        """End it."""
        self._wait()
        self.seconds.append(self._now() - self._began)

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Work:
    """A model and the batches it is trained on.

    Args:
        name: What to call it.
        shape: The shape of one sample.
        batch_size: Samples in a batch.
        make_model: Returns a new model, from torch's generator.
        eager_steps: Steps of an epoch that is timed launch by launch.
        graph_steps: Steps of an epoch of replays, which are much shorter.
    """

    name: str
    shape: tuple[int, ...]
    batch_size: int
    make_model: Callable[[], nn.Module]
    eager_steps: int
    graph_steps: int


def make_mlp() -> nn.Module:
    """Return the MLP 64-64-64-10."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def make_cnn(pool: Callable[[int], nn.Module] = nn.MaxPool2d) -> nn.Module:
    """Return two convolutions and two linear layers for images of 1x28x28: 0.42 million parameters in 8 tensors."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        pool(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        pool(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


MLP = Work("MLP", (64,), 32, make_mlp, eager_steps=150, graph_steps=1000)
CNN = Work("CNN", (1, 28, 28), 128, make_cnn, eager_steps=150, graph_steps=300)
AVERAGE_CNN = replace(CNN, name="CNN, average pooling", make_model=partial(make_cnn, nn.AvgPool2d))
SMOKE = (
    replace(MLP, batch_size=4, eager_steps=3, graph_steps=6),
    replace(CNN, batch_size=2, eager_steps=2, graph_steps=6),
)


def default_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW as torch gives it: on a GPU one kernel for each operation over all parameters."""
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW in one kernel."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)


def capturable_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW in one kernel that can be captured: its counters are on the device, its rate never changes."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, fused=True, capturable=True)


class Material:
    """The data of one work, as it is handed to everybody.

    Args:
        work: Whose data.
        device: Where batches are ready.
        seed: Of data and initial weights.

    Attributes:
        inputs, targets: All samples on the device, `graph_steps` batches of them.
        batches: The same, cut into batches.
        host_batches: The same batches on the host.
    """

    def __init__(self, work: Work, device: torch.device, seed: int) -> None:
        self.work, self.device, self.seed = work, device, seed
        count = work.graph_steps * work.batch_size
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(count, *work.shape, generator=generator)
        targets = torch.randint(CLASSES, (count,), generator=generator)
        self.inputs, self.targets = inputs.to(device), targets.to(device)
        self.batches = _cut(self.inputs, self.targets, work.batch_size)
        self.host_batches = _cut(inputs, targets, work.batch_size)

    def job(self, batches: Sequence[Batch], make_optimizer: MakeOptimizer) -> Job:
        """Return a fresh job over `batches`: the same initial weights each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.work.make_model().to(self.device)
        ready = list(batches)
        loader: DataLoader[Batch] = DataLoader(ready, batch_size=None, shuffle=False)  # type: ignore[arg-type]
        return Job(model, make_optimizer(model), loader, ready)


def _cut(inputs: Tensor, targets: Tensor, size: int) -> list[Batch]:
    return [(inputs[at : at + size].clone(), targets[at : at + size].clone()) for at in range(0, len(targets), size)]


def train_by_hand(job: Job, clock: Clock, epochs: int = 2) -> None:
    """Train with the loop that everybody could write, over ready batches."""
    model, optimizer = job.model, job.optimizer
    model.train()
    for _ in range(epochs):
        clock.begin()
        for inputs, targets in job.loader:
            optimizer.zero_grad()
            loss = LOSS_FUNC(model(inputs), targets)
            loss.backward()
            optimizer.step()
        clock.end()
