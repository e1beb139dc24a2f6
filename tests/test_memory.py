"""The peak of memory as a metric."""

import gc
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.interrupting import make_trainer, samples
from treadle.callback import TrainerCallback
from treadle.callbacks import ThroughputMonitor
from treadle.memory import forget_peak, peak_device_memory


class TakesMemory(TrainerCallback):
    """Takes memory of the device after one of the updates, and gives it back at once."""

    def __init__(self, step: int, mib: int) -> None:
        self.step, self.mib = step, mib

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == self.step:
            torch.empty(self.mib * 2**20, dtype=torch.uint8, device=trainer.device)


def test_the_peak_is_what_the_allocator_of_the_device_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 1)
    asked: list[Any] = []
    counted = {"allocated_bytes": {"all": {"current": 1, "peak": 3 * 2**20}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda one: asked.append(one) or counted)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda one: asked.append(one))
    assert peak_device_memory(device) == 3 * 2**20
    forget_peak(device)
    assert asked == [device, device]


def test_without_a_cuda_device_there_is_none() -> None:
    assert peak_device_memory(torch.device("cpu")) is None
    forget_peak(torch.device("cpu"))
    trainer = make_trainer(None)
    trainer.train(samples(), 1)
    assert "peak_memory_mib" not in trainer.storage.names()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("callbacks", [(), (ThroughputMonitor,)], ids=["none", "throughput"])
def test_on_cuda_every_log_of_any_trainer_has_the_peak_of_the_run_once(callbacks: Any) -> None:
    # What others in this process hold is allocated too; here is counted what comes on top of it.
    gc.collect()
    before = torch.cuda.memory_allocated() / 2**20
    torch.empty(1024 * 2**20, dtype=torch.uint8, device="cuda")
    trainer = make_trainer(None, TakesMemory(step=3, mib=512), *callbacks, device="cuda")
    trainer.train(samples(), 2, log_every=2)
    series = trainer.storage.series("peak_memory_mib")
    # Logs after steps 2, 4 and 6, and at the end of both epochs.
    assert series.steps == [2, 3, 4, 6, 6]
    assert 0 < series.values[0] < before + 512
    assert all(before + 500 < value < before + 1024 for value in series.values[1:])


STEPS_OF_32_MIB = """
import resource
import torch
from treadle.memory import keep_host_memory

torch.set_num_threads(1)

def pages_asked_for():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [torch.ones(1 << 21) for _ in range(4)]
        del parts
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

left_alone = pages_asked_for()
keep_host_memory()
pages_asked_for()
print(left_alone, pages_asked_for())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other ways with free memory")
def test_a_step_finds_the_memory_that_the_step_before_set_free() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS_OF_32_MIB], capture_output=True, text=True, check=True)
    left_alone, kept = map(int, done.stdout.split())
    pages = 32 * 2**20 // 4096
    assert left_alone >= 2 * pages
    assert kept < pages
