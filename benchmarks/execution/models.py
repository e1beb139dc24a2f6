"""Twenty-five models under a hand-written loop, torch.compile, the HF Trainer, and Treadle with nothing set.

Several calls fill one table: what a file of results has is not measured again.

    python -m benchmarks.execution.models --budget-s 300 --results $OUT/models.json
    python -m benchmarks.execution.models --models "BERT-small,DCN" --results $OUT/models.json
    python -m benchmarks.execution.models --smoke
    python -m benchmarks.execution.models --results models.json --write

The last one measures nothing: it writes what the file has into RESULTS.md.

All loops of a model train copies of one set of weights on the same batches, in turn: between the rounds of Treadle's
run those of the others are timed. Treadle is told the precision and a number of steps, and no more. For parity the
losses of the first twenty updates are compared: in fp32 with those of the hand-written loop, in bf16 with those that it
has in fp32, from which Treadle's may be twice as far as the hand-written loop's own.
"""

import argparse
import copy
import gc
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.execution.model_shapes import SHAPES, Batch, Shape
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import Trainer
from treadle.callbacks import TrainerCallback
from treadle.execution import Choice
from treadle.execution.cuda_graph.graph_cache import WARM_UP
from treadle.files.atomic_io import replace_text

COMPARED = 20
PLANNED = 1_000_000
"""Steps that Treadle is told to train for; it is stopped as soon as it is timed."""
BATCHES = 8
RATE = 1e-4


class Loop:
    """A loop by hand: autocast, backward, a fused step.

    Args:
        model: What it trains.
        device: Where.
        bf16: Whether forward passes are in bf16.
        mode: A mode of torch.compile; None compiles nothing.
    """

    def __init__(self, model: nn.Module, device: torch.device, *, bf16: bool, mode: str | None = None) -> None:
        self.model, self._device, self._bf16 = model, device, bf16
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=device.type == "cuda")

        def calculate(batch: Batch) -> Tensor:
            found = model(**batch)
            loss: Tensor = found["loss"]
            return loss

        self._loss: Callable[[Batch], Tensor] = calculate if mode is None else torch.compile(calculate, mode=mode)

    def step(self, batch: Batch) -> Tensor:
        """Make an update and return its loss."""
        moved = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(self._device.type, dtype=torch.bfloat16) if self._bf16 else nullcontext():
            loss = self._loss(moved)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def round(self, batches: list[Batch], steps: int) -> float:
        """Return the milliseconds of an update."""
        wait(self._device)
        began = time.perf_counter()
        for number in range(steps):
            self.step(batches[number % len(batches)])
        wait(self._device)
        return 1000 * (time.perf_counter() - began) / steps


