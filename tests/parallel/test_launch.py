"""Several processes from one: each finds its place, and what fails in one is told to all."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import ProcessRaisedException

from treadle import Trainer
from treadle.errors import ConfigError
from treadle.parallel import Processes, notebook_launcher


def train_and_report(folder: Path, rate: float) -> None:
    """Train a linear model on four samples whose mean gradient only both halves together give."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=rate), callbacks=(), device="cpu")
    data = [(torch.ones(1), torch.full((1,), float(target))) for target in (1, 2, 3, 6)]
    trainer.train(data, num_epochs=1, per_device_batch_size=2)
    place = f"{trainer.processes.rank} of {trainer.processes.size}, {torch.get_num_threads()} thread"
    (folder / str(trainer.processes.rank)).write_text(f"{place}, weight {model.weight.item()}")


def test_two_processes_train_together(tmp_path: Path) -> None:
    notebook_launcher(train_and_report, args=(tmp_path, 0.5), num_processes=2)
    # The gradient at 0 is -2 times the mean target, 3: half of it back makes a weight of 3.
    assert (tmp_path / "0").read_text() == "0 of 2, 1 thread, weight 3.0"
    assert (tmp_path / "1").read_text() == "1 of 2, 1 thread, weight 3.0"


def test_this_process_stays_alone(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    notebook_launcher(lambda: None, num_processes=2)
    assert Processes().size == 1
    assert "WORLD_SIZE" not in os.environ
    assert not dist.is_initialized()
    assert torch.get_num_threads() == threads


def test_one_process_calls_the_function_right_here() -> None:
    calls = []
    notebook_launcher(lambda *args: calls.append((os.getpid(), args)), args=(1, 2), num_processes=1)
    assert calls == [(os.getpid(), (1, 2))]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with GPUs there is one process for each")
def test_without_a_gpu_there_is_one_process_by_default() -> None:
    calls = []
    notebook_launcher(lambda: calls.append(os.getpid()))
    assert calls == [os.getpid()]


def fail_on_the_second() -> None:
    if Processes().rank == 1:
        raise ValueError("the second process cannot go on")


def test_a_failure_in_one_process_is_raised_here() -> None:
    with pytest.raises(ProcessRaisedException, match="the second process cannot go on"):
        notebook_launcher(fail_on_the_second, num_processes=2)


@pytest.mark.parametrize("number", [0, -1, 2.0, True, "2"])
def test_a_number_that_cannot_be_meant_is_refused(number: object) -> None:
    with pytest.raises(ConfigError, match=r"^notebook_launcher: num_processes=.* must be a whole number above 0$"):
        notebook_launcher(lambda: None, num_processes=number)  # type: ignore[arg-type]


def test_a_process_that_is_one_of_several_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"num_processes=2, but this process is one of several already; under torchr"):
        notebook_launcher(lambda: None, num_processes=2)


def test_a_process_that_has_used_cuda_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match=r"has used CUDA, which the new ones cannot share; restart it, and touch"):
        notebook_launcher(lambda: None, num_processes=2)
