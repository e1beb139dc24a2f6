"""The way of carrying updates out that is fastest for a model, found by measuring each before it counts."""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from treadle.errors import CaptureError
from treadle.execution.base import Execution, is_file
from treadle.execution.candidates import (
    Candidate,
    RecordedCandidate,
    check_bits,
    check_loss,
    seconds_to_compile,
    wait_for,
)
from treadle.execution.choice import BOTH, COMPILED, EAGER, FILE, RECORDED, Choice, ChosenState, Trial
from treadle.execution.compiled import Compile, CompiledVerbs
from treadle.execution.cuda_graph.capture import Recorder
from treadle.execution.cuda_graph.capture_checks import MovingTensors, refuse_window
from treadle.execution.cuda_graph.capture_errors import explain
from treadle.execution.cuda_graph.graph import GraphExecution
from treadle.execution.cuda_graph.graph_cache import WARM_UP
from treadle.execution.cuda_graph.inputs import PlacedWindow, Signature, window_signature
from treadle.execution.cuda_graph.replay_check import takes_much, takes_much_of_host
from treadle.execution.step_state import all_state_owners, step_tensors
from treadle.runs.interfaces import TrainerLike

if TYPE_CHECKING:
    from treadle.phase import Phase

LOST = 0.2
"""Seconds that a try may cost in any run, if what it may gain is more."""
SHARE_LOST = 0.02
"""What a try may cost in a long run, as a share of what is left of it."""
SHARE_TO_COMPILE, SHARE_WAITING = 0.1, 0.3
"""The same for compiling, which makes most steps 1.2 to 2 times as fast; the second where a step could not be recorded
as it is, for compiled it often can, and is many times as fast then."""
TRIES, FIXED = 12, 0.05
"""How many updates, and seconds besides, it takes about to record an update, to compare it and to time it."""
BYTES = 1.5e9
"""How many bytes of state are saved on the host and brought back in a second, as often as a try needs it."""
MOST_KINDS = 32
"""Of so many shapes windows may be before one of them has come often enough."""
CLEARLY = 0.97
"""What another way takes at most, as a share of eager updates, to be taken in their place."""


