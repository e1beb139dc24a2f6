"""Steps that are recorded once and replayed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from treadle.data.batch import mover
from treadle.errors import CaptureError
from treadle.events.pending import PendingRows
from treadle.execution.base import Execution
from treadle.execution.cuda_graph.capture import CapturedStep, Rates, Recorded, Recorder, group_arguments, rounded_rates
from treadle.execution.cuda_graph.capture_checks import (
    Attributes,
    MovingTensors,
    ReadNever,
    Reads,
    find_generators,
    no_host_randomness,
    refuse_optimizer,
    refuse_run,
    refuse_window,
)
from treadle.execution.cuda_graph.capture_errors import explain
from treadle.execution.cuda_graph.graph_cache import BUDGET, GraphCache, Key
from treadle.execution.cuda_graph.inputs import Inputs, PlacedWindow, inputs_for, window_signature
from treadle.execution.cuda_graph.replay_check import Snapshot, check_replay
from treadle.execution.step_state import all_state_owners, step_tensors
from treadle.optim.fused import Capturable
from treadle.runs.interfaces import TrainerLike

if TYPE_CHECKING:
    from treadle.phase import Phase


class GraphExecution(Execution):
    """Records the whole update of a window once for each shape, and replays it from then on.

    The first windows of a shape are trained on step by step. Before its recording counts, two steps and two replays
    are made from one state and compared; then the state is put back.

    Args:
        trainer: Whose updates they are.
        recorder: What records.
        required: Whether a step that cannot be recorded is an error; otherwise it is said, and done step by step.

    Attributes:
        reason: Why nothing is recorded any more; None while it is.
        room: Memory of the host for copies of a large state; None has it taken anew for each recording.
    """

    # Which modules train and which weights learn in what is recorded.
    _modes: tuple[list[tuple[int, bool]], list[int]] = ([], [])
    # Whether steps can be recorded as far as is known without trying.
    _tries = False
    # Whether small batches stay on the host, for recorded steps to take them from there.
    _copies_small = False
    _told = False

    def __init__(self, trainer: TrainerLike, recorder: Recorder, *, required: bool) -> None:
        self.reason: str | None = None
        self.recorded_callbacks: frozenset[Any] = frozenset()
        self.room: dict[str, Tensor] | None = None
        self._trainer = trainer
        self._recorder = recorder
        self._required = required
        self._capturable = Capturable(trainer.this_run.updater.optimizers)
        self._move = mover(trainer.device)
        self._recordings = GraphCache()
        self._moving = MovingTensors()
        self._changing: dict[str, Tensor] = {}
        self._latest: dict[str, CapturedStep] = {}

    @property
    def replays(self) -> bool:  # type: ignore[override]
        """Whether updates may be replayed from a recording, so that their verbs are not called."""
        return self.reason is None

    def begin_epoch(self, learning: list[int]) -> None:
        """Record anew what was recorded for other modes of modules, or for other weights that learn."""
        modes = [(id(module), module.training) for module in self._trainer.model.modules()]
        if self._modes != (modes, learning):
            self.forget()
            self._modes = (modes, learning)

    def begin_custom_loop(self) -> None:
        """Record nothing of an epoch that the user wrote."""
        self.give_up("the loop of an epoch is your own, and may do anything; leave it to the trainer")

    def forget(self) -> None:
        """Drop every recording: something that they hold on to was put anew."""
        self._recordings.clear()
        self._latest, self._told = {}, False

    def close(self) -> None:
        """Give back the memory of the recordings, and have optimizers count where they did before."""
        self._release()
        self._capturable.undo()
        self._tries = False

    def _release(self) -> None:
        self.forget()
        self._recorder.release()

    @property
    def count(self) -> int:
        """How many recordings were made so far."""
        return self._recordings.made

    def look(self) -> None:
        """Take note of which attributes change in place from one window to the next."""
        self._changing = self._moving.look(all_state_owners(self._trainer))

    def rehearse(self, phase: "Phase", window: list[Any]) -> CapturedStep:
        """Record the update of `window` before it is its turn; everything is afterwards as it was.

        Raises:
            CaptureError: It cannot be recorded.
        """
        refuse_run(self._trainer)
        self._prepare()
        refuse_window(phase, window)
        return self._record(phase, window, (phase.name, window_signature(window)))

    def update(self, phase: "Phase", window: list[Any]) -> None:
        """Make the update of `window`: by a recording, or step by step where there is none."""
        step, values = self._latest.get(phase.name), None
        if step is not None and step.fits(phase.optimizer):
            values = step.inputs.values_of(window)
        if step is None or values is None:
            if self._copies_small and not isinstance(window, PlacedWindow):
                window = [self._move(batch) for batch in window]
            step = self._find(phase, window)
            if step is None:
                self._update_as_usual(phase, window)
                return
            phase.stream.leave_small_on_host()
            self._copies_small = True
            self._latest[phase.name] = step
            values = step.inputs.values_of(window)
            assert values is not None, "a recording is found by the shape of the window"
        step.run(values)
        self._hand_over(phase, step)

    def _update_as_usual(self, phase: "Phase", window: list[Any]) -> None:
        """Make the update of `window` step by step, with the numbers that a recording of it would have."""
        self.recorded_callbacks = frozenset()
        # What could not be recorded goes on with rounded rates; see `_prepare`.
        rounds = self._tries and self._moves(phase)
        with rounded_rates(phase.optimizer) if rounds else nullcontext():
            self._trainer.update(phase, window.gathered() if isinstance(window, PlacedWindow) else window)

    def _moves(self, phase: "Phase") -> bool:
        """Whether a schedule moves the learning rates of a phase at every step."""
        return phase.scheduler is not None and self._trainer.this_run.schedule.by_step

    def draw(self, phase: "Phase") -> list[Any]:
        """Draw the next window of a phase; from data on the device only the places of its batches."""
        batches = phase.stream.in_memory
        if batches is not None and self.reason is None and not batches.transforms and not self._needs_batches():
            places = phase.stream.places(phase.accumulation)
            if places is not None:
                return PlacedWindow(batches, places)
        return phase.stream.window(phase.accumulation)

    def _needs_batches(self) -> bool:
        """Whether something is done with the batches of a window before its update: cut finer, or passed over."""
        return self._trainer.this_run.spec.microbatch != "fixed" or bool(self._trainer.this_run.updater.skipped.steps)

    def _find(self, phase: "Phase", window: list[Any]) -> CapturedStep | None:
        """Return the recording for `window`, made now if it is time for it."""
        if self.reason is not None:
            return None
        key = (phase.name, window_signature(window))
        found = self._recordings.find(key, phase.optimizer)
        if found is not None:
            return found
        try:
            refuse_run(self._trainer)
            self._prepare()
            refuse_window(phase, window)
            self.look()
            return self._record(phase, window, key) if self._is_time(phase, key) else None
        except CaptureError as error:
            self.give_up(str(error), error)
            return None

    def _prepare(self) -> None:
        """Have ordinary steps count where recorded ones do, so that a resumed run has the numbers of the first.

        For the same reason they go on so if nothing can be recorded: when that is found out depends on where a run
        began. And so a single window has no say in it.
        """
        if not self._tries:
            self._tries = True
            self._capturable.apply()

    def _is_time(self, phase: "Phase", key: Key) -> bool:
        """Whether a window that no recording fits is to be recorded; if there are too many of them, that is said."""
        is_time = self._recordings.is_time(key, group_arguments(phase.optimizer, rates=not self._moves(phase)))
        if self._recordings.restless >= BUDGET:
            self._tell(
                f"the optimizer of the phase {phase.name!r} has other arguments at every step, so it runs step by "
                "step. Move the learning rate by a scheduler, and keep momenta constant (cycle_momentum=False)"
            )
        if not is_time or self._recordings.make_room():
            return is_time
        self._tell(
            f"{BUDGET} steps of the phases {self._recordings.phases} are recorded, and windows still come that fit "
            "none of them: these run step by step. Pad batches to a few lengths; a learning rate that changes often "
            "belongs to a scheduler by steps"
        )
        return False

    def _tell(self, message: str) -> None:
        if not self._told:
            self._told = True
            self._trainer.print(message)

    def give_up(self, reason: str, cause: CaptureError | None = None) -> None:
        """Record nothing any more, and say why.

        Raises:
            CaptureError: Recording was required.
        """
        if self.reason is not None:
            return
        self._release()
        if self._required:
            raise CaptureError(f"execution='graph' cannot record this step: {reason}") from cause
        self.reason = reason
        self._trainer.print(f"execution='auto' goes step by step: {reason}")

    # Recording ----------------------------------------------------------------------------------------------

    def _record(self, phase: "Phase", window: list[Any], key: Key) -> CapturedStep:
        """Record the update of `window`; everything is afterwards as it was."""
        trainer = self._trainer
        refuse_optimizer(phase.optimizer, moves=self._moves(phase))
        generators = find_generators(trainer.model, trainer)
        before = Snapshot(step_tensors(trainer, self._changing), generators, self.room)
        inputs = inputs_for(window)
        rates = Rates(phase.optimizer, trainer.device) if self._moves(phase) else None
        arguments = group_arguments(phase.optimizer, rates=rates is None)
        callbacks = [one for one in trainer.callback_handler.active if self._is_recordable(one)]

        def step() -> Recorded:
            return self._step(phase, inputs, rates, callbacks)

        try:
            outcome, stepped = self._try_step(step, before, check=not self._recordings.is_checked(key))
            rows = self._rows_for(outcome)
            replay, recorded = self._capture(step, inputs, rows)
            if stepped is not None:
                self._compare(step, replay, inputs, before, stepped)
            if rows is not None:
                rows.begin()
        finally:
            before.restore()
            inputs.rewind()
            for optimizer in trainer.this_run.updater.optimizers:
                # A step that failed half-way leaves gradients behind, which the next one would add to.
                optimizer.zero_grad()
        made = CapturedStep(replay, inputs, phase.optimizer, arguments, recorded, rows, rates, frozenset(callbacks))
        self._recordings.add(key, made)
        return made

    def _rows_for(self, outcome: Recorded) -> PendingRows | None:
        numbers = outcome.numbers()
        if not numbers:
            return None
        dtype = reduce(torch.promote_types, [number.dtype for number in numbers], torch.float32)
        return PendingRows(len(numbers), dtype=dtype, device=self._trainer.device)

    def _is_recordable(self, callback: Any) -> bool:
        recordable: Callable[[TrainerLike], bool] | None = getattr(callback, "is_recordable", None)
        return recordable is not None and recordable(self._trainer)

    def _try_step(
        self, step: Callable[[], Recorded], before: Snapshot, *, check: bool
    ) -> tuple[Recorded, dict[str, Tensor] | None]:
        """Make a step; to check it make two, looking at what they do on the host, and return where they end."""
        attributes = Attributes(all_state_owners(self._trainer)) if check else None
        try:
            if attributes is None:
                return step(), None
            with self._recorder.watching(), no_host_randomness(self._trainer.device):
                outcome = step()
            replaced = attributes.refuse_changes()
            with Reads(replaced) if replaced else nullcontext():
                step()
            return outcome, before.now()
        except CaptureError:
            raise
        except Exception as error:
            raise explain(error) from error
        finally:
            before.restore()
            if attributes is not None:
                attributes.undo()

    def _capture(
        self, step: Callable[[], Recorded], inputs: Inputs, rows: PendingRows | None
    ) -> tuple[Callable[[], None], Recorded]:
        outcome: list[Recorded] = []

        def work() -> None:
            outcome.append(step())
            inputs.advance()
            if rows is not None:
                rows.write(outcome[0].numbers())

        known = self._state_keys()
        generators = find_generators(self._trainer.model, self._trainer)
        replay = self._recorder.capture(work, generators)
        if self._state_keys() != known:
            raise CaptureError(
                "the optimizer made state for weights that had no gradient in the steps before; a recorded step must "
                "reach the same weights each time"
            )
        return replay, outcome[0]

    def _compare(
        self,
        step: Callable[[], Recorded],
        replay: Callable[[], None],
        inputs: Inputs,
        before: Snapshot,
        stepped: dict[str, Tensor],
    ) -> None:
        """Make two replays where the two steps began, with their window, and require them to end where those did."""
        before.restore()
        for _ in range(2):
            inputs.rewind()
            replay()
        replayed = before.now()
        if check_replay(before.began, stepped, replayed, None):
            return
        # Some kernels do not repeat themselves: how far the steps are from themselves says how much is allowed.
        before.restore()
        inputs.rewind()
        step()
        step()
        check_replay(before.began, stepped, replayed, before.now())

    def _step(self, phase: "Phase", inputs: Inputs, rates: Rates | None, callbacks: list[Any]) -> Recorded:
        """Do the step, with all that belongs to the host left out."""
        trainer = self._trainer
        recorded = Recorded()
        with self._standing_in(recorded, phase, rates):
            trainer.update(phase, inputs.window())
            for callback in callbacks:
                callback.recorded_update(trainer)
        recorded.norm = trainer.this_run.updater.norm if trainer.this_run.updater.clips else None
        recorded.samples = trainer.this_run.updater.samples
        return recorded

    @contextmanager
    def _standing_in(self, recorded: Recorded, phase: "Phase", rates: Rates | None) -> Iterator[None]:
        """Let what the step tells the host go into `recorded`, and refuse what it asks of the host."""
        trainer: Any = self._trainer
        run = trainer.this_run
        kept = (run.progress, trainer.run_history, run.losses)
        numbers = [group["lr"] for group in phase.optimizer.param_groups]
        storage = trainer.storage
        if rates is not None:
            rates.lend()
        lent = [group["lr"] for group in phase.optimizer.param_groups]
        run.progress = ReadNever("trainer.progress")
        trainer.run_history = ReadNever("trainer.run_history", storage=storage)
        run.losses, run.updater.recording = recorded, True
        try:
            with storage.diverted() as recorded.puts:
                yield
            if [id(group["lr"]) for group in phase.optimizer.param_groups] != list(map(id, lent)):
                raise CaptureError(
                    "the step sets a learning rate, which a replay would not do again; use a scheduler. What changes "
                    "it now and then can do so in on_update_start"
                )
        finally:
            run.progress, trainer.run_history, run.losses = kept
            run.updater.recording = False
            for group, number in zip(phase.optimizer.param_groups, numbers, strict=True):
                group["lr"] = number

    def _state_keys(self) -> list[set[int]]:
        return [set(map(id, optimizer.state)) for optimizer in self._trainer.this_run.updater.optimizers]

    def _hand_over(self, phase: "Phase", step: CapturedStep) -> None:
        """Give the host what the step found out, as copies: the next replay writes over it."""
        trainer, recorded = self._trainer, step.recorded
        updater = trainer.this_run.updater
        updater.phase, updater.stepped, updater.samples = phase, True, recorded.samples
        self.recorded_callbacks = step.callbacks
        numbers = [] if step.rows is None else step.rows.claim()
        if len(numbers) == len(recorded.losses) == 1:
            # The most common case; what is below is a microsecond more.
            trainer.this_run.losses.update(numbers[0], recorded.losses[0][1])
        else:
            for loss, weight in recorded.pairs(numbers):
                trainer.this_run.losses.update(loss, weight)
        if recorded.norm is not None:
            updater.norm = recorded.norm.clone()
        if recorded.puts:
            trainer.storage.repeat(recorded.puts)
        if phase.scheduler is not None and trainer.this_run.schedule.by_step:
            trainer.scheduler_step()
