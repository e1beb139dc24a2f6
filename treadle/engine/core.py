"""The core trainer behind the faces of this door: methods only, the loop is the core's."""

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.checkpoint import Policy
from treadle.console.metric_names import canonical_name
from treadle.data import Batch, Stream, size_of
from treadle.data.run_streams import Streams
from treadle.engine.batch_arguments import call_arguments
from treadle.engine.dist import broadcast_from_main
from treadle.engine.hooks.events import BACKWARD_END, EVENT_OF, EngineCallbacks, HookEvents, overrides
from treadle.engine.log import EngineHistory, EngineLog
from treadle.engine.metrics import find_scalars, mean_over_window, put_numbers, total_loss, zero_without_items
from treadle.engine.run_checkpointer import EngineCheckpointer, EngineState
from treadle.engine.updater import EngineUpdater
from treadle.errors import CheckpointError, ConfigError, StopTrainingError
from treadle.execution import GraphExecution, Recorder
from treadle.loop import Due
from treadle.loop.cadence import AGREEMENT_STEPS
from treadle.loop.custom_loop import CustomStep
from treadle.ops.loss_items import count_labels, with_counted
from treadle.parallel import Plan
from treadle.parallel.factory import check_trainer
from treadle.parallel.strategy import Strategy
from treadle.phase import Phase
from treadle.precision import LossScaling
from treadle.run import Run
from treadle.runs.preemption import InterruptibleEvaluation, interruptible
from treadle.spec import spec_options
from treadle.trainer import Trainer

if TYPE_CHECKING:
    from treadle.engine.trainers.base import TrainerBase

logger = logging.getLogger(__name__)

SCALE = "[metric]grad_scaler"
COMPLETE = "complete"
"""The pointer at the checkpoint of a run that came to its end, final evaluation and writers included."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What one iteration is made of.

    Args:
        model: What is trained, and saved.
        call: What computes the outputs of the model: the model, or what was compiled from it.
        optimizer: What updates the weights.
        loader: Where the data comes from.
        accumulation: Micro-batches in one iteration.
        get_batch: Turns a batch into the arguments of the model.
        foreign: The user's own step, called with the place of a micro-batch in its window; None if there is none.
        total: Adds up the losses among what the model returns.
        adds_all: Whether all numbers that are reported are losses, whatever their names.
        report_period: After how many iterations losses are reported.
        reports_scale: Whether the scale of the loss is reported with them.
    """

    model: nn.Module
    call: Callable[..., Any]
    optimizer: Optimizer
    loader: Any
    accumulation: int
    get_batch: Callable[[Any], Any]
    foreign: Callable[[int], None] | None = None
    total: Callable[[Any], Tensor] = total_loss
    adds_all: bool = False
    report_period: int = 1
    reports_scale: bool = False


@dataclass(frozen=True, kw_only=True)
class CoreOptions:
    """How the core runs: what a config says of it, or the defaults for a trainer without one."""

    run_dir: str | None = None
    seed: int | None = None
    precision: str = "fp32"
    loss_scaling: LossScaling | None = None
    matmul_precision: str | None = None
    convolution_precision: str | None = None
    offload_optimizer: bool = False
    device: str | None = None
    clip_norm: float | None = None
    gradient_clip_value: float | None = None
    on_nonfinite: str = "raise"
    max_rollbacks: int = 3
    microbatch: str = "fixed"
    deterministic: bool = False
    execution: str = "eager"
    max_to_keep: int | None = None
    asynchronous: bool = True
    check_period: int = 20
    bucket_megabytes: int | None = None
    timeout: float | None = None
    parallel: Plan | Strategy | str = "auto"

    def of_trainer(self) -> dict[str, Any]:
        """Return those that the core's trainer has as arguments, by their names."""
        return {name: getattr(self, name) for name in spec_options("trainer") if hasattr(self, name)}