def wait(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class Rounds(TrainerCallback):
    """Reads the first losses, then times Treadle's updates in rounds, with rounds of the others in between.

    Args:
        others: The other loops by name, each called with the steps of a round.
        rounds: How many.
        seconds: How long a round of Treadle's is to take, about.
    """

    def __init__(self, others: dict[str, Callable[[int], float]], rounds: int, seconds: float) -> None:
        self.losses: list[float] = []
        self.found: dict[str, list[float]] = {name: [] for name in (*others, "Treadle")}
        self.peak = 0.0
        self.chosen_s = 0.0
        self._others, self._left, self._seconds = others, rounds, seconds
        self._began, self._first, self._steps, self._update = 0.0, 0, 0, 0.0

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        self._update = time.perf_counter()

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        step = trainer.progress.step
        if step <= COMPARED:
            self.losses.append(float(trainer.this_run.losses.loss_value))
            if step == WARM_UP + 1:
                self.chosen_s = time.perf_counter() - self._update
            return
        if step == COMPARED + 1 or (self._steps == 0 and step == COMPARED + 11):
            wait(trainer.device)
            now = time.perf_counter()
            if step > COMPARED + 1:
                self._steps = min(400, max(3, int(self._seconds / ((now - self._began) / 10))))
            self._began, self._first = now, step
            return
        if self._steps and step == self._first + self._steps:
            wait(trainer.device)
            self.found["Treadle"].append(1000 * (time.perf_counter() - self._began) / self._steps)
            if trainer.device.type == "cuda" and not self.peak:
                self.peak = torch.cuda.max_memory_allocated() / 2**30
            for name, other in self._others.items():
                slowest = max([0.0, *self.found[name]]) / 1000
                self.found[name].append(other(min(self._steps, max(3, int(self._seconds / slowest))) if slowest else 3))
            self._left -= 1
            if not self._left:
                trainer.request_stop("timed", for_good=True)
            wait(trainer.device)
            self._began, self._first = time.perf_counter(), step


class Samples(Dataset[Any]):
    """The samples of batches, for the HF Trainer."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches
        self._size = len(next(iter(batches[0].values())))

    def __len__(self) -> int:
        return self._size * len(self._batches)

    def __getitem__(self, place: int) -> Batch:
        batch = self._batches[place // self._size]
        return {name: value[place % self._size] for name, value in batch.items()}


def time_hf(model: nn.Module, shape: Shape, batches: list[Batch], steps: int, warm: int = 10) -> float:
    """Return the milliseconds of an update of the HF Trainer; its data comes in the same batches, ready made."""
    import transformers

    marks: list[float] = []

    class Marks(transformers.TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (warm, warm + steps):
                torch.cuda.synchronize()
                marks.append(time.perf_counter())

    size = len(next(iter(batches[0].values())))

    def collate(samples: list[Batch]) -> Batch:
        # A list of whole batches, cut by sample: the batch itself is there.
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=warm + steps, per_device_train_batch_size=size, bf16=shape.precision == "bf16",
            learning_rate=RATE, optim="adamw_torch_fused", report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, max_grad_norm=0.0, lr_scheduler_type="constant", remove_unused_columns=False,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=Samples(batches), data_collator=collate, callbacks=[Marks()]
        )
        trainer.train()
    return 1000 * (marks[1] - marks[0]) / steps


def busy_share(loop: Loop, batches: list[Batch], usual: float) -> float:
    """Return the share of an update of the hand-written loop in which the device works."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        loop.round(batches, 3)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    total, reached = 0.0, 0.0
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / 3 / 1000 / usual


def measure(
    shape: Shape, device: torch.device, *, smoke: bool, compiled: bool, hf: bool, seconds: float, rounds: int
) -> dict[str, Any]:
    """Return what was found for a model.

    Args:
        shape: The model and its batches.
        device: Where.
        smoke: Whether only to see that everything runs, in tiny sizes.
        compiled: Whether `torch.compile` in its best mode is a contender.
        hf: Whether the HF Trainer is one.
        seconds: How long a round takes, about.
        rounds: How many there are.
    """
    cuda, bf16 = device.type == "cuda", shape.precision == "bf16"
    generator = torch.Generator().manual_seed(0)
    batches = [shape.batch(generator, 2 if smoke else shape.size, smoke) for _ in range(BATCHES)]
    torch.manual_seed(0)
    with device:
        model = shape.build(smoke)
    model.train()
    found: dict[str, Any] = {"parameters": sum(weight.numel() for weight in model.parameters()), "size": shape.size}

    def fresh() -> nn.Module:
        return copy.deepcopy(model).to(device)

    def losses_of(loop: Loop) -> list[float]:
        return torch.stack([loop.step(batches[number % BATCHES]) for number in range(COMPARED)]).tolist()  # type: ignore[no-any-return]

    reference = None if shape.alone else losses_of(Loop(fresh(), device, bf16=False))
    found["peaks"] = {}
    others: dict[str, Callable[[int], float]] = {}
    alone: dict[str, list[float]] = {}
    own = [] if shape.alone else losses_of(Loop(fresh(), device, bf16=bf16))

    def take(name: str, mode: str | None) -> Loop:
        """Make a loop, note its losses and its peak, and time it at once or have it timed in turn."""
        before, began = _free(device), time.perf_counter()
        loop = Loop(fresh(), device, bf16=bf16, mode=mode)
        loop.step(batches[0])
        wait(device)
        found[f"{name}: first s"] = time.perf_counter() - began
        for batch in batches[:3]:
            loop.step(batch)
        if cuda:
            found["peaks"][name] = (torch.cuda.max_memory_allocated() - before) / 2**30
        if shape.alone:
            steps = max(3, int(seconds / (loop.round(batches, 3) / 1000)))
            alone[name] = [loop.round(batches, steps) for _ in range(rounds)]
        else:
            others[name] = lambda steps: loop.round(batches, steps)
        return loop

    hand: Loop | None = take("hand", None)
    if cuda and compiled:
        try:
            # Where the device is busy all the time, recordings of torch.compile's own gain nothing.
            take("torch.compile", "default" if shape.alone else "reduce-overhead")
        except Exception as error:
            found["torch.compile failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    if shape.alone:
        hand = None
        torch._dynamo.reset()
    before = _free(device)
    clock = Rounds(others, 1, 0.001) if smoke else Rounds(others, rounds, seconds)
    trainer = _trainer(fresh(), clock, shape, device)
    trainer.train(DataLoader(batches, batch_size=None, shuffle=False), max_steps=60 if smoke else PLANNED)  # type: ignore[arg-type]
    found["chosen_s"] = clock.chosen_s
    if cuda:
        found["peaks"]["Treadle"] = clock.peak - before / 2**30
        state: Any = trainer.tracked._objects.get("execution")
        choice: Choice | None = None if state is None else state.choice
        found["choice"] = None if choice is None else choice.plain()
    found["ms"] = {**alone, **clock.found}
    found["parity"] = parity(shape, reference, own, clock.losses)
    usual = statistics.median(found["ms"]["hand"])
    if cuda and hand is not None:
        found["busy"] = busy_share(hand, batches, usual)
    del trainer
    others.clear()
    _free(device)
    if hf and cuda and not shape.alone:
        try:
            found["ms"]["HF Trainer"] = [
                time_hf(fresh(), shape, batches, max(5, min(100, int(1000 * seconds / usual))))
            ]
        except Exception as error:
            found["HF Trainer failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return found


def _trainer(model: nn.Module, clock: Rounds, shape: Shape, device: torch.device) -> Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    return Trainer(model, None, optimizer, callbacks=(clock,), precision=shape.precision, device=device)


def parity(shape: Shape, reference: list[float] | None, own: list[float], treadle: list[float]) -> dict[str, Any]:
    """Return how far losses are apart, as shares, and whether that is within the bar."""

    def apart(one: list[float], other: list[float]) -> float:
        return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(one, other, strict=True))

    if not shape.compared or reference is None:
        return {"compared": False}
    if shape.precision == "fp32":
        found = apart(treadle, reference)
        return {"compared": True, "apart": found, "bar": 1e-5, "holds": found <= 1e-5}
    allowed = 2 * apart(own, reference)
    found = apart(treadle, reference)
    return {"compared": True, "apart": found, "bar": allowed, "holds": found <= allowed}


def _free(device: torch.device) -> int:
    """Let go of what is unused, begin to look for a peak, and return what is in use."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def table(results: dict[str, Any]) -> str:
    """Return the results as a table of Markdown: milliseconds, and ratios to the hand-written loop."""
    lines = [
        "| model | hand, ms (busy) | torch.compile | HF Trainer | Treadle | chosen | choosing | parity |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        if "ms" not in found:
            lines.append(f"| {name} | {found.get('failed', '?')} |")
            continue
        hand = found["ms"]["hand"]
        usual = statistics.median(hand)

        def ratio(contender: str, found: dict[str, Any] = found, usual: float = usual) -> str:
            times = found["ms"].get(contender)
            if not times:
                return "-"
            paired = sorted(time / usual for time in times)
            return f"{statistics.median(paired):.3f} [{paired[0]:.3f}..{paired[-1]:.3f}]"

        parity = found["parity"]
        kept = "not compared" if not parity["compared"] else f"{parity['apart']:.1e} of {parity['bar']:.1e}"
        choice = found.get("choice") or {"chosen": "eager"}
        lines.append(
            f"| {name} | {usual:.3g} ({found.get('busy', 0):.0%}) | {ratio('torch.compile')} | {ratio('HF Trainer')} | "
            f"{ratio('Treadle')} | {choice['chosen']} | {found['chosen_s']:.1f} s | {kept} |"
        )
    return "\n".join(lines)


NOTES = """\
An update of each loop on the same batches of the shapes in `benchmarks/execution/model_shapes.py`, settled before
anything was timed; Treadle is told the precision, and nothing else. Ratios are of an update's time to the median of the
hand-written loop's, [lowest..highest] over the rounds; rounds take turns. Busy: the share of the hand-written update in
which the device works. Choosing: what the update took in which Treadle chose, compiling included. Parity: how far 20
losses are from the hand-written loop's in fp32, as a share, and the bar: 1e-5, or twice what the hand-written loop in
bf16 is."""


def write(path: Path) -> None:
    """Write what a file of results has into RESULTS.md."""
    kept = json.loads(path.read_text())
    write_section("execution-models", f"## Models of others\n\n{kept['facts']}\n\n{NOTES}\n\n{table(kept['models'])}")


def facts_of(device: torch.device) -> str:
    """Return where the figures come from, in Markdown."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "no GPU"
    return provenance("execution.models", ("torch", "treadle", "transformers"), device=name)


def main() -> None:
    """Measure what is asked for and not there yet, as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="parts of names, with commas between; by default all")
    parser.add_argument("--budget-s", type=float, default=600.0, help="after so many seconds nothing more is begun")
    parser.add_argument("--results", type=Path, default=Path("models.json"))
    parser.add_argument("--smoke", action="store_true", help="tiny models, on a CPU if need be")
    parser.add_argument("--no-hf", action="store_true", help="leave the HF Trainer out")
    parser.add_argument("--no-others", action="store_true", help="leave it and torch.compile out")
    parser.add_argument("--write", action="store_true", help="write the results into RESULTS.md, and measure nothing")
    parser.add_argument("--seconds", type=float, default=0.4, help="how long a round takes, about")
    parser.add_argument("--rounds", type=int, default=5)
    parsed = parser.parse_args()
    if parsed.write:
        write(parsed.results)
        return
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not parsed.smoke:
        parser.error("there is no CUDA device; --smoke runs tiny models here")
    kept: dict[str, Any] = json.loads(parsed.results.read_text()) if parsed.results.exists() else {"models": {}}
    kept["facts"] = facts_of(device)
    results = kept["models"]
    wanted = parsed.models.split(",") if parsed.models else [""]
    for shape in (shape for part in wanted for shape in SHAPES if part.strip().lower() in shape.name.lower()):
        if shape.name in results and "ms" in results[shape.name]:
            continue
        if time.monotonic() - began > parsed.budget_s:
            print("no time is left for the others")
            break
        torch._dynamo.reset()
        try:
            results[shape.name] = measure(
                shape,
                device,
                smoke=parsed.smoke,
                compiled=not parsed.no_others,
                hf=not (parsed.no_hf or parsed.no_others),
                seconds=parsed.seconds,
                rounds=parsed.rounds,
            )
        except Exception as error:
            traceback.print_exc()
            results[shape.name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
        replace_text(parsed.results, json.dumps(kept, indent=1))
        print(
            f"[{time.monotonic() - began:6.1f} s] {table({shape.name: results[shape.name]}).splitlines()[-1]}",
            flush=True,
        )
    print(table(results))


if __name__ == "__main__":
    main()
