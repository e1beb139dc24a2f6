"""The way of a batch through each door, as pictures for docs/architecture.md.

`python -m benchmarks.docs.diagrams` writes them into docs/images; a test compares the files with what would be written,
and looks whether every file that they name is there. They have a ground of their own, so they can be read on a light
page and on a dark one.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LANE, BOX, TALL, GAP, EDGE, HEAD = 316, 296, 72, 28, 20, 84
"""Pixels: the width of a lane and of a box in it, the height of a box, what is between two, the margin, the titles."""

STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de }
  .lane { fill: #f6f8fa }
  .box { fill: #ffffff; stroke: #8c959f }
  .own { fill: #e0f2f1; stroke: #00796b; stroke-width: 1.5 }
  .way { fill: none; stroke: #59636e; stroke-width: 1.5 }
  .tip { fill: #59636e }
  text { fill: #1f2328; font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
  .title { font-size: 17px; font-weight: 600 }
  .head { font-weight: 600 }
  .call { font: 600 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
  .file { fill: #59636e; font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
  .note { fill: #59636e; font-style: italic }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d }
    .lane { fill: #151b23 }
    .box { fill: #0d1117; stroke: #656c76 }
    .own { fill: #0b2f2b; stroke: #4db6ac }
    .way { stroke: #9198a1 }
    .tip, .file, .note { fill: #9198a1 }
    text { fill: #e6edf3 }
  }
"""


class Step(NamedTuple):
    """A station of a batch.

    Attributes:
        lane: Whose it is: the number of a lane.
        call: What is called.
        text: What it does.
        file: Where it is, below `treadle/`.
        own: Whether it is what this picture is about: yours to override, or a door's own.
        note: What stands beside the arrow to it.
    """

    lane: int
    call: str
    text: str
    file: str
    own: bool = False
    note: str = ""


class Way(NamedTuple):
    """The stations of a batch behind one door, in their order."""

    title: str
    lanes: tuple[str, str, str]
    steps: tuple[Step, ...]


WAYS = {
    "batch-core": Way(
        "A batch behind treadle.Trainer",
        ("the run: the order", "parts: each with its own state", "verbs of Trainer: yours to override"),
        (
            Step(0, "Run.windows", "asks for the micro-batches of one step", "run.py"),
            Step(1, "Execution.draw", "draws them, on the device already", "execution/base.py"),
            Step(1, "Stream.window", "loader, workers, prefetch; knows its place", "data/stream.py"),
            Step(1, "Updater.attempt", "skips bad data, halves if memory runs out", "loop/update.py"),
            Step(1, "Execution.update", "eager, compiled, or replayed as a graph", "execution/"),
            Step(2, "update", "calculate_gradients, then apply_gradients", "trainer.py", own=True),
            Step(
                1,
                "Precision, SharedLoss",
                "autocast; processes share the gradient",
                "precision/formats.py, parallel/ddp.py",
                note="for each micro-batch",
            ),
            Step(2, "calculate_train_batch_loss", "your model and your loss", "trainer.py", own=True),
            Step(2, "backward_step", "adds to the gradient of the step", "trainer.py", own=True),
            Step(
                1,
                "Updater.apply",
                "the mean over all ranks, then clipping",
                "loop/update.py, optim/gradients.py",
                note="once for a step",
            ),
            Step(2, "optimizer_step", "then scheduler_step, optimizer_zero_grad", "trainer.py", own=True),
            Step(0, "Run.after_update", "counts; callbacks; log, evaluate, save", "run.py, loop/cadence.py"),
        ),
    ),
    "batch-engine": Way(
        "A batch behind treadle.engine",
        ("what you write and see", "parts of this door", "the core, as behind Trainer"),
        (
            Step(
                0,
                "DefaultTrainer.train",
                "a config made model, loader, optimizer",
                "engine/trainers/default.py",
                own=True,
            ),
            Step(1, "EngineCore.run", "trains from iteration start to end", "engine/core.py", own=True),
            Step(2, "Run.windows", "asks for the micro-batches of one iteration", "run.py"),
            Step(1, "EndlessStreams", "begins again when the data ends", "engine/core.py", own=True),
            Step(1, "EngineUpdater.attempt", "notes how long the data took (data_time)", "engine/updater.py", own=True),
            Step(2, "Updater.attempt, Execution", "as behind Trainer", "loop/update.py, execution/"),
            Step(
                0,
                "get_batch, model(...)",
                "the model returns a dict of losses",
                "engine/batch_arguments.py",
                own=True,
                note="for each micro-batch",
            ),
            Step(
                1, "calculate_train_batch_loss", "adds the losses up, keeps them to report", "engine/core.py", own=True
            ),
            Step(2, "backward_step, Updater.apply", "hooks with after_backward act in between", "loop/update.py"),
            Step(
                1,
                "EngineCore.update",
                "reports losses and norm of the iteration",
                "engine/core.py, engine/metrics.py",
                own=True,
            ),
            Step(2, "Run.after_update", "counts, and tells the table of callbacks", "run.py, callback.py"),
            Step(0, "HookBase.after_step", "hooks evaluate, save, write; and callbacks", "engine/hooks/", own=True),
        ),
    ),
    "batch-recsys": Way(
        "A batch behind treadle.recsys",
        ("what you write and see", "parts of this door", "the core, as behind Trainer"),
        (
            Step(0, "Trainer.fit", "data, epochs, and how to resume", "recsys/trainers/trainer.py", own=True),
            Step(
                1, "RecsysCore.phases", "a phase for each pass over the data", "recsys/trainers/loop/core.py", own=True
            ),
            Step(2, "Run.windows", "asks for the batch of one step", "run.py"),
            Step(
                1,
                "LoaderStream",
                "a batch by its place; each rank its share",
                "recsys/trainers/loop/streams.py",
                own=True,
            ),
            Step(
                1, "TrainDataLoader", "rows of interactions, in the epoch's order", "recsys/data/dataloader/", own=True
            ),
            Step(1, "NegativeSampler", "negatives by seed and place, on the device", "recsys/data/sampling/", own=True),
            Step(
                1,
                "RecommenderUpdater.attempt",
                "what part of a batch a micro-batch is",
                "recsys/trainers/loop/updater.py",
                own=True,
            ),
            Step(2, "Updater.attempt, Execution", "as behind Trainer", "loop/update.py, execution/"),
            Step(0, "model.calculate_loss", "a loss, or a tuple of losses", "recsys/models/", own=True),
            Step(1, "EpochLosses.add", "sums of the epoch, on the device", "recsys/trainers/loop/updater.py", own=True),
            Step(2, "backward_step, Updater.apply", "gradient, clipping, optimizer, schedule", "loop/update.py"),
            Step(2, "Run.after_update", "counts, callbacks, and what is due", "run.py"),
            Step(
                1,
                "EpochEnd",
                "full or sampled ranking; the best is kept",
                "recsys/trainers/loop/epoch_end.py",
                own=True,
                note="once for an epoch",
            ),
        ),
    ),
    "batch-nas": Way(
        "A batch behind a one-shot trainer of treadle.nas",
        ("what you write and see", "parts of this door", "the core, as behind Trainer"),
        (
            Step(
                0,
                "DartsTrainer.fit",
                "a space of choices, data, a loss",
                "nas/oneshot/darts.py, nas/oneshot/trainer.py",
                own=True,
            ),
            Step(1, "OneShotCore.phases", "architecture and weights take turns", "nas/oneshot/core.py", own=True),
            Step(2, "Run.windows", "asks for the micro-batches of one step", "run.py"),
            Step(2, "Stream.window", "validation or training data, by the phase", "data/stream.py"),
            Step(
                1, "OneShotUpdater.attempt", "draws what is random, by seed and step", "nas/oneshot/core.py", own=True
            ),
            Step(2, "Updater.attempt, Execution", "as behind Trainer", "loop/update.py, execution/"),
            Step(1, "Supernet", "the space with weights for its candidates", "nas/oneshot/supernet.py", own=True),
            Step(0, "loss(outputs, targets)", "your loss of the outputs", "ops/losses.py", own=True),
            Step(
                1,
                "architecture_loss",
                "adds what the architecture costs",
                "nas/oneshot/core.py, nas/costs/penalty.py",
                own=True,
            ),
            Step(2, "backward_step, Updater.apply", "by the optimizer of the phase", "loop/update.py"),
            Step(2, "Run.after_update", "counts, callbacks, and what is due", "run.py"),
            Step(
                0,
                "export, nas.freeze",
                "the best architecture, as a plain network",
                "nas/oneshot/trainer.py, nas/fixed.py",
                own=True,
                note="after the search",
            ),
        ),
    ),
}


