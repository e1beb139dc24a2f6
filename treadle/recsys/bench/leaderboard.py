"""The table of a benchmark: for people as Markdown, for programs as JSON, for the page as a panel."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treadle.files.atomic_io import replace_text
from treadle.runs.panels import write_table
from treadle.runs.reader import read_json

# What a benchmark knows of one training


RECORD = "bench.json"
DONE, FAILED = "done", "failed"


@dataclass
class Record:
    """One training of a benchmark.

    Attributes:
        model: The model.
        seed: What its weights, orders and negatives were drawn with.
        state: "done" or "failed".
        error: Why it failed.
        valid: The metrics of the best epoch on the validation part.
        test: The metrics on the test part.
        epochs: How many epochs were trained.
        seconds_per_epoch: How long the training of an epoch took; of several the median.
        memory_mib: The most memory it took: of the device, or of the process where it was trained by the CPU.
        device: Where it was trained.
        parameters: How many weights were trained.
        test_rows: How many rows the test part has.
        test_print: A fingerprint of them: the same for all models that were tested on the same.
        settings: Every setting.
    """

    model: str
    seed: int
    state: str = DONE
    error: str = ""
    valid: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    epochs: int = 0
    seconds_per_epoch: float | None = None
    memory_mib: float | None = None
    device: str = ""
    parameters: int = 0
    test_rows: int = 0
    test_print: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Keep it in the folder of its run."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / RECORD, json.dumps(asdict(self), indent=1, default=str))

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        """Return what is kept in the folder of a run; None if it has not come to its end."""
        content = read_json(folder / RECORD)
        known = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
        try:
            return cls(**known)
        except TypeError:
            return None


MARKDOWN, JSON = "leaderboard.md", "leaderboard.json"
PANEL, FAILURES, PROTOCOL = "Leaderboard", "What failed", "Protocol"
MISSING = "-"


@dataclass(frozen=True)
class LeaderboardRow:
    """A model of the table.

    Attributes:
        model: The model.
        records: Its trainings that came to their end, one for each seed.
    """

    model: str
    records: tuple[Record, ...]

    def value(self, metric: str) -> float:
        """Return the mean of a metric of the test."""
        return statistics.fmean(one.test.get(metric, math.nan) for one in self.records)

    def shown(self, metric: str) -> str:
        """Return the mean of a metric, and between several seeds its standard deviation."""
        values = [one.test[metric] for one in self.records if metric in one.test]
        if not values:
            return MISSING
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.4f}{spread}"

    def typical(self, name: str) -> float | None:
        """Return the median of what the trainings cost."""
        found = [value for one in self.records if (value := getattr(one, name)) is not None]
        return statistics.median(found) if found else None


class Leaderboard:
    """Models in the order of what they reached on the test part, by the metric that decides.

    Args:
        records: The trainings.
        dataset: The name of the data set.
        shared: The settings that all models share.
        bigger: Whether a higher value of the deciding metric is better.
        remarks: What else must be known to read it.

    Attributes:
        lines: The models, the best one first.
        failed: The trainings that failed.
        metric: The metric that decides.
        bigger: Whether a higher value of it is better.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        dataset: str,
        shared: dict[str, Any],
        bigger: bool = True,
        remarks: Sequence[str] = (),
    ) -> None:
        self.dataset, self.shared, self._remarks = dataset, shared, list(remarks)
        self.bigger = bigger
        self.metric = self._metric = str(shared["valid_metric"]).lower().replace(" ", "")
        self._all = list(records)
        self.failed = [one for one in records if one.state != DONE]
        done = [one for one in records if one.state == DONE]
        models = dict.fromkeys(one.model for one in done)
        lines = [LeaderboardRow(model, tuple(one for one in done if one.model == model)) for model in models]
        self.lines = sorted(lines, key=lambda line: _rank(line.value(self._metric), bigger))

    def title(self) -> str:
        """Return what the table is of."""
        return f"{self.dataset}: {len(self.lines)} model{'' if len(self.lines) == 1 else 's'}"

    @property
    def metrics(self) -> list[str]:
        """The metrics of the table: the deciding one first."""
        found = dict.fromkeys(name for line in self.lines for one in line.records for name in one.test)
        return sorted(found, key=lambda name: name != self._metric)

    def columns(self) -> list[str]:
        """Return the heads of the table."""
        return ["", "model", *self.metrics, "epochs", "s/epoch", "memory, MiB", "parameters", "seeds", "settings"]

    def rows(self) -> list[list[str]]:
        """Return the cells of the table, row by row."""
        return [self._row(place, line) for place, line in enumerate(self.lines, start=1)]

    def _row(self, place: int, line: LeaderboardRow) -> list[str]:
        seconds, memory = line.typical("seconds_per_epoch"), line.typical("memory_mib")
        return [
            str(place),
            line.model,
            *(line.shown(metric) for metric in self.metrics),
            f"{line.typical('epochs') or 0:g}",
            MISSING if seconds is None else f"{seconds:.3g}",
            MISSING if memory is None else f"{memory:,.0f}",
            f"{line.records[0].parameters:,}",
            str(len(line.records)),
            settings_file(line.model),
        ]

    def notes(self) -> list[str]:
        """Return what must be known to read the table."""
        prints = {one.test_print for line in self.lines for one in line.records}
        devices = sorted({one.device for line in self.lines for one in line.records})
        found = [f"Ordered by {self._metric} on the test part; the best epoch is chosen on the validation part."]
        if len(prints) == 1:
            rows = self.lines[0].records[0].test_rows
            found.append(f"All models are tested on the same {rows:,} rows (fingerprint {prints.pop()}).")
        elif prints:
            others = sorted({f"{line.model}: {line.records[0].test_rows:,} rows" for line in self.lines})
            found.append(f"NOT all models are tested on the same rows, so compare with care: {'; '.join(others)}.")
        where = "of the device" if any(name != "cpu" for name in devices) else "of the process, libraries included"
        trained = f"Trained on {', '.join(devices)}" if devices else "Nothing is trained yet"
        found.append(f"{trained}; memory is the most {where}; s/epoch is that of training alone.")
        return [*found, *self._remarks]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        columns = [name or "#" for name in self.columns()]
        lines = [f"# {self.title()}", ""]
        lines += [f"| {' | '.join(columns)} |", f"|{'|'.join('---' for _ in columns)}|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows()]
        lines += ["", *(f"- {note}" for note in self.notes()), "", "## Protocol", ""]
        lines += [f"- `{name}`: `{json.dumps(value, default=str)}`" for name, value in self.shared.items()]
        if self.failed:
            lines += ["", "## What failed", ""]
            lines += [f"- {one.model}, seed {one.seed}: {_one_line(one.error)}" for one in self.failed]
        return "\n".join(lines) + "\n"

    def plain(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "dataset": self.dataset,
            "metric": self._metric,
            "bigger": self.bigger,
            "remarks": self._remarks,
            "protocol": self.shared,
            "notes": self.notes(),
            "order": [line.model for line in self.lines],
            "trainings": [asdict(one) for one in self._all],
        }

    def write(self, folder: Path) -> None:
        """Write the table in every form into the folder of the benchmark."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / MARKDOWN, self.markdown())
        replace_text(folder / JSON, json.dumps(_finite(self.plain()), indent=1, default=str))
        write_table(folder, PANEL, self.columns(), self.rows())
        notes = [["note", note] for note in self.notes()]
        shared = [[name, json.dumps(value, default=str)] for name, value in self.shared.items()]
        write_table(folder, PROTOCOL, ["what", "value"], [*notes, *shared])
        failures = [[one.model, str(one.seed), _one_line(one.error)] for one in self.failed]
        path = write_table(folder, FAILURES, ["model", "seed", "why"], failures)
        if not failures:
            path.unlink()


def settings_file(model: str) -> str:
    """Return where the settings of a model are kept, in the folder of a benchmark."""
    return f"settings/{model}.yaml"


def _rank(value: float, bigger: bool) -> float:
    """Return what to sort by: the best first, and nan last."""
    if math.isnan(value):
        return math.inf
    return -value if bigger else value


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _finite(value: Any) -> Any:
    """Return plain data with None for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
