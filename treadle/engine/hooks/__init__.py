"""Hooks: what happens around the steps of a run, each in a class of its own."""

from treadle.engine.hook_base import HookBase
from treadle.engine.hooks.best_checkpointer import BestCheckpointer
from treadle.engine.hooks.callback_hook import CallbackHook
from treadle.engine.hooks.early_stop import EarlyStop
from treadle.engine.hooks.eval_hook import EvalHook
from treadle.engine.hooks.iteration_timer import IterationTimer
from treadle.engine.hooks.lr_scheduler import LRScheduler
from treadle.engine.hooks.periodic_checkpointer import PeriodicCheckpointer
from treadle.engine.hooks.periodic_writer import PeriodicWriter
from treadle.engine.hooks.precise_bn import PreciseBN
from treadle.engine.hooks.throughput import Throughput
from treadle.engine.hooks.torch_memory_stats import TorchMemoryStats
from treadle.engine.hooks.torch_profiler import TorchProfiler

__all__ = [
    "BestCheckpointer",
    "CallbackHook",
    "EarlyStop",
    "EvalHook",
    "HookBase",
    "IterationTimer",
    "LRScheduler",
    "PeriodicCheckpointer",
    "PeriodicWriter",
    "PreciseBN",
    "Throughput",
    "TorchMemoryStats",
    "TorchProfiler",
]