class AutoExecution(Execution):
    """Makes updates eagerly until it has chosen how they are made from then on; then that takes its place in the run.

    Every candidate starts from copies of all state, and is thrown away with them. The processes of a run choose
    together: by the slowest of them, and nothing that one of them cannot do.

    Args:
        trainer: Whose updates they are.
        recorder: What records updates; None if nothing can.
        given: What was chosen for an earlier run, to make it again; None to choose, or to go on with what the folder
            of the run or its checkpoint says.

    Attributes:
        only_compiles: Whether nothing can be tried but what the compiler makes, which takes it so long that most runs
            stay eager.
    """

    def __init__(self, trainer: TrainerLike, recorder: Recorder | None, given: Choice | None = None) -> None:
        super().__init__(trainer)
        self.update = self._update
        self._trainer, self._given = trainer, given
        self._graph = None if recorder is None else GraphExecution(trainer, recorder, required=given is not None)
        # Where the loss is compiled in any case, that is no question.
        self._is_compiled = trainer.is_compiled
        self._compiled: CompiledVerbs | None = None
        self._is_looked_up = False
        self._moving = MovingTensors()
        self._changing: dict[str, Tensor] = {}
        self._room: dict[str, Tensor] = {}
        self._counts: dict[tuple[str, Signature], int] = {}
        self._updates, self._next, self._began = 0, WARM_UP, 0.0
        self._hindered, self._kinds, self._is_large = "", 1, False
        self.only_compiles = recorder is None and trainer.device.type == "cpu"
        self._state = ChosenState(given, silent=self.only_compiles)
        trainer.track(execution=self._state)

    def begin_epoch(self, learning: list[int]) -> None:
        """Take note of which weights learn in the epoch that begins."""
        if self._graph is not None:
            self._graph.begin_epoch(learning)

    def begin_custom_loop(self) -> None:
        """Choose nothing for an epoch that the user wrote."""
        if self._choice is None:
            self._take(self._eagerly("the loop of an epoch is your own"))

    def draw(self, phase: "Phase") -> list[Any]:
        """Draw the next window of a phase, as a recording would have it."""
        return super().draw(phase) if self._graph is None else self._graph.draw(phase)

    def forget(self) -> None:
        """Begin to warm up again: something was put anew."""
        self._counts, self._updates = {}, 0

    def close(self) -> None:
        """Give back what the run took."""
        if self._graph is not None:
            self._graph.close()

    # Updates ------------------------------------------------------------------------------------------------

    def _update(self, phase: "Phase", window: list[Any]) -> None:
        """Make the update of `window`, having chosen how if it is time."""
        trainer = self._trainer
        choice = self._choice
        if choice is None:
            choice = self._choose_in_time(phase, window)
        if choice is None or trainer.this_run.progress.step < choice.step:
            trainer.update(phase, _gathered(window))
            return
        execution = self._settle(choice)
        execution.update(phase, window if execution.replays else _gathered(window))

    @property
    def _choice(self) -> Choice | None:
        """What was chosen, in this start of the run or in an earlier one."""
        if not self._is_looked_up:
            self._is_looked_up = True
            self._look_up()
        return self._state.choice

    def _look_up(self) -> None:
        """Find out what was given, or what an earlier start of the run chose."""
        trainer, state = self._trainer, self._state
        progress, folder = trainer.this_run.progress, trainer.this_run.spec.run_dir
        if self._given is not None:
            self._take(self._given)
            return
        found: dict[str, Any] | None = None
        if folder is not None and trainer.processes.is_main and (folder / FILE).exists():
            found = Choice.read(folder).plain()
        found = trainer.processes.share(found)
        if found is not None:
            # The file is not older than the checkpoint: the run may have chosen after it was saved.
            state.choice = Choice.of(found, str(folder))
        elif state.choice is None and not state.seen and progress.step > (WARM_UP if self.only_compiles else 0):
            self._take(self._eagerly("nothing was chosen when the run began, and it continues as it was"))

    def _settle(self, choice: Choice) -> Execution:
        """Put what was chosen in the place of this, and return it."""
        run = self._trainer.this_run
        if choice.compiles is not None and not self._is_compiled:
            run.verbs = self._verbs(choice.compiles)
        if choice.records and self._graph is not None:
            taken: Execution = self._graph
        else:
            if choice.records:
                self._trainer.print(f"{choice.chosen!r} was chosen, but nothing can be recorded here: steps are eager")
            self.close()
            taken = Execution(self._trainer)
        run.execution = taken
        return taken

    def _verbs(self, how: Compile) -> CompiledVerbs:
        if self._compiled is None:
            self._compiled = compiled_verbs(self._trainer, how)
        return self._compiled

    # Choosing -----------------------------------------------------------------------------------------------

    def _choose_in_time(self, phase: "Phase", window: list[Any]) -> Choice | None:
        """Return what is chosen, if it is time: when optimizers and libraries are ready, and tries pay."""
        trainer = self._trainer
        reason = self._reason_in_run() or self._reason_in_window(phase, window)
        if reason:
            return self._take(self._eagerly(reason))
        met = (phase.name, window_signature(window))
        self._counts[met] = self._counts.get(met, 0) + 1
        self._updates += 1
        # Shapes may differ from process to process, and all of them have to choose in the same update.
        count = self._updates if trainer.processes.distributed else self._counts[met]
        if self._updates == 2:
            # The first update loads kernels, and says nothing about the others.
            wait_for(trainer.device)
            self._began = perf_counter()
        if count >= self._next:
            self._changing = self._moving.look(all_state_owners(trainer))
            if self._graph is not None:
                self._graph.look()
        if count <= self._next:
            if len(self._counts) <= MOST_KINDS:
                return None
            return self._take(self._eagerly("windows are of too many shapes; pad batches to a few lengths"))
        wait_for(trainer.device)
        return self._choose_if_it_pays(phase, window)

    def _choose_if_it_pays(self, phase: "Phase", window: list[Any]) -> Choice | None:
        """Return what is chosen, if a try pays in what is left of the run; nothing if that is to be seen later."""
        hindered = float(bool(self._hindered))
        usual = (perf_counter() - self._began) / (self._updates - 2)
        large = float(takes_much_of_host(step_tensors(self._trainer).values()))
        agreed = self._trainer.processes.reduce([usual, hindered, float(len(self._counts)), large], "max")
        usual, hindered, self._kinds, self._is_large = agreed[0], agreed[1], int(agreed[2]), bool(agreed[3])
        if hindered:
            return self._take(self._eagerly(self._hindered or "the data of another process rules other ways out"))
        left = self._left
        if self.only_compiles:
            reason = self._why_not_compiled(None if left is None else left * usual, SHARE_TO_COMPILE)
            if reason:
                return self._take(self._eagerly(reason))
        cost = FIXED + TRIES * usual + self._copying
        time_left = usual * (self._updates if left is None else left)
        if cost <= max(LOST, SHARE_LOST * time_left) and 2 * cost <= time_left:
            return self._take(self._choose(phase, window, left))
        if left is None:
            # As long as the run has been, it may be once more.
            self._next *= 2
            return None
        return self._take(self._eagerly(f"{left} updates of {1000 * usual:.3g} ms are left, too few to try others"))

    def _reason_in_run(self) -> str:
        """Return why nothing can be tried in this run; empty if it can. All processes come to the same."""
        trainer = self._trainer
        if trainer.parallel.is_sharded or trainer.parallel.is_pipeline:
            return "weights are shared out over processes; execution='compile' compiles where the plan allows it"
        if trainer.spec.microbatch == "auto":
            return "microbatch='auto' changes the shape of a step"
        if trainer.spec.offload_optimizer:
            return "offload_optimizer=True brings state from the host in every step; leave it out"
        if self.only_compiles and self._left is None:
            return "nobody knows how long the run is"
        return ""

    def _reason_in_window(self, phase: "Phase", window: list[Any]) -> str:
        """Return why nothing can be tried with such a window; of several processes each notes it until they choose."""
        try:
            refuse_window(phase, window)
        except CaptureError as error:
            if not self._trainer.processes.distributed:
                return str(error)
            self._hindered = self._hindered or str(error)
        return ""

    def _eagerly(self, reason: str) -> Choice:
        return Choice(chosen=EAGER, step=self._trainer.this_run.progress.step, reason=reason)

    def _take(self, choice: Choice) -> Choice:
        """Take note of a choice: in the state of the run, in its folder, and on the console."""
        trainer, folder = self._trainer, self._trainer.this_run.spec.run_dir
        self._state.choice = choice
        # On a CPU most runs are too short for the compiler: that they are eager is nothing to speak of.
        told = not self._state.is_void
        if folder is not None and trainer.processes.is_main and folder.is_dir():
            choice.write(folder, table=told)
            if choice.compiles is not None:
                # Now, and not only at the end, which a run that is killed does not come to.
                from treadle.execution.artifacts import save_artifacts

                save_artifacts(folder)
        if told:
            trainer.print(choice.describe())
        return choice

    def _choose(self, phase: "Phase", window: list[Any], left: int | None) -> Choice:
        """Measure every way that may pay, and return the fastest; everything is afterwards as it was."""
        self._room = {}
        if self._graph is not None:
            self._graph.room = self._room
        trials = list(self._trials(phase, window, left))
        self._room = {}
        if self._graph is not None:
            self._graph.room = None
        eager, *others = trials
        best = eager
        for trial in others:
            if trial.is_taken and eager.is_taken and _ms(trial) < CLEARLY * _ms(eager) and _ms(trial) < _ms(best):
                best = trial
        if self._graph is not None and best.name == RECORDED and BOTH in [trial.name for trial in trials]:
            # What is recorded now is another step than the one that was chosen.
            self._graph.close()
        how = Compile() if best.name in (COMPILED, BOTH) and not self._is_compiled else None
        return Choice(chosen=best.name, step=self._trainer.this_run.progress.step, compile=how, trials=tuple(trials))

    def _trials(self, phase: "Phase", window: list[Any], left: int | None) -> Iterator[Trial]:
        """Yield what becomes of each way, eager updates first; what is recorded last is kept."""
        trainer, graph = self._trainer, self._graph
        exact = trainer.spec.deterministic
        eager = Candidate(trainer, compiled=self._is_compiled)
        first = trial = self._try(eager, phase, window, weights=exact)
        yield first
        if not first.is_taken:
            return
        if graph is not None:
            recorded = RecordedCandidate(trainer, graph, compiled=self._is_compiled)
            same = (lambda: check_bits(eager.ends, recorded.ends)) if exact else None
            trial = self._try(recorded, phase, window, weights=exact, check=same)
            yield trial
        if self._is_compiled:
            return
        fastest = min(_ms(one) for one in (first, trial) if one.is_taken) / 1000
        share = SHARE_TO_COMPILE if trial.is_taken else SHARE_WAITING
        reason = self._why_not_compiled(None if left is None else left * fastest, share)
        if reason:
            yield Trial(name=COMPILED, refused=reason)
            return
        if graph is not None:
            graph.close()
        compiled = Candidate(trainer, self._verbs(Compile()))
        trial = self._try(compiled, phase, window, check=lambda: check_loss(eager.losses, compiled.losses))
        yield trial
        if graph is not None and trial.is_taken:
            yield self._try(RecordedCandidate(trainer, graph, self._verbs(Compile())), phase, window)

    def _why_not_compiled(self, time_left: float | None, share: float) -> str:
        """Return why it is not tried to compile; empty if it is.

        Args:
            time_left: How many seconds are left of the run in the fastest way so far; None if nobody knows.
            share: How much of it the compiler may take.
        """
        if self._trainer.spec.deterministic:
            return "deterministic=True, and compiled steps have other bits"
        if time_left is None:
            return "nobody knows how long the run is"
        if self._is_large:
            return "copies of the state would take much of the memory that is left"
        cost = seconds_to_compile(self._trainer) * self._kinds
        if cost > share * time_left:
            return f"about {cost:.0f} s to compile, and {time_left:.0f} s are left"
        return ""

    def _try(
        self,
        candidate: Candidate,
        phase: "Phase",
        window: list[Any],
        *,
        weights: bool = False,
        check: Callable[[], None] | None = None,
    ) -> Trial:
        """Return what becomes of a candidate."""
        began, seconds, refused = perf_counter(), 0.0, ""
        candidate.room = self._room
        try:
            seconds = candidate.measure(phase, window, self._changing, weights=weights)
            if check is not None:
                check()
        except CaptureError as error:
            refused = str(error)
        except torch.OutOfMemoryError:
            refused = "there is not enough memory to try it"
        except Exception as error:  # whatever the compiler, or a step of a user's, says
            refused = str(explain(error))
        slowest, failed = self._trainer.processes.reduce([seconds, float(bool(refused))], "max")
        if failed:
            candidate.close()
            refused = refused or "another process cannot do it"
        return Trial(
            name=candidate.name,
            milliseconds=None if failed else 1000 * slowest,
            seconds=perf_counter() - began,
            refused=refused,
        )

    @property
    def _left(self) -> int | None:
        """How many updates are left of the run; None if nobody knows."""
        run = self._trainer.this_run
        assert run.config is not None
        planned = run.config.max_num_train_steps
        return None if planned is None else max(0, planned - run.progress.step)

    @property
    def _copying(self) -> float:
        """How many seconds it takes to save all state on the host, where it is too much for the device."""
        tensors = list(step_tensors(self._trainer).values())
        return sum(tensor.nbytes for tensor in tensors) / BYTES if takes_much(tensors) else 0.0


