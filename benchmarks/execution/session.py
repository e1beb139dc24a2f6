"""What a section of the benchmark finds, kept on disk from the first figure on, so that a time limit loses nothing."""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import torch

from benchmarks.loop.overhead import silence

Result = TypeVar("Result")


@dataclass(frozen=True)
class Options:
    """How the benchmark is run.

    Args:
        device: Where.
        smoke: Whether only to see that everything runs, in tiny sizes and without a GPU.
        seed: Of weights, data and the order of turns.
        out: The folder that results go to; None writes none.
    """

    device: torch.device
    smoke: bool = False
    seed: int = 0
    out: Path | None = None

    @property
    def captures(self) -> bool:
        """Whether steps can be captured here; otherwise they are done one by one, which only a smoke test may do."""
        return self.device.type == "cuda"


@dataclass
class Findings:
    """The figures of one section.

    Args:
        name: The section.
        options: How the benchmark is run.
        budget_s: After how many seconds to begin nothing more.
        facts: Where the figures come from, in Markdown.

    Attributes:
        data: Everything found so far, as it is written to disk.
    """

    name: str
    options: Options
    budget_s: float
    facts: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    _began: float = field(default_factory=monotonic)
    _voice: int = field(default_factory=lambda: os.dup(1))

    def __post_init__(self) -> None:
        self.data |= {"facts": self.facts, "smoke": self.options.smoke, "checks": [], "missing": {}, "complete": False}

    @property
    def seconds(self) -> float:
        """How long the section has been running."""
        return monotonic() - self._began

    def has_time(self, needed_s: float = 0.0) -> bool:
        """Whether something that takes so long may still begin."""
        return self.seconds + needed_s < self.budget_s

    def say(self, text: str) -> None:
        """Print a line of progress at once, also where everybody else is silenced."""
        line = f"[{self.name} {self.seconds:6.1f} s] {text}\n"
        sys.stdout.flush()
        os.write(self._voice, line.encode())

    def save(self) -> None:
        """Write what is known so far."""
        self.data["seconds"] = round(self.seconds, 1)
        if self.options.out is not None:
            self.options.out.mkdir(parents=True, exist_ok=True)
            place = self.options.out / f"{self.name}.json"
            unfinished = place.with_suffix(".part")
            unfinished.write_text(json.dumps(self.data, indent=1), encoding="utf-8")
            unfinished.replace(place)

    def check(self, name: str, value: float, allowed: float) -> None:
        """Record whether two ways came to the same end: `value` is how far they are apart."""
        passed = value <= allowed
        self.data["checks"].append({"name": name, "value": value, "allowed": allowed, "passed": passed})
        self.say(f"{'pass' if passed else 'FAIL'}: {name}: {value:.1e}, allowed {allowed:.1e}")
        self.save()

    def skip(self, name: str, reason: str) -> None:
        """Record why something was not measured."""
        self.data["missing"][name] = reason
        self.say(f"without {name}: {reason}")
        self.save()

    def attempt(self, name: str, work: Callable[[], Result]) -> Result | None:
        """Return what `work` does, in silence and in an empty folder; a failure costs this one thing only."""
        try:
            with alone():
                return work()
        except ImportError as error:
            # The message goes to the terminal only: it may name a path of this machine.
            print(f"--- {name}: {error}", flush=True)
            missing = isinstance(error, ModuleNotFoundError)
            self.skip(name, f"{error.name} not installed" if missing else "does not import")
        except Exception as error:
            self._keep_traceback(name, error)
            self.skip(name, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
        return None

    def _keep_traceback(self, name: str, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        print(f"--- {name}\n{text}", flush=True)
        if self.options.out is not None:
            self.options.out.mkdir(parents=True, exist_ok=True)
            with (self.options.out / "errors.txt").open("a", encoding="utf-8") as file:
                file.write(f"--- {self.name}, {name}\n{text}\n")


@contextmanager
def alone() -> Iterator[None]:
    """Run in an empty folder, with all output left out."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chdir(folder), silence():
        yield
