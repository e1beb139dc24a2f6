"""The core trainer behind the trainers of this door: verbs only, the loop is the core's."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from treadle.callbacks import PrintProgressCallback
from treadle.callbacks.run_head import describe_run
from treadle.checkpoint.run_state import RunState
from treadle.config.arguments import accepted
from treadle.console.metric_names import canonical_name
from treadle.data import Batch, Stream
from treadle.data.run_streams import Streams
from treadle.errors import ConfigError, LossError
from treadle.events.names import direction_of
from treadle.loop import Schedule
from treadle.phase import LossVerb, Phase
from treadle.progress import AFTER_EPOCH
from treadle.recsys.config.core_options import (
    OF_A_WHOLE_RUN,
    SCHEDULED,
    option_default,
    read_options,
    setting_name,
)
from treadle.recsys.config.optimization import clip_limit, needs_custom_norm, schedule_factory
from treadle.recsys.data.dataloader import AbstractDataLoader
from treadle.recsys.data.dataloader.sequence_dataloader import POSITIVES
from treadle.recsys.trainers.abstract_trainer import Pass
from treadle.recsys.trainers.loop.model_file import ModelFileState, OtherParameters, RecommenderCheckpointer
from treadle.recsys.trainers.loop.streams import LoaderStream, StreamedBatches, as_interaction
from treadle.recsys.trainers.loop.updater import EpochLosses, RecommenderUpdater
from treadle.run import Run
from treadle.runs.preemption import interruptible
from treadle.spec import divided
from treadle.trainer import Trainer

if TYPE_CHECKING:
    from treadle.recsys.trainers.trainer import Trainer as Face

SAVE_SECONDS = 30.0
"""How long a run goes on between two checkpoints if nobody says how often; each is at the end of an epoch."""
TRAIN = "train"
SCORE = "valid_score"
"""The metric by which evaluations are compared."""
Losses = float | tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CoreOptions:
    """How the core runs, and where it keeps the run.

    Attributes:
        run_dir: The folder of the run; None keeps nothing.
        resume: Whether to go on with what is in the folder.
        resume_from: The file of a model to resume from.
        save_every: How often the run is saved; None leaves that to the time that passes.
        verbose: Whether to print.
        show_progress: Whether to show how far an epoch is.
        alone: Whether a single epoch is run for a `fit` of the user's, which does all else itself.
        evaluates: Whether the run is evaluated.
    """

    run_dir: Path | None = None
    resume: bool = False
    resume_from: Path | None = None
    save_every: Any = None
    verbose: bool = True
    show_progress: bool = False
    alone: bool = False
    evaluates: bool = False


class RecsysCore(Trainer):
    """Runs the epochs for a trainer of this door.

    Args:
        face: The trainer that a user sees.
        train_data: What to train on.
        options: How.
        epoch_end: Called at the end of each epoch, with its number and its loss.

    Attributes:
        losses: The loss of the last epoch.
        seconds: How long its training took.
        evaluates: Whether epochs are evaluated.
    """

    leaves_by_itself = False
    evaluates_by_itself = True
    """Whether evaluations are made by the door, and not on data that `train` is given."""
    HOW_TO_EVALUATE = "give fit its valid_data"
    LOG_EVERY = "1 epoch"
    """How often metrics are logged."""
    ITEMS_REMEDY = (
        "give the model a method loss_weight(interaction) that returns the sum of the weights of the targets that are "
        "not ignored, which treadle.ops.loss_items.items_in(loss_func, targets) gives"
    )

    def __init__(
        self, face: "Face", train_data: Any, options: CoreOptions, epoch_end: Callable[[int], None] | None = None
    ) -> None:
        self._face, self._data, self.options, self._epoch_end = face, train_data, options, epoch_end
        self._passes = list(face._passes())
        self._pass_verbs: dict[str, LossVerb] = {}
        self._saved_time = time.monotonic()
        self.custom_epoch_is_finished = False
        self.evaluates = True
        self.losses: Losses | None = None
        self.seconds = 0.0
        check_options(face, options, self._passes)
        built, self._asked = divided(read_options(face.config) | self._decided())
        super().__init__(face.model, None, find_optimizers(face), callbacks=face._core_callbacks(options), **built)
        # In a loop of the user's, the gradients of a process count by its rows: a short batch may not divide evenly.
        self.exchange.weigh = _weight_of_share
        self.epoch_losses = self.sums = EpochLosses(self.device, only_finite=self.on_nonfinite == "skip")
        self.track(epoch_losses=self.epoch_losses, standing=face._standing, **face._tracked)
        if getattr(face.model, "other_parameter_name", ()):
            self.track(other_parameter=OtherParameters(face.model, self.device))

    @property
    def how_to_resume(self) -> str:
        """What a run that was asked to leave says after where it is saved."""
        if self.options.resume:
            return "start the same command to resume"
        # The same command would begin a run of its own, in another folder.
        return (
            f"start the same command with --resume={self.options.run_dir} to resume, or in a loop of your "
            "own call resume_checkpoint with this folder before fit"
        )

    def use_loss(self, loss_func: Callable[[Any], Any]) -> None:
        """Train on another loss than the model's own."""
        self._passes = [replace(self._passes[0], loss=loss_func)]

    def _decided(self) -> dict[str, Any]:
        """Return the options that the trainer decides with more than its settings."""
        face, options, config = self._face, self.options, self._face.config
        reduction = config["loss_reduction"] or getattr(face.model, "loss_reduction", "mean")
        return {
            "seed": None if options.alone else int(config["seed"]),
            "run_dir": options.run_dir,
            "precision": face._precision(),
            "device": face.device,
            "execution": face._execution(),
            "loss_reduction": str(reduction),
            "clip_norm": clip_limit(face.clip_grad_norm),
            "eval_every": None,
            "log_every": config["log_every"] or self.LOG_EVERY,
            "save_every": None if options.run_dir is None else options.save_every or "1 epoch",
            "resume": "auto" if options.resume else None,
            "resume_from": options.resume_from,
        }

    def run(self, epochs: int) -> None:
        """Train until `epochs` are done, or as many steps as the settings allow."""
        factory = schedule_factory(self._face.config["scheduler"], bigger_is_better=self._watches_largest())
        self.train(self._data, epochs, create_scheduler_fn=factory, **self._asked)

    def _watches_largest(self) -> bool:
        """Whether the number that drives a schedule, if it is the score of evaluations, is best when it is large."""
        watched = self._asked.get("scheduler_metric", SCORE if self.options.evaluates else "train_loss_epoch")
        if canonical_name(watched) == canonical_name(SCORE):
            return bool(self._face.valid_metric_bigger)
        return direction_of(watched) == "max"

    @property
    def is_at_last_step(self) -> bool:
        """Whether the run has made as many steps as it may."""
        return self.settings.max_steps is not None and self.progress.step >= self.settings.max_steps

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print if the caller of `fit` wants it; the folder of the run gets it anyway."""
        if self.options.verbose:
            super().print(*args, **kwargs)
        else:
            self.this_run.checkpointer.log(" ".join(map(str, args)))

    @property
    def is_told(self) -> bool:
        """Whether a callback says how the run goes."""
        return any(isinstance(one, PrintProgressCallback) for one in self.callback_handler)

    def training_run_start(self) -> None:
        """Print the head of the run, unless a callback does."""
        if not self.is_told:
            self.print("\n".join(describe_run(self)))

    # Setting up ---------------------------------------------------------------------------------------------

    def create_run(self) -> "RecommenderRun":
        """Return a run that begins at the epoch where the face is, and is saved as time passes."""
        return RecommenderRun(self)

    def begin_at_epoch(self) -> None:
        """Begin a run that is prepared at the epoch where the face is."""
        self.progress.epoch = self._face.start_epoch
        self.run_history._set_epoch(self._face.start_epoch + 1)

    def stream_over(self, data: Any, name: str = TRAIN, *, passes: int = 1, first_pass: int = 0) -> Stream:
        """Return a stream over training data: a loader of this door, or any iterable of interactions."""
        if not isinstance(data, AbstractDataLoader):
            return self.this_run.streams.make(data, name=name)
        return LoaderStream(
            data.to(self.device),
            device=self.device,
            rank=self.processes.rank,
            size=self.processes.size,
            name=name,
            passes=passes,
            first_pass=first_pass,
            limit=self.max_batches_per_epoch,
        )

    def create_streams(self) -> "RecommenderStreams":
        """Return what makes the streams, and begins the sums of an epoch with them."""
        return RecommenderStreams(self)

    def create_state(self) -> RunState:
        """Return the state of the run, which may be read from the file of a model."""
        return ModelFileState(self, self._face)

    def create_checkpointer(self, folder: Path) -> RecommenderCheckpointer:
        """Return what keeps the run, and knows of its users and items."""
        return RecommenderCheckpointer(self, self.this_run.state, folder, self._face)

    @property
    def active_passes(self) -> list[Pass]:
        """The passes that streams are made for: a loop of the user's has one."""
        return self._passes[:1] if self.has_custom_loop else self._passes

    @property
    def face(self) -> "Face":
        """The trainer that a user sees."""
        return self._face

    @property
    def evaluated(self) -> list[str]:
        """The names of what evaluations have reported."""
        return sorted(name for name in self.run_history.get_metric_names() if name.startswith("valid_"))

    @property
    def train_data(self) -> Any:
        """The data that the run was given to train on."""
        return self._data

    # One epoch ----------------------------------------------------------------------------------------------

    @property
    def has_custom_loop(self) -> bool:
        """Whether the loop of an epoch is the user's own."""
        return not self.options.alone and self._face._has_custom_loop()

    def train_epoch_start(self) -> None:
        """Put the model into training mode, and tell it which epoch begins."""
        super().train_epoch_start()
        prepare = getattr(self.model, "start_epoch", None)
        if prepare is not None:
            prepare(self.progress.epoch)

    def _run_train_epoch(self, train_dl: Any) -> None:
        began = time.perf_counter()
        if self.has_custom_loop:
            self.losses = self._run_custom_epoch()
        else:
            super()._run_train_epoch(train_dl)
            epoch = self.progress.epoch
            names = [one.name for one in self._passes if one.counts and one.is_made(epoch)]
            self.losses = _reported(self.epoch_losses.read(names, self.processes))
        self.seconds = time.perf_counter() - began

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield a phase for each pass of the epoch."""
        made = [one for one in self._passes if one.is_made(epoch)]
        for visit, one in enumerate(made):
            # In a run that is resumed inside this pass, or behind it, it was done before, and is in the checkpoint.
            if one.before is not None and (self.progress.visit, self.progress.visit_step) == (visit, 0):
                one.before(epoch)
            yield self._make_phase(one, self.streams[one.name], self._verb(one))
            # In a run that is resumed inside a later pass it was done before, and is in the checkpoint.
            if one.after is not None and self.progress.visit_step == 0:
                one.after()

    def _make_phase(self, one: Pass, stream: Stream, verb: LossVerb) -> Phase:
        accumulation = self.settings.gradient_accumulation_steps
        return Phase(
            one.name,
            stream,
            verb,
            one.optimizer,
            scheduler=self.scheduler,
            parameters=one.parameters,
            accumulation=accumulation,
        )

    def _verb(self, one: Pass) -> LossVerb:
        """Return the loss verb of a pass, always the same: what is compiled is known by it."""
        if one.name not in self._pass_verbs:
            self._pass_verbs[one.name] = self._loss_verb(one.name, one.loss, self.epoch_losses)
        return self._pass_verbs[one.name]

    def _loss_verb(self, name: str, loss_func: Callable[[Any], Any], sums: EpochLosses) -> LossVerb:
        face = self._face
        check = face._check_nan if face._checks_every_loss() else None
        distributed = self.processes.distributed

        updater = self.this_run.updater
        assert isinstance(updater, RecommenderUpdater)

        def calculate_loss(batch: Batch) -> dict[str, Any]:
            interaction = as_interaction(batch)
            losses = loss_func(interaction)
            parts = losses if isinstance(losses, (tuple, list)) else (losses,)
            if not isinstance(losses, Tensor) and not (parts and all(isinstance(part, Tensor) for part in parts)):
                raise LossError(f"the loss of a batch is {losses!r}; return a tensor, or a tuple of tensors")
            loss: Any = parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])
            items = self._items_in(interaction) if distributed or updater.whole is not None else None
            cut = updater.whole is not None
            part = updater.part_of_whole(interaction, items, self._items_in) if cut else updater.share
            sums.add(name, parts, part)
            if check is not None:
                check(loss)
            output = {"loss": loss, "model_outputs": losses, "batch_size": len(interaction)}
            return output if items is None else {**output, "num_items_in_batch": items}

        return calculate_loss

    def _items_in(self, interaction: Any) -> Any:
        """Return what the loss of a batch is a mean over, where it is not the rows; None where it is."""
        own = getattr(self.model, "loss_weight", None)
        if own is not None:
            return own(interaction)
        sequence, hidden = getattr(self.model, "ITEM_SEQ", None), getattr(self.model, "POS_ITEMS", None)
        for targets in (f"{POSITIVES}{sequence}", hidden):
            if targets in interaction:
                return (interaction[targets] != 0).sum()
        return None

    def create_updater(self) -> RecommenderUpdater:
        """Return what makes the updates, and knows what part of a batch is under way."""
        return RecommenderUpdater(self)

    def training_run_epoch_end(self) -> None:
        """Have the epoch evaluated, judged and saved."""
        if self._epoch_end is not None:
            self._epoch_end(self.progress.epoch)
        self.progress.evaluation = 0

    def move_schedule(self) -> None:
        """Move a schedule on that the evaluation which was just made drives."""
        schedule = self.this_run.schedule
        assert isinstance(schedule, RecommenderSchedule)
        schedule.after_evaluation()

    @property
    def is_evaluated_late(self) -> bool:
        """Whether the run was saved inside the evaluation of this epoch, which is all that is left of it."""
        return self.progress.evaluation == AFTER_EPOCH

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let the evaluation of an epoch be broken off when the run is asked to leave, and be made when it goes on.

        On several processes it is not: nobody knows how many batches a method of the user's evaluates on each.
        """
        with (
            self.this_run.evaluator.in_run(AFTER_EPOCH),
            interruptible(None if self.processes.distributed else self.this_run.evaluator.leavable),
        ):
            yield

    # Loops of the user's ------------------------------------------------------------------------------------

    def _run_custom_epoch(self) -> Losses | None:
        face, epoch = self._face, self.progress.epoch
        assert self._train_dataloader is not None
        self.custom_epoch_is_finished = False
        self.this_run.begin_epoch()
        drawn = StreamedBatches(self._data, self._train_dataloader)
        shown = accepted(face._train_epoch, show_progress=self.options.show_progress)
        losses = face._train_epoch(drawn, epoch, **shown)
        self.processes.share_buffers(self.model)
        with self.this_run.stop.together():
            self.train_epoch_end()
        self.this_run.finish_custom_epoch()
        self.fire("on_train_epoch_end")
        return self._agreed(losses)

    def _agreed(self, losses: Any) -> Losses | None:
        """Return the loss of an epoch as numbers, the mean over all processes."""
        if losses is None:
            return None
        several = isinstance(losses, (tuple, list))
        own = [float(one) for one in (losses if several else [losses])]
        mean = [one / self.processes.size for one in self.processes.reduce(own)]
        return tuple(mean) if several else mean[0]

    def run_pass(self, data: Any, loss_func: Callable[[Any], Any] | None) -> Losses:
        """Go through the data once inside a loop of the user's, and return the loss as `_train_epoch` does.

        Args:
            data: What the loop was given, or other data.
            loss_func: The loss of an interaction; None for the model's own.
        """
        if isinstance(data, StreamedBatches):
            data.begin_pass()
            stream = data.stream
        else:
            stream = self.stream_over(data)
            stream.begin(self.progress.epoch)
        sums = EpochLosses(self.device)
        model: Any = self.model
        verb = self._loss_verb(TRAIN, loss_func or model.calculate_loss, sums)
        phase = Phase(TRAIN, stream, verb, self._face.optimizer)
        run = self.this_run
        inside, run.in_core_loop, self.sums = run.in_core_loop, True, sums
        try:
            for window in self.this_run.windows(phase):
                self.this_run.updater.attempt(phase, window)
                self.progress.count_update(self.this_run.updater.samples)
                if self.callback_handler.table["on_update_end"]:
                    self.fire("on_update_end")
        finally:
            run.in_core_loop, self.sums = inside, self.epoch_losses
        found = _reported(sums.read([TRAIN], self.processes))
        return 0.0 if found is None else found

    # Saving -------------------------------------------------------------------------------------------------

    def is_time_to_save(self) -> bool:
        """Whether so many seconds have passed since the last time, on the clock of the first process."""
        now = time.monotonic()
        # The clocks of several machines differ: the first process decides.
        due = bool(self.processes.share(now - self._saved_time >= SAVE_SECONDS))
        if due:
            self._saved_time = now
        return due

    def finished_state(self, epoch: int) -> dict[str, Any]:
        """Return the state of the run as it is once an epoch, which may be under way, is counted."""
        tracked = self.tracked.state_dict(lambda name: name != "metrics_file")
        if self.progress.epoch <= epoch:
            progress = type(self.progress)(**self.progress.state_dict())
            progress.finish_epoch()
            tracked["progress"] = progress.state_dict()
            tracked["history"] = {**tracked["history"], "current_epoch": self.run_history.current_epoch + 1}
        return {"processes": self.processes.size, "tracked": tracked}

    def local_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return what of a state is this process's own."""
        return {name: value for name, value in state["tracked"].items() if self.this_run.state.is_local(name)}