def _ms(trial: Trial) -> float:
    assert trial.milliseconds is not None
    return trial.milliseconds


def _gathered(window: list[Any]) -> list[Any]:
    return window.gathered() if isinstance(window, PlacedWindow) else window


def compiled_verbs(trainer: TrainerLike, how: Compile) -> CompiledVerbs:
    """Return what compiles the losses of a trainer; the compiler then has what it made for this run before."""
    folder = trainer.this_run.spec.run_dir
    if folder is not None:
        from treadle.execution.artifacts import load_artifacts

        if reason := load_artifacts(folder):
            trainer.print(reason)
    return CompiledVerbs(how, trainer.model)


def close_execution(run: Any) -> None:
    """Give back what the updates of a run took, and keep what was compiled for them."""
    run.execution.close()
    if run.verbs is not None and run.spec.run_dir is not None and run.trainer.processes.is_main:
        from treadle.execution.artifacts import save_artifacts

        save_artifacts(run.spec.run_dir)


def execution_of(trainer: TrainerLike) -> Execution:
    """Return what carries out the updates of the run that a trainer begins."""
    run, how = trainer.this_run, trainer.this_run.spec
    if how.compile is None:
        run.verbs = None
    elif run.verbs is None or run.verbs.model is not trainer.model:
        run.verbs = compiled_verbs(trainer, how.compile)
    asked = how.execution
    if isinstance(asked, Choice) or is_file(asked):
        given = asked if isinstance(asked, Choice) else Choice.read(str(asked))
        return AutoExecution(trainer, trainer.create_recorder() if given.records else None, given)
    if callable(asked):
        own: Execution = asked(trainer)
        return own
    recorder = trainer.create_recorder() if asked in ("graph", "auto") else None
    if asked == "graph" and recorder is not None:
        return GraphExecution(trainer, recorder, required=True)
    # Where nothing is recorded, and everything compiled or nothing, there is no choice.
    chooses_on_host = trainer.device.type == "cpu" and how.compile is None and not how.deterministic
    if asked == "auto" and (recorder is not None or trainer.device.type == "cuda" or chooses_on_host):
        return AutoExecution(trainer, recorder)
    # An earlier run of this trainer may have chosen, and what it chose is not of this one.
    trainer.tracked.remove("execution")
    return Execution(trainer)
