"""Hooks: what happens around the steps of a run, each in a class of its own."""

from treadle.engine.hooks.base import CallbackHook, HookBase
from treadle.engine.hooks.evaluation import BestCheckpointer, EarlyStop, EvalHook
from treadle.engine.hooks.lr_scheduler import LRScheduler
from treadle.engine.hooks.periodic import PeriodicCheckpointer, PeriodicWriter
from treadle.engine.hooks.precise_bn import PreciseBN
from treadle.engine.hooks.profiler import IterationTimer, TorchMemoryStats, TorchProfiler
from treadle.engine.hooks.throughput import Throughput

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