class RecommenderRun(Run):
    """A run that begins at the epoch where the face is, and is saved as time passes if nobody says how often."""

    trainer: RecsysCore

    def __init__(self, trainer: RecsysCore) -> None:
        super().__init__(trainer)
        self.schedule: RecommenderSchedule = RecommenderSchedule(trainer)

    def prepare(self, train_kwargs: dict[str, Any] | None, eval_kwargs: dict[str, Any] | None) -> None:
        """Prepare the run, and go to its first epoch."""
        super().prepare(train_kwargs, eval_kwargs)
        self.trainer.begin_at_epoch()

    def finish_custom_epoch(self) -> None:
        """Do what a loop of the user's left undone, once: passes of the core's own may have been made inside."""
        if not self.trainer.custom_epoch_is_finished:
            self.trainer.custom_epoch_is_finished = True
            super().finish_custom_epoch()

    def save_after_epoch(self, step_before: int, evaluated: bool) -> None:
        """Save if it is time."""
        if self.trainer.options.save_every is not None or self.trainer.is_time_to_save():
            super().save_after_epoch(step_before, evaluated)


class RecommenderSchedule(Schedule):
    """Moves the learning rates of a run whose evaluation is a part of the end of an epoch."""

    trainer: RecsysCore

    def __init__(self, trainer: RecsysCore) -> None:
        super().__init__(trainer)
        # The optimizer is that of every `fit`, whose rates follow the batch once.
        self.factor = trainer._face._rate_factor

    def prepare(self) -> None:
        """Scale the rates, and have the scheduler made."""
        super().prepare()
        self.trainer._face._rate_factor = self.factor

    @property
    def metric(self) -> str | None:
        """What drives the schedule: what was asked for, and for a plateau the score of evaluations."""
        asked = self.trainer.settings.scheduler_metric
        if asked is None and isinstance(self.scheduler, ReduceLROnPlateau):
            return SCORE if self.trainer.options.evaluates else "train_loss_epoch"
        return asked

    def step(self) -> None:
        """Move on: by one update or epoch, or, where a metric drives it, by that metric's latest value."""
        if self.metric is None:
            super().step()
        else:
            self.scheduler.step(self.trainer.run_history.get_latest_metric(self.metric))

    def after_epoch(self, evaluated: bool) -> None:
        """Move a schedule by epochs on before the evaluation, unless that is what drives it."""
        if self._moves() and not self.trainer.is_evaluated_late and not self._follows_evaluations:
            self.trainer.scheduler_step()

    def after_evaluation(self) -> None:
        """Move a schedule on that an evaluation drives."""
        if self._moves() and self._follows_evaluations:
            self.trainer.scheduler_step()

    def _moves(self) -> bool:
        return self.scheduler is not None and not self.by_step and not self.trainer.this_run.epoch_is_cut

    @property
    def _follows_evaluations(self) -> bool:
        return self.metric is not None and not self.metric.startswith("train_")


