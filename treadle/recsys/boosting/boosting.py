"""What a boosting library is to a trainer: something that adds one round after the other."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from treadle.data.seeds import fold_seed
from treadle.recsys.boosting.features import Matrix
from treadle.recsys.boosting.rows import LabelledRows

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
        train: LabelledRows,
        valid: LabelledRows | None,
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
