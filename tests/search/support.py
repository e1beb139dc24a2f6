"""Spaces, trainers and comparisons that the tests of searches share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from treadle import nas


class Net(nn.Module):
    """A small space: a choice between three layers, of which one holds a choice of its own."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        nested = nn.Sequential(
            nas.LayerChoice({"tanh": nn.Tanh(), "relu": nn.ReLU()}, label="act"), nn.Linear(width, width)
        )
        self.inner = nas.LayerChoice(
            {"linear": nn.Linear(width, width), "skip": nn.Identity(), "deep": nested}, label="inner"
        )
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 2)

    def forward(self, inputs: Any) -> Any:
        return self.last(self.inner(self.first(inputs)))


@nas.register_trainer
class Judge(nas.BaseTrainer):
    """Trains for a few steps on fixed points, and reports after each."""

    def __init__(self, model: nn.Module, rate: float = 0.1, steps: int = 3) -> None:
        self.model, self.rate, self.steps = model, rate, steps

    def fit(self) -> None:
        inputs = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
        labels = (inputs.sum(dim=1) > 0).long()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
        for _ in range(self.steps):
            loss = nn.functional.cross_entropy(self.model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            nas.report_intermediate_result(-loss)
        nas.report_final_result(-loss)


def letters(count: int = 4, values: str = "abcd") -> dict[str, Any]:
    """Return a space of words."""
    return {f"x{place}": nas.one_of(*values) for place in range(count)}


def vowels(taken: dict[str, str]) -> float:
    """Return how many letters of a word are an `a`: best where all are."""
    return float(sum(letter == "a" for letter in taken.values()))


def noisy(taken: dict[str, str]) -> float:
    """Return a result that depends on the random numbers of the trial, too."""
    return vowels(taken) + torch.rand(()).item() / 100


CLOCKS = ("started", "ended", "seconds", "owner")


def without_clocks(results: dict[str, Any]) -> dict[str, Any]:
    """Return results without what no two runs have in common."""
    trials = [{name: value for name, value in trial.items() if name not in CLOCKS} for trial in results["trials"]]
    return {**results, "trials": trials, "best": None if results["best"] is None else results["best"]["number"]}


def numbers(results: dict[str, Any], state: str = "complete") -> list[int]:
    """Return the numbers of the trials in a state."""
    return [trial["number"] for trial in results["trials"] if trial["state"] == state]


class Killed(BaseException):
    """What a search dies of in this process, as others die of a kill: nothing catches it."""


def dying_at(function: Any, *calls: int) -> Any:
    """Return a function that dies at these calls, counted over all of its calls."""
    count = iter_count()

    def dying(*arguments: Any, **options: Any) -> Any:
        if next(count) in calls:
            raise Killed
        return function(*arguments, **options)

    return dying


def iter_count() -> Iterator[int]:
    """Yield 0, 1, 2 and so on."""
    number = 0
    while True:
        yield number
        number += 1


def search_in(folder: Path, space: Any = None, trainer: Any = noisy, **options: Any) -> nas.Search:
    """Return a search in a folder, with its journal."""
    return nas.Search(letters() if space is None else space, trainer, run_dir=folder, **{"trials": 12, **options})