class RecommenderStreams(Streams):
    """Begins the sums of losses of an epoch where its data begins."""

    trainer: RecsysCore

    def create(self) -> None:
        """Make a stream for each pass; a loop of the user's has one."""
        core = self.trainer
        first = 0
        self.by_name.clear()
        for one in core.active_passes:
            own = core.train_data if one.data is None or core.has_custom_loop else one.data(core.train_data)
            self.by_name[one.name] = core.stream_over(own, one.name, passes=one.times, first_pass=first)
            first += one.times
        core.this_run.data.training = next(iter(self.by_name.values()))

    def begin(self) -> None:
        """Begin the epoch, if the run is not in the middle of one."""
        if not self.trainer.progress.mid_epoch:
            self.trainer.epoch_losses.reset()
        super().begin()


def _weight_of_share(core: RecsysCore) -> float:
    """Return how much the gradients of this process count; batches that are not shared out count alike."""
    share = getattr(core._train_dataloader, "share", None)
    return 1.0 if share is None else float(share) * core.processes.size


class NormClippingCore(RecsysCore):
    """Clips by another norm than the Euclidean one, as torch's `clip_grad_norm_` does."""

    def _clip_gradients(self) -> None:
        updater = self.this_run.updater
        if self.settings.gradient_clip_value is not None:
            updater.clip(None, self.settings.gradient_clip_value)
        self.precision.unscale(updater.optimizer)
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(updater.trained, **self._face.clip_grad_norm)