def drawing(way: Way) -> str:
    """Return the picture of a way as SVG: boxes in lanes, from top to bottom, and arrows between them."""
    width, height = 2 * EDGE + 3 * LANE, HEAD + len(way.steps) * (TALL + GAP) + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(way.title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="{EDGE}" y="30">{escape(way.title)}</text>',
    ]
    for number, name in enumerate(way.lanes):
        left = EDGE + number * LANE
        parts.append(
            f'<rect class="lane" x="{left + 4}" y="44" width="{LANE - 8}" height="{height - 44 - EDGE / 2:g}" rx="6"/>'
        )
        parts.append(f'<text class="head" x="{left + LANE / 2:g}" y="64" text-anchor="middle">{escape(name)}</text>')
    for number, step in enumerate(way.steps):
        if number:
            parts.append(_arrow(way.steps[number - 1], step, _top(number)))
        parts.append(_box(step, _top(number)))
    return "\n".join([*parts, "</svg>", ""])


def _top(number: int) -> int:
    return HEAD + number * (TALL + GAP)


def _middle(lane: int) -> float:
    return EDGE + lane * LANE + LANE / 2


def _box(step: Step, top: int) -> str:
    left = _middle(step.lane) - BOX / 2
    kind = "own" if step.own else "box"
    return (
        f'<rect class="{kind}" x="{left:g}" y="{top}" width="{BOX}" height="{TALL}" rx="6"/>'
        f'<text class="call" x="{left + 12:g}" y="{top + 23}">{escape(step.call)}</text>'
        f'<text x="{left + 12:g}" y="{top + 42}">{escape(step.text)}</text>'
        f'<text class="file" x="{left + 12:g}" y="{top + 60}">{escape(step.file)}</text>'
    )


def _arrow(before: Step, after: Step, top: int) -> str:
    start, end, turn = _middle(before.lane), _middle(after.lane), top - GAP / 2
    way = f"M{start:g} {top - GAP}V{turn:g}H{end:g}V{top - 6}"
    tip = f"M{end - 4:g} {top - 7}h8l-4 6z"
    # Beside the tip, where the line does not come from.
    place = f'x="{end - 10:g}" text-anchor="end"' if start > end else f'x="{end + 10:g}"'
    note = f'<text class="note" {place} y="{top - 9}">{escape(after.note)}</text>' if after.note else ""
    return f'<path class="way" d="{way}"/><path class="tip" d="{tip}"/>{note}'


def main() -> None:
    """Write every picture."""
    for name, way in WAYS.items():
        (IMAGES / f"{name}.svg").write_text(drawing(way), encoding="utf-8")


if __name__ == "__main__":
    main()
