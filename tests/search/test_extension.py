"""What a pack brings to a search: a space of its own, what its trials are given, and what they leave behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.forking.starting import popen
from treadle import search
from treadle.errors import ConfigError
from treadle.search.launchers import processes as spawning
from treadle.search.space.base import Searched
from treadle.search.space.dimensions import Categorical, Dimension, make_dimension
from treadle.search.space.extension import OpenValue, Restriction, TrialWeights
from treadle.search.store.history import Outcome


@dataclass(frozen=True)
class Word:
    """A word that a trial spells, after the word of another."""

    text: str
    before: Path | None = None
    after: Path | None = None

    def build(self) -> str:
        return self.text if self.before is None else f"{self.before.read_text()} {self.text}"

    def leave(self, built: str) -> None:
        if self.after is not None:
            self.after.parent.mkdir(exist_ok=True)
            self.after.write_text(self.text)

    def encoded(self) -> dict[str, Any]:
        return {"text": self.text, "places": [str(self.before or ""), str(self.after or "")]}

    @staticmethod
    def decoded(data: Mapping[str, Any], names: Any) -> "Word":
        before, after = (Path(place) if place else None for place in data["places"])
        return Word(data["text"], before, after)


class Words(Searched):
    """Words of two letters."""

    def __init__(self) -> None:
        self.dimensions: dict[str, Dimension] = {name: Categorical(name, "ab") for name in ("first", "last")}

    def task(self, taken: dict[str, Any]) -> Word:
        return Word("".join(taken.values()))

    def picture(self, taken: dict[str, Any], title: str) -> str:
        return f"<svg>{title}: {taken['first']}{taken['last']}</svg>"

    def weights(self, folder: Path, *, inherit: bool) -> TrialWeights:
        return Notes(folder)


class Notes(TrialWeights):
    """Each trial begins with what the one before it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def is_left(self, number: int) -> bool:
        return (self.folder / str(number)).exists()

    def nearest(self, taken: dict[str, Any], proposed: int | None, outcomes: Sequence[Outcome]) -> int | None:
        return outcomes[-1].number if outcomes else None

    def handed(self, subject: Any, number: int, inherits: int | None) -> Any:
        before = None if inherits is None else self.folder / str(inherits)
        return replace(subject, before=before, after=self.folder / str(number))


def length(word: str) -> dict[str, float]:
    """Judge a word, or two of them."""
    return {"default": float(len(word)), "vowels": float(word.count("a"))}


@pytest.mark.parametrize(
    "launcher", ["inline", pytest.param("processes", marks=pytest.mark.slow)]
)  # a worker finds what a trial is given by its name
def test_a_space_of_ones_own_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    monkeypatch.setattr(spawning, "subprocess", SimpleNamespace(Popen=popen))
    made = search.Search(
        Words(), length, strategy=search.Grid(shuffle=False), run_dir=tmp_path, launcher=launcher, inherit=True
    )
    trials = made.run()["trials"]
    assert [trial["values"]["default"] for trial in trials] == [2.0, 5.0, 5.0, 5.0]  # a word, and two with a space
    assert [trial["metrics"]["vowels"] for trial in trials] == [2.0, 3.0, 2.0, 1.0]
    assert [trial.get("inherits_from") for trial in trials] == [None, 0, 1, 2]
    drawn = (tmp_path / "panels" / "best_architecture.svg").read_text()
    assert drawn.startswith("<svg>The best architecture, of trial 1: ab</svg>")


class Square(OpenValue):
    """The square of a number that is decided."""

    def dimensions(self, label: str) -> list[Dimension]:
        return [make_dimension("side", search.integer(1, 3))]

    def evaluate(self, taken: Mapping[str, Any]) -> int:
        return int(taken["side"]) ** 2


class Different(Restriction):
    """No two decisions alike."""

    def require_known(self, known: Any) -> None:
        if len(list(known)) < 2:
            raise ConfigError("there is nothing that could differ")

    def satisfied(self, taken: dict[str, Any]) -> bool:
        return len(set(taken.values())) == len(taken)


def test_values_and_restrictions_of_ones_own_stand_in_a_config() -> None:
    space = {"area": Square(), "width": search.one_of(1, 2, 3), "rules": [Different()]}
    found = search.Search(space, lambda at: at["area"] * at["width"], strategy="grid", store="memory").run()
    assert len(found["trials"]) == 6
    assert found["best"]["parameters"] == {"side": 3, "width": 2}
    with pytest.raises(ConfigError, match="there is nothing that could differ"):
        search.Search({"area": Square(), "rules": [Different()]}, lambda at: at["area"], store="memory")
