"""Which demonstrations there are; nothing of what they need is loaded until one of them runs."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from treadle.errors import ConfigError, did_you_mean, require

__all__ = ["DEMOS", "Demo", "find_demo"]

Say = Callable[[str], object]
"""Where a demonstration says what it does."""


class Demo(NamedTuple):
    """A demonstration.

    Attributes:
        name: What it is called on the command line.
        title: What it shows, in one line.
        packages: What must be installed besides what Treadle always needs.
        program: Runs it in a folder.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    program: Callable[[Path, Say], None]

    def run(self, folder: Path, say: Say) -> None:
        """Run it in a folder; started again there, it resumes where it was.

        Raises:
            MissingDependencyError: A package that it needs is not installed.
        """
        for package in self.packages:
            require(package, extra="demo", user=f"the demonstration {self.name!r}")
        self.program(folder, say)


def _digits(folder: Path, say: Say) -> None:
    from treadle.tools.demo.digits import run

    run(folder, say)


def _recommender(folder: Path, say: Say) -> None:
    from treadle.tools.demo.recommender import run

    run(folder, say)


def _search(folder: Path, say: Say) -> None:
    from treadle.tools.demo.search import run

    run(folder, say)


def _language_model(folder: Path, say: Say) -> None:
    from treadle.tools.demo.language_model import run

    run(folder, say)


DEMOS: tuple[Demo, ...] = (
    Demo("digits", "A convolutional network that reads handwritten digits (treadle.Trainer)", ("sklearn",), _digits),
    Demo("recommender", "LightGCN for a shop, against what is popular (treadle.recsys)", ("pyarrow",), _recommender),
    Demo("search", "The width, activation and rate of a network, by trials (treadle.nas)", ("optuna",), _search),
    Demo("language-model", "A transformer that learns a small grammar (treadle.engine)", (), _language_model),
)
"""All demonstrations, in the order of the menu."""


def find_demo(name: str) -> Demo:
    """Return a demonstration by its name, or by its number in the menu, from 1.

    >>> find_demo("2").name
    'recommender'

    Raises:
        ConfigError: There is none.
    """
    names = [demo.name for demo in DEMOS]
    if name.isdecimal() and 1 <= int(name) <= len(DEMOS):
        return DEMOS[int(name) - 1]
    if name.replace("_", "-") not in names:
        raise ConfigError(f"there is no demonstration {name!r}; there are {names}{did_you_mean(name, names)}")
    return DEMOS[names.index(name.replace("_", "-"))]
