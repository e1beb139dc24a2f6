"""The ways in which updates may be carried out, each to be made, measured and thrown away."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from treadle.errors import CaptureError
from treadle.execution.choice import BOTH, COMPILED, EAGER, RECORDED
from treadle.execution.compiled import CompiledVerbs
from treadle.execution.cuda_graph.capture import CapturedStep, Recorded
from treadle.execution.cuda_graph.capture_checks import find_generators
from treadle.execution.cuda_graph.graph import GraphExecution
from treadle.execution.cuda_graph.inputs import PlacedWindow, like
from treadle.execution.cuda_graph.replay_check import Snapshot
from treadle.execution.step_state import host_kept, step_tensors
from treadle.runs.interfaces import TrainerLike

if TYPE_CHECKING:
    from treadle.phase import Phase

FEWEST, MOST, ENOUGH = 3, 50, 0.02
"""An update is timed at least and at most so often, and no more once so many seconds are measured."""
UPDATES = 2
"""After how many updates the weights that a candidate gives are compared with those of eager ones."""
APART = 0.1
"""How far the loss of a compiled step may be from the eager one, as a share: dropout draws other masks there."""


class Candidate:
    """A way of carrying updates out; this one makes them eagerly, and others are made from it.

    Args:
        trainer: Whose updates they are.
        verbs: What compiles its losses; None leaves them as they are.
        compiled: Whether they are compiled in any case.

    Attributes:
        name: What it is called.
        losses: The losses of the first update that it made.
        ends: The weights after the first updates that it made; None where nobody asked for them.
    """

    room: dict[str, Tensor] | None = None
    """Memory of the host for copies of a large state, which candidates may share."""

    def __init__(self, trainer: TrainerLike, verbs: CompiledVerbs | None = None, *, compiled: bool = False) -> None:
        self.name = EAGER if verbs is None and not compiled else COMPILED
        self.losses: list[Any] = []
        self.ends: dict[str, Tensor] | None = None
        self._trainer, self._verbs = trainer, verbs

    def build(self, phase: "Phase", window: list[Any]) -> None:
        """Make what it takes, for windows such as this one.

        Raises:
            CaptureError: It cannot be made.
        """
        self._phase = phase
        gathered = window.gathered() if isinstance(window, PlacedWindow) else window
        # What a step changes in its batch is then changed in these.
        self._window = [like(batch) for batch in gathered]

    def run(self) -> None:
        """Make an update."""
        self._trainer.update(self._phase, self._window)

    def close(self) -> None:
        """Give back what it took."""

    def measure(
        self, phase: "Phase", window: list[Any], changing: Mapping[str, Tensor], *, weights: bool = False
    ) -> float:
        """Return how many seconds an update takes; everything is afterwards as it was.

        Args:
            phase: Whose updates they are.
            window: What they are made of.
            changing: Attributes that change in place, by name.
            weights: Whether `ends` is wanted.

        Raises:
            CaptureError: It cannot be made.
        """
        run = self._trainer.this_run
        kept, run.verbs = run.verbs, self._verbs or run.verbs
        try:
            with host_kept(self._trainer):
                self.build(phase, window)
                with apart(self._trainer, changing, self.room) as (recorded, before):
                    self.run()
                    self.losses = list(recorded.losses)
                    if weights:
                        for _ in range(UPDATES - 1):
                            self.run()
                        found = before.now(whole=True)
                        self.ends = {name: one for name, one in found.items() if name.startswith("model.")}
                    return timed(self.run, self._trainer)
        finally:
            run.verbs = kept


class RecordedCandidate(Candidate):
    """Replays a recording of the update.

    Args:
        trainer: Whose updates they are.
        graph: What records them; it keeps the recording, until it is closed.
        verbs: What compiles its losses; None leaves them as they are.
        compiled: Whether they are compiled in any case.
    """

    def __init__(
        self,
        trainer: TrainerLike,
        graph: GraphExecution,
        verbs: CompiledVerbs | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        super().__init__(trainer, verbs)
        self.name = RECORDED if verbs is None and not compiled else BOTH
        self._graph = graph
        self._step: CapturedStep | None = None

    def build(self, phase: "Phase", window: list[Any]) -> None:
        """Record the update."""
        self._step = self._graph.rehearse(phase, window)

    def run(self) -> None:
        """Replay it."""
        assert self._step is not None, "it was built"
        # Data on the device is gathered from a place that moves on, and would be at its end soon.
        self._step.inputs.rewind()
        self._step.replay()

    def close(self) -> None:
        """Drop the recording."""
        self._graph.close()

    def measure(
        self, phase: "Phase", window: list[Any], changing: Mapping[str, Tensor], *, weights: bool = False
    ) -> float:
        """Return how many seconds a replay takes; the recording is afterwards at its beginning."""
        try:
            return super().measure(phase, window, changing, weights=weights)
        finally:
            if self._step is not None:
                self._step.begin_anew()


def timed(run: Callable[[], None], trainer: TrainerLike) -> float:
    """Return how many seconds a call takes, with the work of the device."""
    device = trainer.device
    wait_for(device)
    began = perf_counter()
    for _ in range(FEWEST):
        run()
    wait_for(device)
    count, passed = FEWEST, perf_counter() - began
    # Processes have to make as many updates as each other: they exchange gradients in each.
    more = min(MOST, int(FEWEST * ENOUGH / max(trainer.processes.reduce([passed], "max")[0], 1e-9))) - count
    if more > 0:
        for _ in range(more):
            run()
        wait_for(device)
        count, passed = count + more, perf_counter() - began
    return passed / count


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def apart(
    trainer: TrainerLike, changing: Mapping[str, Tensor], room: dict[str, Tensor] | None = None
) -> Iterator[tuple[Recorded, Snapshot]]:
    """Make updates of which nothing is left: no weight, counter, random number, loss or event.

    What a step does beyond the objects that the trainer and the model keep, such as writing to a file, is done.

    Args:
        trainer: Whose updates they are.
        changing: Attributes that change in place, by name.
        room: Memory of the host for copies of a large state.
    """
    run, handler, updater = trainer.this_run, trainer.callback_handler, trainer.this_run.updater
    before = Snapshot(step_tensors(trainer, changing), find_generators(trainer.model, trainer), room)
    optimizers = [_OptimizerBefore(optimizer) for optimizer in updater.optimizers]
    recorded, losses, table = Recorded(), run.losses, handler.table
    left = {name: getattr(updater, name) for name in ("phase", "samples", "stepped", "norm", "applied")}
    run.losses, updater.recording = recorded, True
    handler.table = defaultdict(tuple)
    try:
        with trainer.storage.diverted():
            yield recorded, before
    finally:
        run.losses, handler.table, updater.recording = losses, table, False
        for one in optimizers:
            one.restore()
        before.restore()
        for name, value in left.items():
            setattr(updater, name, value)
        for optimizer in updater.optimizers:
            optimizer.zero_grad()


class _OptimizerBefore:
    """The state of an optimizer as it is put together, with what in it is no tensor."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._states = [(parameter, state, dict(state)) for parameter, state in optimizer.state.items()]
        self._groups = [dict(group) for group in optimizer.param_groups]

    def restore(self) -> None:
        """Put it together again."""
        self._optimizer.state.clear()
        for parameter, state, entries in self._states:
            state.clear()
            state.update(entries)
            self._optimizer.state[parameter] = state
        for group, entries in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(entries)


