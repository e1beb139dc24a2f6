"""The rounds of a boosting run, as a part of the run's checkpoints."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.parallel import Processes
from treadle.recsys.boosting.boosting import Boosting, Evaluation


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
