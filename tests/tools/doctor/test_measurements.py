"""What the doctor measures: memory and graphs on a GPU, and nothing on a CPU."""

import gc
import re
import warnings
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.forking.starting import run_command
from treadle.data import size_of
from treadle.loop import Due
from treadle.tools.doctor import Note, examine
from treadle.tools.doctor.detectors import memory as head_room
from treadle.tools.doctor.detectors.memory import MemoryHeadroom, repeat_rows
from treadle.tools.doctor.processes import examine_in_processes
from treadle.tools.doctor.step_time import Clock, measure_step_ms

PLAIN = Path(__file__).parent / "clean" / "plain.py"

LARGE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from treadle import Trainer

torch.manual_seed(0)
inputs = torch.randn(4096, 64)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))
trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()), callbacks=(), seed=0)
trainer.train(TensorDataset(inputs, (inputs.sum(1) > 0).long()), 4, per_device_batch_size=32)
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    program = tmp_path / "large.py"
    program.write_text(LARGE)
    return program


def test_a_batch_is_repeated_in_whatever_holds_its_tensors() -> None:
    pair = namedtuple("pair", ["inputs", "rest"])
    batch = pair(torch.arange(6).view(3, 2), {"labels": torch.tensor([7, 8, 9]), "scale": torch.tensor(2.0), "n": 3})
    larger: Any = repeat_rows(batch, 5)
    assert isinstance(larger, pair)
    assert larger.inputs.tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert larger.rest["labels"].tolist() == [7, 8, 9, 7, 8]
    assert (float(larger.rest["scale"]), larger.rest["n"], size_of(larger)) == (2.0, 3, 5)


def test_a_batch_of_a_type_of_its_own_is_not_repeated() -> None:
    class Rows:
        def __len__(self) -> int:
            return 2

        def take_rows(self, first: int, last: int) -> "Rows":
            return self

    assert repeat_rows([Rows()], 4) is None


@pytest.mark.parametrize(
    ("fixed", "each", "samples", "expected"),
    [(100, 10, 100_000, 64), (100, 10, 48, 48), (100, 1000, 100_000, 8), (0, 0, 5000, 5000)],
    ids=["a power of two", "all of the data", "no larger one", "nothing grows"],
)
def test_the_largest_micro_batch_is_the_largest_that_fits(
    monkeypatch: pytest.MonkeyPatch, fixed: int, each: int, samples: int, expected: int
) -> None:
    detector = MemoryHeadroom(SimpleNamespace(), {})  # type: ignore[arg-type]
    total = 1000
    tried = []

    def peak(count: int) -> int | None:
        tried.append(count)
        needed = fixed + each * count
        return needed if needed <= total or count <= 16 else None

    monkeypatch.setattr(detector, "_peak_of", peak)
    monkeypatch.setattr(detector, "_samples", lambda: samples)
    assert detector._largest(8, total) == expected
    assert expected in tried


def test_a_guess_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = MemoryHeadroom(SimpleNamespace(), {})  # type: ignore[arg-type]
    # Beyond 40 samples something else is in the way, which no line through two points foretells.
    monkeypatch.setattr(detector, "_peak_of", lambda count: None if count > 40 else 10 * count)
    monkeypatch.setattr(detector, "_samples", lambda: head_room.MOST)
    assert detector._largest(8, 1000) == 32


def test_on_a_cpu_nothing_is_said_of_memory() -> None:
    if torch.cuda.is_available():
        pytest.skip("here a GPU is used")
    found = examine(PLAIN)
    assert (found.device, found.notes) == ("cpu", [])


@pytest.mark.slow
def test_on_a_cpu_it_is_told_what_a_gpu_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("here a GPU is used")
    monkeypatch.setattr("treadle.tools.doctor.processes.subprocess.run", run_command)
    (note,) = examine_in_processes(PLAIN).notes
    assert note.kind == "no_gpu"
    assert note.message.startswith("trained on a CPU: head-room of memory, the largest micro-batch")


def test_the_clock_counts_from_the_end_of_the_warm_up_to_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.0, 10.5, 10.5])
    monkeypatch.setattr("treadle.tools.doctor.step_time.time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock = Clock()
    for step in range(1, 71):
        progress, this_run = SimpleNamespace(step=step), SimpleNamespace(due=Due(last=70))
        clock.on_update_end(SimpleNamespace(progress=progress, this_run=this_run, device=torch.device("cpu")))  # type: ignore[arg-type]
    assert clock.milliseconds == pytest.approx(10.0)
    assert Clock().milliseconds is None


def test_steps_are_timed_without_touching_the_program(large: Path) -> None:
    took = measure_step_ms(large, "eager")
    assert took is not None
    assert took > 0


def test_larger_micro_batches_are_tried_on_the_trainer_and_leave_it_as_it_was(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is played by the CPU: its memory is the largest batch that the model was given."""
    sizes: list[int] = []
    states: list[tuple[Any, ...]] = []
    peak_of = MemoryHeadroom._peak_of

    def watched(detector: MemoryHeadroom, samples: int) -> int | None:
        before = _state(detector.trainer)
        found = peak_of(detector, samples)
        states.append((before, _state(detector.trainer)))
        sizes.append(samples)
        return None if found is None or samples > 1000 else samples

    monkeypatch.setattr(MemoryHeadroom, "_peak_of", watched)
    monkeypatch.setattr(MemoryHeadroom, "begin", _begin_as_on_a_gpu(MemoryHeadroom.begin))
    monkeypatch.setattr(head_room, "peak_device_memory", lambda device: 100)
    card = SimpleNamespace(total_memory=1200)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    (note,) = examine(large).notes
    assert sizes == [32, 64, 1024, 512]
    assert all(before == after for before, after in states)
    assert note.message == (
        "a step takes 0 MiB of 0 MiB at its peak, 92% are left; the largest micro-batch is about 512 samples "
        "(tried, in powers of two; 32 now)"
    )


def _begin_as_on_a_gpu(begin: Any) -> Any:
    def begin_so(detector: MemoryHeadroom) -> None:
        begin(detector)
        detector._is_cuda = True

    return begin_so


def _state(trainer: Any) -> tuple[Any, ...]:
    """Return what a pass that is nobody's business must not move."""
    weights = [value.tolist() for value in trainer.model.state_dict().values()]
    gradients = [weight.grad is None or not weight.grad.any() for weight in trainer.model.parameters()]
    return weights, gradients, torch.get_rng_state().tolist(), trainer.progress.step, trainer.model.training


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_head_room_and_the_largest_micro_batch_are_told(large: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = examine(large)
    assert found.findings == []
    (note,) = found.notes
    told = re.fullmatch(
        r"a step takes ([\d,]+) MiB of ([\d,]+) MiB at its peak, \d+% are left; the largest micro-batch is about "
        r"4096 samples \(all of the data; 32 now\)",
        note.message,
    )
    assert told, note.message


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_memory_that_runs_out_is_found_by_trying(large: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # What earlier tests have left does not count, and nothing of it may be used again.
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * 2**20) / total)
        try:
            large.write_text(LARGE.replace("randn(4096, 64)", "randn(200_000, 64)"))
            (note,) = examine(large).notes
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert "(tried, in powers of two; 32 now)" in note.message or "the largest" not in note.message


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_gain_of_graphs_is_measured(large: Path) -> None:
    notes = {note.kind: note for note in examine_in_processes(large).notes}
    assert re.fullmatch(
        r"a step takes [\d.]+ ms, and [\d.]+ ms with execution='graph': ([\d.]+ times as fast|not worth it)",
        notes["graph"].message,
    ), notes
    assert isinstance(notes["memory"], Note)
