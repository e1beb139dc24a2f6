"""What a boosting library is to a trainer: something that adds one round after the other."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.parallel import Processes
from treadle.recsys.models.boosting.features import Matrix, TreeRows

VALID = "valid"
"""What the libraries call the validation part."""


class Evaluation(NamedTuple):
    """A metric of the library's own on the validation part, after a round."""

    metric: str
    value: float
    bigger: bool | None


class Boosting(ABC):
    """One boosting run of a library.

    Args:
        params: The parameters of the library.
        rounds: How many rounds there are to be.
        stopping_rounds: How many rounds without a better value end the run; None for no early stopping.
        start: A booster to begin with, in the library's own format.
        names: What the columns are called.
        categories: Which columns hold categories.
        train: What to learn from.
        valid: What to evaluate on after each round, if anything.

    Attributes:
        booster: The library's own object, while it is trained.
        samples: Whether the library draws random numbers, so that its rounds do not follow from those before alone.
        can_go_on: Whether the library can add rounds to a booster that was saved.
    """

    suffix: str
    """What the name of a file with such a booster ends with."""

    def __init__(
        self,
        params: Mapping[str, Any],
        *,
        rounds: int,
        stopping_rounds: int | None,
        names: Sequence[str],
        categories: Sequence[int],
        train: TreeRows,
        valid: TreeRows | None,
        start: bytes | None = None,
    ) -> None:
        self.params, self.rounds, self.stopping_rounds = dict(params), rounds, stopping_rounds
        self.names, self.categories = list(names), list(categories)
        self.train, self.valid, self.start = train, valid, start
        self.booster: Any = None
        self.samples = self._samples()
        self.can_go_on = True

    @abstractmethod
    def begin(self, text: bytes | None, restart: int) -> None:
        """Get ready for the next round.

        Args:
            text: The booster to add rounds to; None for a new one.
            restart: How often the random numbers began anew; they are others each time.
        """

    @abstractmethod
    def add_round(self, number: int) -> list[Evaluation]:
        """Add the round of this number, from 0, and return what the library says of it."""

    @abstractmethod
    def is_over(self, number: int, evaluations: Sequence[Evaluation]) -> bool:
        """Show the library's own early stopping the evaluations of a round, in order; whether it ends the run."""

    @abstractmethod
    def best_round(self) -> int | None:
        """Return how many rounds the best booster has, by the library's own early stopping; None without it."""

    @abstractmethod
    def text(self) -> bytes:
        """Return the booster in the library's own format, all of its rounds."""

    @abstractmethod
    def _samples(self) -> bool:
        """Whether the parameters have the library draw random numbers."""

    def seeds(self, names: Sequence[str], restart: int) -> dict[str, int]:
        """Return the seeds of a restart by their names; those of the first start are the parameters' own."""
        base = int(self.params.get("seed", 0))
        return {name: fold_seed(base, name, restart) % 2**31 for name in names} if restart else {}


class SavedBooster(ABC):
    """A booster that was trained, to predict with.

    Args:
        text: It, in the library's own format.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text

    @abstractmethod
    def predict(self, features: Matrix) -> Matrix:
        """Return the prediction for each row."""

    @abstractmethod
    def rounds(self) -> int:
        """Return how many rounds it has."""

    @abstractmethod
    def first_rounds(self, number: int) -> bytes:
        """Return the booster of its first rounds."""


# The rounds of a boosting run, as a part of the run's checkpoints


class Rounds:
    """Adds rounds, remembers what was said of each, and goes on from where a checkpoint was.

    What a library draws, it draws from generators that nobody can look into. Where it draws nothing, a booster that was
    saved goes on exactly. Where it does, `restart_rounds` has the library begin anew every so many rounds, from what
    it has and with other seeds: a run that is resumed does the rounds since then again, and ends with the same booster.

    Of several processes the first one boosts, on all rows, and tells the others; a library spreads its work over
    threads by itself.

    Args:
        boosting: The library at work.
        processes: Those that train together.
        restart_rounds: How many rounds lie between two restarts; None for no restarts.

    Attributes:
        done: How many rounds there are.
        is_over: Whether there will be no more.
        evaluations: What was said of each round.
    """

    def __init__(self, boosting: Boosting, processes: Processes, restart_rounds: int | None = None) -> None:
        self.boosting, self._processes = boosting, processes
        self._every = restart_rounds if boosting.samples else None
        self.done, self.is_over = 0, False
        self.evaluations: list[list[Evaluation]] = []
        self._start: tuple[int, bytes | None] = (0, None)
        self._ready = False

    @property
    def is_exact(self) -> bool:
        """Whether a run that is resumed ends with the booster that it would have had."""
        return not self.boosting.samples or self._every is not None or not self.boosting.can_go_on

    def add(self) -> list[Evaluation]:
        """Add a round, and return what the library says of it."""
        told = self._processes.share(self._next() if self._processes.is_main else None)
        found: list[Evaluation] = told[0]
        self.evaluations.append(found)
        self.done += 1
        self.is_over = told[1] or self.done >= self.boosting.rounds
        return found

    def _next(self) -> tuple[list[Evaluation], bool]:
        """Add a round; return what the library says of it, and whether that ends the run."""
        if not self._ready:
            self._go_on()
        found = self._add(self.done)
        return found, self.boosting.is_over(self.done, found)

    def _add(self, number: int) -> list[Evaluation]:
        if self._every is not None and number % self._every == 0 and number > self._start[0]:
            self._start = (number, self.boosting.text())
            self.boosting.begin(self._start[1], number // self._every)
        return self.boosting.add_round(number)

    def _go_on(self) -> None:
        """Bring the library to where the run is, and its early stopping with it."""
        number, text = self._start
        self.boosting.begin(text, 0 if self._every is None else number // self._every)
        for again in range(number, self.done):
            self._add(again)
        for place, found in enumerate(self.evaluations):
            self.boosting.is_over(place, found)
        self._ready = True

    def result(self) -> tuple[bytes, int | None]:
        """Return the booster in the library's own format, all of its rounds, and how many of them are the best one."""
        result: tuple[bytes, int | None] = self._processes.share(self._result() if self._processes.is_main else None)
        return result

    def _result(self) -> tuple[bytes, int | None]:
        if not self._ready:
            self._go_on()
        return self.boosting.text(), self.boosting.best_round()

    def state_dict(self) -> dict[str, Any]:
        """Return the rounds: the booster that they go on from, and what was said of each."""
        number, text = self._start
        if self._ready and self._every is None and self.boosting.can_go_on:
            number, text = self.done, self.boosting.text()
        return {
            "done": self.done,
            "is_over": self.is_over,
            "start": number,
            "text": None if text is None else as_tensor(text),
            "evaluations": [[list(one) for one in found] for found in self.evaluations],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to the rounds that `state_dict` returned."""
        self.done, self.is_over = int(state["done"]), bool(state["is_over"])
        text = state["text"]
        self._start = (int(state["start"]), None if text is None else as_bytes(text))
        self.evaluations = [[Evaluation(*one) for one in found] for found in state["evaluations"]]
        self._ready = False


def as_tensor(text: bytes) -> Tensor:
    """Return bytes as a tensor, which a checkpoint can hold.

    >>> as_bytes(as_tensor(b"tree"))
    b'tree'
    """
    return torch.from_numpy(np.frombuffer(text, np.uint8).copy())


def as_bytes(tensor: Tensor) -> bytes:
    """Return what `as_tensor` was given."""
    return tensor.cpu().numpy().tobytes()