def make_core(face: "Face", train_data: Any, options: CoreOptions, epoch_end: Any = None) -> RecsysCore:
    """Return the core for a trainer: the one that clips as its settings say."""
    kind = NormClippingCore if needs_custom_norm(face.clip_grad_norm) else RecsysCore
    return kind(face, train_data, options, epoch_end)


def check_options(face: "Face", options: CoreOptions, passes: Sequence[Pass]) -> None:
    """Refuse the settings of options that a trainer cannot have.

    Raises:
        ConfigError: There is one; the message says why.
    """
    if options.alone:
        refused = dict.fromkeys(OF_A_WHOLE_RUN, "has a fit of its own, each of whose epochs would begin it anew")
    else:
        refused = dict(face._refused_options())
        if len(passes) > 1:
            scheduled = "makes several passes over the data, each of which would move it"
            refused |= dict.fromkeys(SCHEDULED, scheduled)
        if face.config["scheduler"] is None:
            unmoved = "has no schedule that it could be about; set scheduler"
            refused = {**dict.fromkeys(("scheduler_interval", "scheduler_metric"), unmoved), **refused}
        if face._precision() != "fp16":
            refused.setdefault("loss_scaling", "scales the loss in fp16 alone; set precision='fp16', or leave it out")
    for option, reason in refused.items():
        name = setting_name(option)
        value = face.config[name]
        if value is not None and value is not False and value != option_default(option):
            raise ConfigError(f"{name}={value!r}: {type(face).__name__} {reason}")


def find_optimizers(face: Any) -> Optimizer | dict[str, Optimizer]:
    """Return every optimizer that the trainer holds, by the name of its attribute; `optimizer` comes first."""
    held = {"optimizer": face.optimizer, **vars(face)}
    found: dict[int, tuple[str, Optimizer]] = {}
    for name, value in held.items():
        if isinstance(value, Optimizer):
            found.setdefault(id(value), (name, value))
    if not found:
        raise ConfigError(f"{type(face).__name__}.optimizer is {face.optimizer!r}; _build_optimizer must return one")
    by_name = dict(found.values())
    return face.optimizer if len(by_name) == 1 and isinstance(face.optimizer, Optimizer) else by_name


def _reported(sums: list[list[float]]) -> Losses | None:
    """Return the losses of passes as `_train_epoch` does: a number, or a tuple of the parts."""
    parts = [one for own in sums for one in own]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else tuple(parts)
