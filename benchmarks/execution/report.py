"""The sections of the benchmark of execution as Markdown, made from what was found."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from benchmarks.execution.gpt2 import COMPILE_BAR, MFU_BAR
from benchmarks.execution.turns import DEVICE, PLAIN_LOOP

Data = dict[str, Any]

TITLES = {
    "small": "Execution: small models on a GPU",
    "gpt2": "Execution: GPT-2 124M on a GPU",
    "fashion": "Execution: Fashion-MNIST to 91%",
    "cpu": "Execution: on the CPU",
}
SMALL_NOTES = """\
Work: MLP 64-64-64-10, batch 32; CNN of two convolutions and two linear layers on 1x28x28, batch 128; cross-entropy,
AdamW, fp32 with torch's own settings (convolutions in TF32, products not), no clipping, no schedule. Treadle and the
peers have their default callbacks, bars and logs on; output goes to the null device.

Time: wall clock over one epoch, the device idle at both ends, after an epoch that does not count (in which Treadle
warms up, captures and checks that replays agree). All contenders take turns in one process, in a new random order each
round; a ratio is of times of the same round. "To the loop" is to the hand-written loop with AdamW as it comes. "To its
like": Treadle eager is compared with the hand-written loop with the fused AdamW that Treadle chooses by itself; a
captured step of Treadle's with the step captured by hand that gets **the same inputs**: ready batches copied into the
graph's own, data resident on the device and gathered inside the graph, or ready batches in host memory (by hand: pinned
buffers, a side stream, two graphs). One batch for ever is the floor: nothing is fed at all."""
GPT_NOTES = """\
Work: the model of examples/language_model/gpt.py, 12 layers, width 768, 1,024 tokens, vocabulary padded to 50,304, tied
head; bf16 autocast over fp32 weights, fused AdamW, gradients clipped to norm 1; random tokens ready on the device. The
loop by hand has its own model with the same initial weights, and runs between the epochs of Treadle's run; a ratio is
of neighbouring epochs. Tuned: trunk compiled, head and cross-entropy by `treadle.linear_cross_entropy`, residual stream
in bf16, tanh GELU, the whole step captured. MFU: (6N + 12LDT) x tokens/s over 989e12, N = 124.4 million."""
FASHION_NOTES = """\
Work: the CNN, batch 128, AdamW with torch's defaults, shuffled, all 10,000 test images after each epoch, until 91% are
right. Time: wall clock of the whole call that builds loaders and trainer, trains and evaluates; for Treadle moving the
data to the device, capturing and checking the capture are in it. Images are normalised beforehand, in host memory."""
CPU_NOTES = """\
Steps: as on the GPU, one thread, the second of two epochs, in turn; ratio to Treadle eager of the same round. Compiled
by hand is `torch.compile` as it comes; Treadle compiles masks and max pooling in another way for a CPU. Reading: one
epoch of shuffled batches of a `TensorDataset`. Time: CPU time of the process, threads included."""


def as_markdown(name: str, data: Data) -> str:
    """Return a section with its heading, where it comes from, how it was measured, and its tables."""
    notes = {"small": SMALL_NOTES, "gpt2": GPT_NOTES, "fashion": FASHION_NOTES, "cpu": CPU_NOTES}[name]
    tables = {"small": small_tables, "gpt2": gpt_tables, "fashion": fashion_tables, "cpu": cpu_tables}[name](data)
    warning = ["**A smoke test: tiny sizes, nothing captured, no figure means anything.**"] if data["smoke"] else []
    absent = "; ".join(f"{what} ({why})" for what, why in data["missing"].items()) or "none"
    facts = f"{data['facts']}\n- seconds: {data.get('seconds', 0):.0f}\n- missing: {absent}"
    parts = [f"## {TITLES[name]}", *warning, facts, notes, *tables, *check_lines(data["checks"])]
    return "\n\n".join(part for part in parts if part)


def check_lines(checks: Sequence[Data]) -> list[str]:
    """Return what was compared, and whether it agreed."""
    if not checks:
        return []
    failed = [check for check in checks if not check["passed"]]
    verdict = f"Parity: {len(checks) - len(failed)} of {len(checks)} comparisons agree."
    lines = [f"- {'pass' if one['passed'] else 'FAIL'}: {one['name']}: {one['value']:.1e}" for one in checks]
    return [verdict, "\n".join(lines)]


def spread(values: Sequence[float], form: str) -> str:
    """Return the median and the quartiles of some values as two cells."""
    if len(values) < 2:
        return f"{values[0]:{form}} | - " if values else "- | - "
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return f"{median(values):{form}} | {lower:{form}}-{upper:{form}}"


def ratios(rounds: Sequence[dict[str, float]], label: str, baseline: str | None) -> list[float]:
    """Return how many times as long something took as its baseline, for each round that has both."""
    return [one[label] / one[baseline] for one in rounds if baseline and label in one and baseline in one]


def small_tables(data: Data) -> list[str]:
    """Return a table for each work, with its verdicts."""
    if "turns" not in data:
        return []
    parts = []
    for work, turns in data["turns"].items():
        rounds = data["rounds"][work]
        header = "| contender | inputs | µs/step | IQR | n | to the loop | to its like | IQR |"
        lines = [f"### {work}", "", header, "|---|---|--:|--:|--:|--:|--:|--:|"]
        lines += [small_line(label, turn, rounds) for label, turn in turns.items() if times_of(rounds, label)]
        parts += ["\n".join(lines), "\n".join(small_verdicts(work, turns, rounds))]
    return parts


def readme_table(data: Data) -> str:
    """Return the microseconds of a step of everybody who trains on ready batches on the device, as a Markdown table."""
    works = data["turns"]
    lines = [f"| contender | {' | '.join(f'{work}, µs' for work in works)} |", f"|---|{'--:|' * len(works)}"]
    for label, turn in next(iter(works.values())).items():
        times = [times_of(data["rounds"][work], label) for work in works]
        if turn["inputs"] == DEVICE and all(times) and not turn["name"].endswith("again"):
            lines.append(f"| {turn['name']} | {' | '.join(f'{median(one):,.0f}' for one in times)} |")
    return "\n".join(lines)


def times_of(rounds: Sequence[dict[str, float]], label: str) -> list[float]:
    """Return the times of a contender."""
    return [one[label] for one in rounds if label in one]


def small_line(label: str, turn: Data, rounds: Sequence[dict[str, float]]) -> str:
    """Return one line of the table."""
    times = times_of(rounds, label)
    plain = ratios(rounds, label, f"{PLAIN_LOOP} | {DEVICE}")
    own = ratios(rounds, label, turn["baseline"])
    loop = f"{median(plain):.3f}" if plain else "-"
    return (
        f"| {turn['name']} | {turn['inputs']} | {spread(times, '.1f')} | {len(times)} | {loop} | {spread(own, '.3f')} |"
    )


def small_verdicts(work: str, turns: Data, rounds: Sequence[dict[str, float]]) -> list[str]:
    """Say of each bar whether it is met."""
    lines = []
    for label, turn in turns.items():
        own, times = ratios(rounds, label, turn["baseline"]), times_of(rounds, label)
        what = f"{work}, {turn['name']}, {turn['inputs']}"
        if turn["bar"] and own:
            lines.append(verdict(f"{what}: {median(own):.3f} times its like", median(own) <= turn["bar"], turn["bar"]))
        if turn["limit_us"] and times:
            passed = median(times) <= turn["limit_us"]
            lines.append(verdict(f"{what}: {median(times):.1f} µs", passed, f"{turn['limit_us']:.0f} µs"))
    return lines


def verdict(what: str, passed: bool, bar: object) -> str:
    """Return one line that says whether a bar is met."""
    return f"- {what}; bar {bar}: {'met' if passed else 'MISSED'}"


def gpt_tables(data: Data) -> list[str]:
    """Return the table of all settings, with its verdicts."""
    head = "| setting | by | batch | ms/step | IQR | tokens/s | MFU | tokens/s to the hand's | IQR |"
    lines, verdicts = [head, "|---|---|--:|--:|--:|--:|--:|--:|--:|"], []
    for name, found in data["settings"].items():
        # The first epoch compiles and captures.
        pairs = list(zip(found["hand_s"][1:], found["treadle_s"][1:], strict=False))
        if not pairs:
            continue
        gains = [hand / treadle for hand, treadle in pairs]
        for by, seconds in (("hand", [hand for hand, _ in pairs]), ("treadle", [treadle for _, treadle in pairs])):
            lines.append(gpt_line(name, by, found, seconds, gains if by == "treadle" else [], data))
        if name == "compile":
            verdicts.append(verdict(f"compile: {median(gains):.4f}", median(gains) >= COMPILE_BAR, COMPILE_BAR))
        if name.startswith("tuned"):
            reached = mfu_of(found, median(treadle for _, treadle in pairs), data)
            verdicts.append(verdict(f"tuned: MFU {reached:.3f}", reached >= MFU_BAR, MFU_BAR))
    return ["\n".join(lines), "\n".join(verdicts)]


def gpt_line(name: str, by: str, found: Data, seconds: Sequence[float], gains: Sequence[float], data: Data) -> str:
    """Return one line of the table."""
    steps = found["steps"]
    middle = median(seconds)
    rate = f"{found['tokens'] / middle / 1e3:.1f}k"
    each = spread([second / steps * 1e3 for second in seconds], ".2f")
    share = f"{mfu_of(found, middle, data):.3f}"
    return f"| {name} | {by} | {found['batch']} | {each} | {rate} | {share} | {spread(gains, '.4f')} |"


def mfu_of(found: Data, seconds: float, data: Data) -> float:
    """Return the share of the device's arithmetic that an epoch of so many seconds uses."""
    return float(found["tokens"] / seconds * data["flops_per_token"] / data["peak"])


