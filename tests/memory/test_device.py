"""The peak of memory as a metric."""

import ctypes
import gc
import os
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.interrupting import make_trainer, samples
from treadle import run
from treadle.callback import TrainerCallback
from treadle.callbacks import ThroughputMonitor
from treadle.memory.device import forget_peak, peak_device_memory


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


BLOCKS_BY_THE_LIBRARY = """
import ctypes

from treadle.memory.device import LARGEST_KEPT, keep_host_memory

library = ctypes.CDLL(None)
counters = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")

class Counted(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in counters]

library.mallinfo2.restype = Counted
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def two_blocks():
    mapped = library.mallinfo2().hblks
    blocks = [library.malloc(LARGEST_KEPT - (64 << 10)) for _ in range(2)]
    return blocks, library.mallinfo2().hblks - mapped

# Not set free: that by itself would have the library keep more.
_, left_alone = two_blocks()
keep_host_memory()
blocks, kept = two_blocks()
heap = library.mallinfo2().arena
for block in blocks:
    library.free(block)
print(left_alone, kept, heap - library.mallinfo2().arena)
"""


def _counts_blocks() -> bool:
    return platform.libc_ver()[0] == "glibc" and hasattr(ctypes.CDLL(None), "mallinfo2")


@pytest.mark.slow
@pytest.mark.skipif(not _counts_blocks(), reason="the C library does not tell where it has memory from")
def test_large_blocks_are_taken_from_what_is_kept_and_go_back_there() -> None:
    chosen = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(chosen)}
    command = [sys.executable, "-c", BLOCKS_BY_THE_LIBRARY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    from_the_kernel_before, from_the_kernel, given_back = map(int, done.stdout.split())
    assert (from_the_kernel_before, from_the_kernel, given_back) == (2, 0, 0)


def test_a_run_on_the_cpu_has_the_host_keep_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    monkeypatch.setattr(run, "keep_host_memory", lambda: asked.append(None))
    make_trainer(None).train(samples(), 1)
    assert asked == [None]
