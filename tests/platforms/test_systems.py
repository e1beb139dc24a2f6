"""Windows and macOS, as far as they can be pretended: their modules, signals, locks and files are as theirs are.

This is no run on those systems. `pretended.py` says what is taken away and what is refused.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.platforms.conftest import run_on, start_on
from treadle import Trainer
from treadle.data import workers
from treadle.data.random_state import RandomState
from treadle.errors import ConfigError, load_module
from treadle.ops import loss_items
from treadle.parallel.processes import known_device
from treadle.precision import loss_scaling
from treadle.runs.preemption import known_signals

pytestmark = pytest.mark.slow
Program = Callable[..., dict[str, Any]]

ELSEWHERE = {"treadle.search.store.journal": "fcntl"}
"""Modules that Windows never loads, and what they need."""


def test_every_module_can_be_imported_on_windows(program: Program) -> None:
    found = program("windows", "imports")
    assert found["modules"] > 400
    assert {name for name, why in found["failed"].items() if "MissingDependencyError" not in why} == set(ELSEWHERE)


def test_every_module_can_be_imported_on_macos(program: Program) -> None:
    found = program("macos", "imports")
    assert {name: why for name, why in found["failed"].items() if "MissingDependencyError" not in why} == {}


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_a_run_resumes_there_as_it_does_here(system: str, program: Program, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    assert program(system, "train", there, 14)["steps"] == 14
    resumed, whole = program(system, "train", there, 22), program("", "train", here, 22)
    assert (resumed["began"], whole["began"]) == (14, 0)
    assert resumed["weights"] == whole["weights"]
    checkpoints = {path.name for path in (there / "checkpoints").iterdir()}
    assert checkpoints == {path.name for path in (here / "checkpoints").iterdir()}
    assert "step_00000022" in checkpoints


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_a_folder_is_held_by_one_run_there_too(system: str, program: Program, tmp_path: Path) -> None:
    found = program(system, "second", tmp_path / "run")
    assert found["locked"] is True
    assert "is in use: this process trains in it already" in found["refused"]
    assert (found["after"], found["state"]) == (False, "finished")


def test_a_lock_of_windows_keeps_another_process_out_and_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    program = tmp_path / "hold.py"
    program.write_text(
        "import os, sys, time\nfrom treadle.files.file_lock import lock_file\n"
        "descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "try:\n    lock_file(descriptor, shared=True)\n    print('locked', flush=True)\n"
        "    time.sleep(float(sys.argv[2]))\nexcept BlockingIOError:\n    print('taken', flush=True)\n"
    )
    reader, writer = os.pipe()
    with open(reader) as said, open(writer, "wb") as output:
        first = start_on("windows", str(program), str(file), "600", stdout=output)
        assert said.readline() == "locked\n"
        # Windows has no shared locks of this kind: one that only looks is kept out, too.
        assert run_on("windows", str(program), str(file), "0").strip() == "taken"
        first.kill()
        first.wait()
    assert run_on("windows", str(program), str(file), "0") == "locked\n"


def test_a_process_of_windows_is_asked_for_by_its_number_and_never_signalled(program: Program) -> None:
    found = program("windows", "processes")
    assert found["own"].isdecimal()
    assert found["none"] is None
    assert found["notebook"] == (
        "notebook_launcher: num_processes=2, but these processes are forked, which Linux cannot; put the program into "
        "a file and start it with torchrun"
    )


def test_the_command_line_helps_on_windows_and_refuses_to_start_processes_there(tmp_path: Path) -> None:
    assert "Usage: " in run_on("windows", "treadle", "--help")
    for command in ("train", "recsys", "runs", "report", "doctor"):
        assert "Usage: " in run_on("windows", "treadle", command, "--help")
    assert "no runs" in run_on("windows", "treadle", "runs", str(tmp_path)).lower()
    said = " ".join(run_on("windows", "treadle", "train", "none.py", "--nproc", "2", status=2).split())
    assert "processes are started on Linux and macOS only" in said


def test_signals_that_a_system_has_not_are_left_out() -> None:
    assert known_signals("SIGTERM", "SIGBREAK", "SIGNOTHING") == (signal.SIGTERM,)


class Squares(Dataset[int]):
    """Says which signals its worker takes no notice of."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return index * index


def test_workers_take_no_notice_of_signals_where_nobody_can_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WATCHES", False)
    loader: DataLoader[int] = DataLoader(Squares(), batch_size=2, num_workers=1)
    assert [batch.tolist() for batch in workers.begin(loader)] == [[0, 1], [4, 9]]


def test_an_error_inside_a_module_is_not_taken_for_a_missing_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise AttributeError("module 'signal' has no attribute 'SIGUSR9'")

    monkeypatch.setattr("treadle.errors.import_module", broken)
    with pytest.raises(
        ImportError, match=r"treadle\.trainer cannot be loaded here: AttributeError: .* 'SIGUSR9'"
    ) as at:
        load_module("treadle.trainer")
    assert isinstance(at.value.__cause__, AttributeError)


class Apple:
    """Stands for torch.mps: a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def get_rng_state(self) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.generator.set_state(state)


def test_the_generator_of_mps_is_part_of_the_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    apple = Apple()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "mps", apple)
    state = RandomState().state_dict()
    drawn = torch.rand(3, generator=apple.generator)
    RandomState().load_state_dict(state)
    assert torch.equal(torch.rand(3, generator=apple.generator), drawn)


def test_mps_is_a_device_that_says_why_where_it_is_not_there() -> None:
    why = r"device='mps' cannot be used here: .*; use device='cpu', or leave device out"
    with pytest.raises(ConfigError, match=why):
        known_device("mps")


class Without64Bits(TorchDispatchMode):
    """Refuses numbers of 64 bits, which MPS does not have."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            assert not isinstance(leaf, torch.Tensor) or leaf.dtype is not torch.float64, func
        return result


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_update_makes_no_number_that_mps_has_not(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loss_scaling.widest_float(torch.device("mps")) is torch.float32
    assert loss_scaling.widest_float(torch.device("cpu")) is torch.float64
    for module in (loss_scaling, loss_items):
        monkeypatch.setattr(module, "widest_float", lambda device: torch.float32)

    class Watched(Trainer):
        def update(self, phase: Any, window: Any) -> None:
            with Without64Bits():
                super().update(phase, window)

    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), fused=False)
    trainer = Watched(model, nn.CrossEntropyLoss(), optimizer, callbacks=(), precision=precision)
    data = TensorDataset(torch.randn(32, 4), torch.arange(32) % 3)
    result = trainer.train(
        data, num_epochs=1, per_device_batch_size=8, gradient_accumulation_steps=2, clip_norm=1.0, log_every=1
    )
    assert result.steps == 2
