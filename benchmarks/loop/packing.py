"""How many tokens of documents a second are trained on, padded and packed, on documents of skewed lengths.

Run by `python -m benchmarks.loop.packing`. Every contender trains the same GPT of the examples for one epoch over the
same documents, by a `Trainer`. Contenders take turns in a new random order each round, and a ratio is to padding of its
own round.
"""

import argparse
import gc
import os
import random
import sys
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from examples.language_model.gpt import GPT
from treadle import Trainer
from treadle.data.sources import NEXT_TOKEN, PackedDocuments

ROW, VOCABULARY = 512, 256
DOCUMENTS_IN_BATCH, ROWS_IN_BATCH = 16, 4
MEDIAN, SPREAD = 32, 1.2
BAR = 2.5
LONGEST, WHOLE, PACKED = "padded to the longest of a batch", "padded to the row", "packed"
NOTES = f"""\
Work: one epoch of the GPT of the examples, 2 layers, width 128, 4 heads, fp32, AdamW, by a `Trainer` without callbacks;
1 torch thread. Documents: log-normal lengths with median {MEDIAN} and sigma {SPREAD}, at most {ROW} tokens. Padded:
{DOCUMENTS_IN_BATCH} documents in a batch, drawn at random. Packed: {ROWS_IN_BATCH} rows of {ROW} in a batch, documents
kept apart by a mask. Useful: tokens of documents; places that are computed on for padding do not count. Time: CPU time
of the process, the packing included. Ratio: useful tokens a second to those of the first line, of the same round."""


def documents(count: int) -> list[Tensor]:
    """Return documents of skewed lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = (MEDIAN * torch.exp(SPREAD * torch.randn(count, generator=generator))).int().clamp(2, ROW).tolist()
    return [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in lengths]


def padded(samples: Sequence[Tensor], *, to: int | None) -> dict[str, Tensor]:
    """Return a batch of documents, each in a row of its own."""
    length = to or max(map(len, samples))
    tokens = torch.zeros(len(samples), length, dtype=torch.long)
    targets = torch.full((len(samples), length), -100)
    filled = pad_sequence(list(samples), batch_first=True)
    tokens[:, : filled.shape[1]] = filled
    for row, sample in enumerate(samples):
        targets[row, : len(sample) - 1] = sample[1:]
    return {"tokens": tokens, "targets": targets}


def train(data: Any, **options: Any) -> Trainer:
    """Train one epoch."""
    torch.manual_seed(0)
    model = GPT(vocabulary_size=VOCABULARY, context=ROW, layers=2, heads=4, width=128)
    trainer = Trainer(model, None, torch.optim.AdamW(model.parameters(), lr=1e-3), callbacks=(), seed=0, device="cpu")
    trainer.train(data, num_epochs=1, **options)
    return trainer


def train_padded(text: list[Tensor], to: int | None) -> None:
    """Train on padded documents; a micro-batch is a whole batch, so that the mean of the model is the right one."""
    order = torch.randperm(len(text), generator=torch.Generator().manual_seed(1)).tolist()
    loader = DataLoader(
        text,  # type: ignore[arg-type]
        batch_sampler=[order[place : place + DOCUMENTS_IN_BATCH] for place in range(0, len(order), DOCUMENTS_IN_BATCH)],
        collate_fn=lambda samples: padded(samples, to=to),
    )
    train(loader)


def train_packed(text: list[Tensor]) -> None:
    """Train on packed rows."""
    train(PackedDocuments(text, ROW, fields=NEXT_TOKEN), per_device_batch_size=ROWS_IN_BATCH)


CONTENDERS: dict[str, Callable[[list[Tensor]], None]] = {
    LONGEST: lambda text: train_padded(text, None),
    WHOLE: lambda text: train_padded(text, ROW),
    PACKED: train_packed,
}


def main() -> None:
    """Measure, print the table, write the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.packing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after one that is discarded")
    parser.add_argument("--documents", type=int, default=192, help="documents of an epoch")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: needs 2 at least")
    os.environ.update(CUDA_VISIBLE_DEVICES="")
    torch.set_num_threads(1)
    text = documents(options.documents)
    rounds = measured(text, options.rounds)
    facts = provenance("loop.packing", ("torch", "treadle"), rounds=f"{options.rounds}, after one")
    section = "\n\n".join(["## Packed text", facts, NOTES, table(text, rounds)])
    print(section)
    if not options.no_write:
        write_section("packing", section)


def measured(text: list[Tensor], count: int) -> list[dict[str, float]]:
    """Let all contenders take their turns; return the seconds of each, by round."""
    order = random.Random(0)
    rounds = []
    for number in range(count + 1):
        taken = {}
        for name in order.sample(list(CONTENDERS), len(CONTENDERS)):
            gc.collect()
            begin = process_time()
            CONTENDERS[name](text)
            taken[name] = process_time() - begin
        print(f"round {number} of {count}: {taken}", file=sys.stderr)
        rounds += [taken] if number else []
    return rounds


def table(text: list[Tensor], rounds: list[dict[str, float]]) -> str:
    """Return the table, and whether the bar is met."""
    tokens, longest = sum(map(len, text)), max(map(len, text))
    report = PackedDocuments(text, ROW, fields=NEXT_TOKEN).report
    order = torch.randperm(len(text), generator=torch.Generator().manual_seed(1)).tolist()
    groups = [order[place : place + DOCUMENTS_IN_BATCH] for place in range(0, len(order), DOCUMENTS_IN_BATCH)]
    places = {
        LONGEST: sum(len(group) * max(len(text[one]) for one in group) for group in groups),
        WHOLE: len(text) * ROW,
        PACKED: report.rows * ROW,
    }
    lines = [
        f"{len(text)} documents of {tokens} tokens: {tokens / len(text):.0f} in the mean, {longest} at most.\n",
        "| contender | places | useful | useful tokens/s | ratio | IQR |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in CONTENDERS:
        ratios = [taken[LONGEST] / taken[name] for taken in rounds]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        speed = tokens / median(taken[name] for taken in rounds)
        lines.append(
            f"| {name} | {places[name]:,} | {tokens / places[name]:.1%} | {speed:,.0f} "
            f"| {median(ratios):.2f} | {low:.2f}-{high:.2f} |"
        )
    found = median(taken[LONGEST] / taken[PACKED] for taken in rounds)
    lines.append(f"\nBar: {BAR} times the first line: {'met' if found >= BAR else '**missed**'} ({found:.2f}).")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