class EngineCore(Trainer):
    """Runs the loop for a face: asks it for the step, and tells its hooks of the events.

    Args:
        face: The trainer that a user sees.
        plan: What one iteration is made of.
        options: How to run it.

    Attributes:
        on_first_data: Called once, with the model and its arguments in the first pass.
        fetch_began: When the data of this iteration was asked for.
        data_time: How long it took to come.
        callbacks: What is registered, in the order of the core's table.
        is_running: Whether a run is under way.
    """

    ITEMS_REMEDY = (
        "have the model return num_items_in_batch among its losses: the sum of the weights of the targets that are not "
        "ignored, which treadle.ops.loss_items.items_in(loss_func, targets) gives"
    )

    leaves_by_itself = False
    evaluates_by_itself = True
    """Whether evaluations are made by the door, and not on data that `train` is given."""
    HOW_TO_EVALUATE = "register hooks.EvalHook"

    def __init__(self, face: "TrainerBase", plan: StepPlan, options: CoreOptions) -> None:
        self.plan, self.options = plan, options
        self.fetch_began = self.data_time = 0.0
        self.face: TrainerBase = weakref.proxy(face)
        self.is_running = False
        self._leavable: InterruptibleEvaluation | None = None
        # All processes log before the same of those that are registered, also where only the first one writes.
        place = broadcast_from_main(face.hook_list.place_of_log)
        registered = (HookEvents(face), *face.hook_list.table(place))
        own = {EVENT_OF[name]: _weak_method(self.face, name) for name in EVENT_OF if overrides(face, name)}
        self._own_moments: dict[str, Callable[[], None]] = own
        self._carried: dict[str, Any] | None = None
        self._start_iteration = self.checked_to = self._logged_to = 0
        self.on_first_data: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], None] | None = None
        self._get_batch = plan.get_batch
        self._phase: Phase | None = None
        self._outputs: list[tuple[Any, dict[str, Any]]] = []
        policy = Policy(keep_last=options.max_to_keep, asynchronous=options.asynchronous)
        super().__init__(
            plan.model,
            None,
            plan.optimizer,
            callbacks=registered,
            run_history=EngineHistory(self.face),
            checkpoints=policy,
            **options.of_trainer(),
        )
        self.parallel.bucket_megabytes = options.bucket_megabytes
        self.callback_handler = self.callbacks = EngineCallbacks(self.callback_handler.callback_list, self, face)

    def run(self, start: int, end: int, *, resume: bool = False, carried: dict[str, Any] | None = None) -> None:
        """Run the iterations from `start` to `end`.

        Args:
            start: The first iteration.
            end: The one after the last.
            resume: Whether to resume from the newest checkpoint of the run's folder.
            carried: The state that an earlier run of the same trainer ended in, to resume from.
        """
        self._start_iteration, self._carried, self.is_running = start, carried, True
        try:
            self.train(
                self.plan.loader,
                max_steps=end,
                gradient_accumulation_steps=self.plan.accumulation,
                clip_norm=self.options.clip_norm,
                gradient_clip_value=self.options.gradient_clip_value,
                eval_every=None,
                resume="auto" if resume else None,
            )
        finally:
            self.is_running = False

    @property
    def how_to_resume(self) -> str:
        """What a run that was asked to leave says after where it is saved."""
        if self.settings.resume == "auto":
            return "start the same command to resume"
        if hasattr(self.face, "cfg"):
            return "to resume, set train.resume=True (or pass --resume), and start the same command"
        return (
            "to resume, start the same command, with checkpointer.resume_or_load(resume=True) before "
            "train(trainer.iter + 1, ...)"
        )

    def carry(self) -> dict[str, Any]:
        """Return the state of the run, for another one that continues in memory."""
        self.tracked.remove("metrics_file")
        state = self.this_run.state
        assert isinstance(state, EngineState)
        return {**state.facts(), "tracked": self.tracked.state_dict()}

    @property
    def consumed_samples(self) -> int:
        """How many samples all processes together were trained on, in all starts of the run."""
        state = self.this_run.state
        return self.progress.samples * self.parallel.data_size + (
            state.odd_samples if isinstance(state, EngineState) else 0
        )

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Log what the core says."""
        logger.info(" ".join(map(str, args)))

    @property
    def evaluates(self) -> bool:
        """Whether anything registered has the model evaluated."""
        return any(getattr(one, "evaluates", False) for one in self.face.hook_list)

    @property
    def evaluated(self) -> list[str]:
        """The names of what evaluations have reported."""
        return [name for name in self.face.evaluated if name in self.storage.names()]

    # Who is told --------------------------------------------------------------------------------------------

    def fire(self, event: str, **kwargs: Any) -> None:
        """Tell what is registered that `event` happens, by the trainer's own method where it has one for the moment."""
        own = self._own_moments.get(event)
        if own is not None:
            self._enter(event)
        if event == "on_update_end" and self._leavable is not None:
            # What is evaluated now can be broken off: a resumed run begins with those that have still to act.
            with interruptible(self._leavable):
                own() if own is not None else self.callback_handler.call_event(event, self)
        elif own is not None:
            own()
        else:
            self.callback_handler.call_event(event, self, **kwargs)
        if event == "on_update_start":
            self.fetch_began = time.perf_counter()

    def _enter(self, event: str) -> None:
        """Say where the run is before the trainer's own method acts."""
        first = self.callback_handler.callback_list[0]
        if event != BACKWARD_END and isinstance(first, HookEvents):
            getattr(first, event)(self)

    def defer_stop(self, act: Callable[[], None]) -> None:
        """Have something act whose wish to stop is met after the step."""
        try:
            act()
        except StopTrainingError as error:
            self.callback_handler.on_stop(error)

    def log_if_due(self) -> None:
        """Tell callbacks of a log now and then, and after the last iteration; nothing is read if nobody listens."""
        if not (self.callback_handler.table["on_log"] and self._is_due()):
            return
        first, self._logged_to = self._logged_to, self.progress.step
        scalars = {name: value for name, (value, iteration) in self.storage.latest().items() if iteration >= first}
        for name in {"total_loss", "grad_norm"} & scalars.keys():
            # As the core calls it, for callbacks that show or keep it.
            scalars.setdefault(canonical_name(name), scalars[name])
        self.fire("on_log", scalars=scalars, nonfinite=None)

    def _is_due(self) -> bool:
        step = self.progress.step
        return step % self.options.check_period == 0 or step >= self.this_run.due.last_step

    # Setting up ---------------------------------------------------------------------------------------------

    def create_run(self) -> "EngineRun":
        """Return a run that begins at some iteration."""
        return EngineRun(self)

    def begin_at_iteration(self) -> None:
        """Begin a run that is prepared at its first iteration."""
        self.progress.step = self._start_iteration
        # What was not looked at when the run was saved is looked at now.
        self.checked_to = self._start_iteration - self._start_iteration % self.options.check_period
        self._logged_to = self.checked_to
        self.track_gradient_norm = False
        self._step_watch = CustomStep(self)
        self.batches = self._custom_step_batches()
        self._leavable = self._leavable_evaluation()

    def create_due(self) -> Due:
        """Return when the run ends; when it logs, evaluates and saves is a matter of hooks in this door."""
        return Due(last=self.settings.max_steps, agree=AGREEMENT_STEPS if self.processes.distributed else 0)

    def check_plan(self) -> None:
        """Refuse what the plan cannot do with the step of this door."""
        check_trainer(self, EngineCore)
        if self.parallel.is_pipeline and self.plan.foreign is not None:
            raise ConfigError(
                "train.dist.pipeline_parallel_size: a run_step of your own calls the model, which no process has all "
                "of; leave run_step as it is, or set it to 1"
            )

    @property
    def is_compiled(self) -> bool:
        """Whether what the model is called by was compiled."""
        return self.plan.call is not self.plan.model

    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        """Return the loader that the face was given: in this door even a list is one, of batches."""
        return self.plan.loader

    def create_streams(self) -> "EndlessStreams":
        """Return what makes the streams of this door, whose training data has no end."""
        return EndlessStreams(self)

    def create_state(self) -> EngineState:
        """Return the state of a run that counts the samples of all processes, and may be carried over in memory."""
        return EngineState(self, self._carried)

    def create_checkpointer(self, folder: Path) -> EngineCheckpointer:
        """Return what keeps the run as the hooks of this door want it."""
        return EngineCheckpointer(self, self.this_run.state, folder, self.face, carried=self._carried is not None)

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield the one phase of this door: iterations without end; a user's own step draws its data itself."""
        (phase,) = super().phases(epoch)
        phase.draws = self.plan.foreign is None
        self._phase = phase
        yield phase

    def replace_data(self, loader: Any) -> None:
        """Draw from another loader from the next iteration on; its place is what is saved with the run then."""
        streams, before = self.this_run.streams, self._train_dataloader
        stream = streams.make(loader)
        stream.begin(self.progress.epoch)
        self._train_dataloader = stream
        streams.by_name = {"train": stream}
        self.tracked.remove("stream_train")
        self.track(stream_train=stream)
        self.batches = self._custom_step_batches()
        if self._phase is not None:
            self._phase.stream = stream
        if before is not None:
            before.close()

    # One iteration ------------------------------------------------------------------------------------------

    def create_updater(self) -> EngineUpdater:
        """Return what makes the updates of this door, and reports them."""
        return EngineUpdater(self)

    @property
    def may_record(self) -> bool:
        """Whether a step may be a replay, in which a number of the host's would stand still."""
        return isinstance(self.this_run.execution, GraphExecution) and not self.processes.distributed

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update, by the core's step or by the user's."""
        if self.plan.foreign is None:
            self._update(phase, window)
            return
        updater = self.this_run.updater
        updater.phase = None
        assert self._train_dataloader is not None
        self._show_first_data_of_custom_step()
        with self.precision.autocast():
            self._step_watch.run(self.plan.foreign, self.plan.accumulation)
        updater.samples = self._train_dataloader.take_samples() or updater.samples
        self._report_norm()

    def own_update(self, get_batch: Callable[..., Any] | None = None) -> None:
        """Make the core's update from inside a user's step, which does something before or after it."""
        self._get_batch = get_batch or self.plan.get_batch
        (phase,) = super().phases(self.progress.epoch)
        began = time.perf_counter()
        window = phase.stream.window(phase.accumulation)
        self.data_time = time.perf_counter() - began
        self._step_watch.own = True
        try:
            self._update(phase, window)
        finally:
            self._step_watch.own = False

    def _update(self, phase: Phase, window: list[Batch]) -> None:
        """Make the core's update, tell hooks in between of its gradient, and report it."""
        self.calculate_gradients(phase, window)
        if self.callback_handler.table[BACKWARD_END] and not self._is_still_to_normalise():
            self._fire_backward_end(phase)
        self.apply_gradients(phase)
        self._report_window()

    def _is_still_to_normalise(self) -> bool:
        """Whether the gradient is still to be divided, or to be gathered over processes."""
        return self.this_run.updater.scale.pending or self.this_run.shared_loss.module is not None

    def normalise_gradients(self, phase: Phase) -> None:
        """Make the gradient that of one batch, and tell hooks that it is."""
        super().normalise_gradients(phase)
        if self.callback_handler.table[BACKWARD_END]:
            self._fire_backward_end(phase)

    def _fire_backward_end(self, phase: Phase) -> None:
        self.precision.unscale(phase.optimizer)
        self.fire(BACKWARD_END)

    def create_recorder(self) -> Recorder | None:
        """Return what records steps; nothing where a hook acts within a step, which a replay does not stop at.

        Raises:
            ConfigError: The step is to be recorded in any case.
        """
        if not self.callback_handler.table[BACKWARD_END]:
            return super().create_recorder()
        if self.execution == "graph":
            raise ConfigError(
                "train.execution='graph': a hook has after_backward, which a replay does not stop at; use 'auto' or "
                "'eager', or leave the hook out"
            )
        return None

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the sum of the model's losses for one micro-batch, and keep its numbers for the report."""
        args, kwargs = self.arguments_of(batch)
        labels = count_labels(self.plan.model, kwargs) if self.this_run.updater.scale.pending else None
        outputs = self.plan.call(*args, **(kwargs if labels is None else labels[1]))
        size = size_of(batch)
        result = {"loss": self.plan.total(outputs), "model_outputs": outputs, "batch_size": size}
        weight: Any = size
        numbers = find_scalars(outputs)
        if isinstance(outputs, Mapping) and "num_items_in_batch" in outputs:
            weight = result["num_items_in_batch"] = outputs["num_items_in_batch"]
        elif labels is not None:
            result, weight = with_counted(result, labels[0]), labels[0].items
            numbers = zero_without_items(numbers, weight)
        self._outputs.append((weight, numbers))
        return result

    def arguments_of(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return what the model is called with for a batch."""
        args, kwargs = call_arguments(self._get_batch(batch))
        if self.on_first_data is not None:
            self._show_first_data(args, kwargs)
        return args, kwargs

    def put_outputs(self, weight: Any, numbers: dict[str, Any]) -> None:
        """Take what the last stage reports of a window, and what that is over."""
        self._outputs = [(weight, numbers)]

    def _show_first_data(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        look, self.on_first_data = self.on_first_data, None
        if look is not None:
            look(self.plan.model, args, kwargs)

    def _show_first_data_of_custom_step(self) -> None:
        """Look over the user's shoulder when he calls the model; what is compiled is left alone."""
        if self.on_first_data is None or self.plan.call is not self.plan.model:
            return

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            handle.remove()
            self._show_first_data(args, kwargs)

        handle = self.plan.model.register_forward_pre_hook(look, with_kwargs=True)

    def _report_window(self) -> None:
        outputs, self._outputs = self._outputs, []
        # In what may be recorded, a number of the host's would stand still.
        period = 1 if self.may_record else self.plan.report_period
        if outputs and (period == 1 or (self.progress.step + 1) % period == 0):
            # Of one micro-batch they are its own.
            numbers = outputs[0][1] if len(outputs) == 1 else mean_over_window(outputs)
            weight = outputs[0][0] if len(outputs) == 1 else sum([part for part, _ in outputs])
            numbers.pop("num_items_in_batch", None)
            waited = None if self.may_record else self.data_time
            put_numbers(numbers, waited, weight=weight, add_all=self.plan.adds_all)
            if self.plan.reports_scale and self.precision.scaler is not None:
                self.storage.put_scalar(SCALE, self.precision.scaler.scale_now.clone(), smoothing_hint=False)
        self._report_norm()

    def _report_norm(self) -> None:
        if self.this_run.updater.clips and self.gradient_norm is not None:
            self.storage.put_scalar("grad_norm", self.gradient_norm)

    def _custom_step_batches(self) -> Iterator[Batch]:
        """Yield the batches of the run to a step of the user's; the stream counts them."""
        assert self._train_dataloader is not None
        yield from self._train_dataloader.rest()

    # Numbers that are not finite ----------------------------------------------------------------------------

    def create_log(self) -> EngineLog:
        """Return what looks at the numbers of this door; writing them is for hooks."""
        return EngineLog(self)

    def check_numbers_if_due(self) -> None:
        """Look at the losses now and then, and after the last iteration."""
        if self._is_due():
            self.this_run.log.write()

    @property
    def skips_nonfinite_updates(self) -> bool:
        """Whether updates whose numbers are not finite are left out."""
        return self.this_run.updater.guard_in_use is not None

    # Saving -------------------------------------------------------------------------------------------------

    def save_as(self, name: str | None, *, best: bool = False) -> None:
        """Save the run as it is now, under `name` besides its iteration.

        Raises:
            CheckpointError: There is no folder to save into.
        """
        keeper = self.this_run.checkpointer
        if not isinstance(keeper, EngineCheckpointer):
            raise CheckpointError("checkpointer.save: this trainer has no output_dir to save into")
        keeper.save_as(name, best=best)

    def _leavable_evaluation(self) -> InterruptibleEvaluation | None:
        """Return how an evaluation of a hook is broken off when the run is asked to leave; None if it cannot be."""
        if self.run_dir is None or self.processes.distributed:
            return None
        return InterruptibleEvaluation(self.this_run.stop.is_asked_to_leave, self.processes, None, 1)

    def mark_complete(self) -> None:
        """Note that the checkpoint of the last iteration is the end of the run: nothing is left to do."""
        keeper = self.this_run.checkpointer
        if isinstance(keeper, EngineCheckpointer) and keeper.saved_at and keeper.saved_at[0] == self.progress.step:
            keeper.point(COMPLETE)


def _weak_method(face: "TrainerBase", name: str) -> Callable[[], None]:
    """Return a moment of a trainer that is not kept alive by it."""
    return lambda: getattr(face, name)()


class EngineRun(Run):
    """A run of iterations: it begins at one of them, and what is saved at its end is a matter of hooks."""

    trainer: EngineCore

    def prepare(self, train_kwargs: dict[str, Any] | None, eval_kwargs: dict[str, Any] | None) -> None:
        """Prepare the run, and go to its first iteration."""
        super().prepare(train_kwargs, eval_kwargs)
        self.trainer.begin_at_iteration()

    def note_cut(self) -> None:
        """Note that data is left, as always, and save nothing: that is for hooks."""
        self.epoch_is_cut = True

    def record_epoch_loss(self) -> None:
        """Record no loss of an epoch: this door counts iterations."""


class EndlessStreams(Streams):
    """Makes streams that begin again when their data ends."""

    def make(self, source: Any, *, evaluation: bool = False, name: str = "train") -> Stream:
        """Return a stream; one of training data is endless."""
        stream = super().make(source, evaluation=evaluation, name=name)
        stream.endless = not evaluation
        return stream