def fashion_tables(data: Data) -> list[str]:
    """Return the table of all contenders, the fastest first."""
    runs: dict[str, list[Data]] = {}
    for run in data.get("runs", []):
        runs.setdefault(run["name"], []).append(run)
    lines = ["| contender | seconds | from-to | runs | epochs | accuracy |", "|---|--:|--:|--:|--:|--:|"]
    for name, own in sorted(runs.items(), key=lambda item: median(run["seconds"] for run in item[1])):
        seconds = [run["seconds"] for run in own]
        epochs = [len(run["accuracies"]) for run in own]
        last = [run["accuracies"][-1] for run in own]
        missed = "" if min(last) >= data["target"] else f", below {data['target']}"
        lines.append(
            f"| {name} | {median(seconds):.2f} | {min(seconds):.2f}-{max(seconds):.2f} | {len(own)} "
            f"| {median(epochs):.0f} | {median(last):.4f}{missed} |"
        )
    return ["\n".join(lines)]


def cpu_tables(data: Data) -> list[str]:
    """Return the tables of steps and of reading, with their verdicts."""
    return [step_table(data), reading_table(data)]


def step_table(data: Data) -> str:
    """Return how long steps take, and how much compiling gains."""
    lines = ["| work | way | µs/step | IQR | speed, of Treadle eager | IQR |", "|---|---|--:|--:|--:|--:|"]
    verdicts = []
    for work, rounds in data["steps"].items():
        for name in dict.fromkeys(name for one in rounds for name in one):
            gains = [one["treadle eager"] / one[name] for one in rounds if {"treadle eager", name} <= set(one)]
            times = [one[name] for one in rounds if name in one]
            lines.append(f"| {work} | {name} | {spread(times, '.0f')} | {spread(gains, '.2f')} |")
            if name == "treadle compile" and gains:
                bar = data["compile_bar"] if work == "CNN" else None
                text = f"{work}, compile: {median(gains):.2f} times the speed of eager"
                verdicts.append(verdict(text, median(gains) >= bar, bar) if bar else f"- {text}")
    return "\n".join([*lines, "", *verdicts])


def reading_table(data: Data) -> str:
    """Return how fast tensor data sets are read."""
    lines = ["| samples of | way | batches/s | IQR | to DataLoader | IQR |", "|---|---|--:|--:|--:|--:|"]
    verdicts = []
    for work, rounds in data["reading"].items():
        for name in dict.fromkeys(name for one in rounds for name in one):
            gains = ratios(rounds, name, "DataLoader(TensorDataset)")
            rates = [one[name] for one in rounds if name in one]
            lines.append(f"| {work} | {name} | {spread(rates, '.0f')} | {spread(gains, '.2f')} |")
            if name == "treadle" and gains:
                text = f"reading {work}: {median(gains):.2f} times the batches/s"
                verdicts.append(verdict(text, median(gains) >= data["reading_bar"], data["reading_bar"]))
    return "\n".join([*lines, "", *verdicts])