def check_loss(eager: list[Any], other: list[Any]) -> None:
    """Refuse a compiled step whose loss is not that of an eager one.

    Raises:
        CaptureError: It is not.
    """
    for (mine, _), (theirs, _) in zip(eager, other, strict=True):
        expected, found = float(mine), float(theirs)
        if not abs(found - expected) <= APART * max(abs(expected), 1.0) and expected == expected:
            raise CaptureError(f"the loss of a compiled step is {found:.6g}, and that of an eager one {expected:.6g}")


def check_bits(eager: dict[str, Tensor] | None, other: dict[str, Tensor] | None) -> None:
    """Refuse a way whose weights have other bits than those of eager steps.

    Raises:
        CaptureError: They have.
    """
    assert eager is not None
    assert other is not None
    name = next((name for name in eager if not torch.equal(eager[name], other[name])), None)
    if name is not None:
        raise CaptureError(f"deterministic=True, and {name.removeprefix('model.')} has other bits than by eager steps")


def seconds_to_compile(trainer: TrainerLike) -> float:
    """Return about how long it takes to compile a model for which nothing is in the compiler's caches.

    BERT with four layers takes 15 s on a machine with an H200, GPT-2 with twelve 27 s, a small MLP 5 s. For a CPU the
    compiler writes C++: one busy core took 13 to 39 s for an MLP with five modules, 43 to 75 s for a CNN with ten, and
    117 s for a GPT with 27.
    """
    leaves = sum(1 for module in trainer.model.modules() if next(module.children(), None) is None)
    return 10.0 + 3.0 * leaves if trainer.device.type == "cpu" else 6.0 + 0.15 * leaves
