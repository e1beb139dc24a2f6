"""Which models can be exported as programs, and why others cannot: `python -m benchmarks.recsys.exports`.

Every model of the door is built small, with weights that show, and exported to torch.export and to ONNX; a program is
written only if it computes what the model does to 1e-5, for other numbers of rows too. With `--write` the table of
`docs/recsys-serving.md` is replaced.
"""

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

from tests.recsys.serve.ready import ready
from tests.recsys.suites.every_model import MODELS
from treadle.checkpoint.format.program import export_onnx, export_program
from treadle.errors import ConfigError
from treadle.recsys.serve.programs import scoring_of

PAGE = Path(__file__).parents[2] / "docs" / "recsys-serving.md"
BEGIN, END = "<!-- exports: begin -->", "<!-- exports: end -->"
TREES = "their library's own format: `model.save_booster(path)`"


class Export(NamedTuple):
    """What came of a model."""

    model: str
    takes: str
    torch: str
    onnx: str


def attempt(name: str) -> Export:
    """Export a model both ways."""
    try:
        scoring = scoring_of(ready(name)[1])
    except ConfigError as error:
        return Export(name, "", str(error).removeprefix(f"{name} "), "")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for write, suffix in ((export_program, "pt2"), (export_onnx, "onnx")):
            try:
                write(scoring.module, scoring.example, Path(folder) / f"model.{suffix}")
                results.append("yes")
            except ConfigError as error:
                results.append(str(error).split(": ", 1)[-1].partition("; export its weights")[0][:120])
    return Export(name, scoring.kind, *results)


def table(exports: list[Export]) -> str:
    """Return what came of models, those with the same outcome in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in exports:
        rows.setdefault(one[1:], []).append(one.model)
    rows["", TREES, ""] = ["LightGBM", "XGBoost"]
    lines = ["| models | program of | torch.export | ONNX |", "|---|---|---|---|"]
    for (takes, torch, onnx), names in rows.items():
        why = torch if takes else f"no: {torch}"
        lines.append(f"| {', '.join(names)} | {takes} | {why.replace('|', '/')} | {onnx.replace('|', '/')} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the table of the page")
    parser.add_argument("models", nargs="*", help="by default all")
    given = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = table([attempt(name) for name in given.models or MODELS])
    print(found)
    if given.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
