"""Updates of a run: attempted, left out where their data is bad, cut finer where memory runs out."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.compiler import set_stance
from torch.optim import Optimizer

from treadle.data import Batch, size_of
from treadle.errors import ConfigError, StopTrainingError
from treadle.execution.cuda_graph.inputs import PlacedWindow
from treadle.loop.evaluator import mean_loss, size_in
from treadle.loop.interfaces import RunningTrainer
from treadle.loop.nonfinite import FiniteGuard, SkippedSteps
from treadle.loop.oom_retry import BeforeAttempt, OomRetry
from treadle.memory.offload import OffloadedState
from treadle.ops.loss_items import MeansOverItems, MeansSeen, counted_in, find_criterion, items_in_window, says_items
from treadle.ops.losses import check_loss, describe_batch, function_name
from treadle.optim.combined import CombinedOptimizer
from treadle.optim.fused import direct_step, prefer_fused, refuse_closures, state_to_weights
from treadle.optim.gradients import (
    WindowScale,
    clip_by_norm,
    clip_by_value,
    forget_gradients,
    joint_norm,
    present_gradients,
)
from treadle.parallel.grad_allreduce import GradientAverager
from treadle.parallel.pipeline.loss import StageLoss
from treadle.phase import LossVerb, Phase, optimizer_params

NO_CONTEXT: AbstractContextManager[Any] = nullcontext()
MEASURED = "calculate_train_batch_loss"
"""The loss method whose outputs metrics of training are of; phases with others have outputs of other kinds."""


class Updater:
    """Makes the updates of a run by the methods of its trainer, and owns what an update leaves behind.

    A door whose updates need more gives its trainer a subclass by `create_updater`.

    Args:
        trainer: Whose run it is.

    Attributes:
        phase: The phase under way; None in a loop of the user's.
        samples: The samples of the window under way.
        stepped: Whether an optimizer has stepped in the update under way.
        clips: Whether gradients are bounded, or their norm is wanted.
        recording: Whether the update under way is being recorded, to be replayed.
        norm: The norm of the last gradient, before it was bounded, where somebody wants it.
        applied: Whether the last update was applied, on the device; None where none is left out.
        optimizers: What updates the weights.
        exchanges: Whether there are other processes to exchange gradients with.
        skipped: The steps whose data is left out.
        splits: Into how many parts each micro-batch is cut.
        gate: What leaves bad updates out on the device; None where nothing does.
        scale: How the losses of a window share its gradient.
        offloaded: The states of optimizers that are kept on the host.
        means: What is known of losses that are means over something else than samples.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self.trainer = trainer
        self._own_backward = trainer.overrides("backward_step")
        self.exchanges = trainer.processes.distributed
        self.phase: Phase | None = None
        self.samples = 0
        self.stepped = self.clips = self.recording = False
        self.norm: Tensor | None = None
        self.applied: Tensor | None = None
        self.optimizers: list[Optimizer] = []
        self._combined: CombinedOptimizer | None = None
        self.skipped = SkippedSteps()
        self.splits = OomRetry()
        self.gate: FiniteGuard | None = None
        self.scale = WindowScale(trainer.loss_reduction)
        self.offloaded: list[OffloadedState] = []
        self.means = MeansOverItems(trainer.ITEMS_REMEDY)
        self._stage_items: Tensor | None = None

    def prepare(self, nominal: int | None) -> None:
        """Get ready for the updates of a run.

        Args:
            nominal: The samples of a whole batch; None if nobody knows.
        """
        trainer, spec, optimizers = self.trainer, self.trainer.this_run.spec, self.optimizers
        self._prepare_metrics()
        self.offloaded = [OffloadedState(optimizer) for optimizer in optimizers if spec.offload_optimizer]
        skips, sharded = spec.on_nonfinite == "skip", trainer.parallel.is_sharded
        if skips or trainer.precision.scaler is not None:
            strides = {id(one.optimizer): one.stride for one in self.offloaded}
            agree = trainer.processes.make_largest if sharded else None
            self.gate = FiniteGuard(
                trainer.model, optimizers, trainer.device, watches=skips, strides=strides, agree=agree
            )
        self.scale = WindowScale(
            trainer.loss_reduction, ranks=trainer.parallel.data_size, nominal=nominal, rides=sharded
        )

    def _prepare_metrics(self) -> None:
        """Bring the metrics of training to the device; stages on several processes hand no outputs to them.

        Raises:
            ConfigError: They were asked for all the same.
        """
        trainer, metrics = self.trainer, self.trainer.this_run.metrics
        if metrics.kept and trainer.parallel.is_pipeline:
            if trainer._metrics.is_asked_for:
                raise ConfigError(
                    f"train_metrics={metrics.names()}: the stages of a pipeline hand no outputs of training batches "
                    "back; leave them out, and have evaluations report metrics="
                )
            metrics.kept = False
            trainer.print(f"the stages of a pipeline hand no outputs back: no {', '.join(metrics.names())} of training")
        if metrics.kept:
            metrics.to(trainer.device)
            if trainer.parallel.copies > 1:
                metrics.within(trainer.parallel.data_group)

    def prepare_model(self) -> None:
        """Bring the model to the device, fuse the optimizers, and let the processes share the loss."""
        trainer = self.trainer
        trainer.precision.convert(trainer.model)
        self.place_model()
        trainer.precision.check(trainer.model)
        self.optimizers = list(trainer.optimizers().values())
        if not trainer.this_run.spec.offload_optimizer:
            for optimizer in self.optimizers:
                state_to_weights(optimizer)
        if not any(getattr(module, "sparse", False) for module in trainer.model.modules()):
            # A fused optimizer does not take the sparse gradients of embeddings that ask for them.
            for optimizer in self.optimizers:
                prefer_fused(optimizer)
        # Last: DDP broadcasts the weights of rank 0 from where they are, so they must be on the device by now.
        trainer.this_run.shared_loss.prepare(trainer.model, self.optimizers)

    def place_model(self) -> None:
        """Bring the model to the device, or what this process holds of it."""
        trainer = self.trainer
        optimizers = list(trainer.optimizers().values())
        # Once a model was sharded its optimizers hold pieces, which are none of its parameters.
        if not trainer.parallel.prepared:
            held = {id(one) for optimizer in optimizers for one in optimizer_params(optimizer)}
            trainable = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
            if held and trainable and not any(id(parameter) in held for parameter in trainable):
                raise ConfigError("the optimizer holds no parameter of this model; build it from model.parameters()")
        trainer.parallel.prepare(trainer.model, optimizers)
        trainer.parallel.place(trainer.model)

    @contextmanager
    def saving_memory(self) -> Iterator[None]:
        """Let the run take less memory of the device, in the ways that were asked for."""
        with ExitStack() as stack:
            stack.enter_context(self.trainer.activation_checkpointing)
            for offloaded in self.offloaded:
                stack.enter_context(offloaded)
            yield

    def begin_epoch(self) -> None:
        """Find out whether gradients are bounded in this epoch, or anybody wants their norm."""
        trainer = self.trainer
        # A norm that is not finite spoils the loss of its own step, so that a roll back skips the data that did it;
        # without it the bad gradient would show in the loss of the step after.
        trainer.track_gradient_norm = trainer.track_gradient_norm or trainer.this_run.spec.on_nonfinite == "rollback"
        self.clips = trainer.track_gradient_norm or self.is_asked_to_clip

    @property
    def is_asked_to_clip(self) -> bool:
        """Whether the gradients of this run are to be bounded."""
        return self.trainer.this_run.spec.clips or self.trainer.overrides("_clip_gradients")

    @property
    def guard_in_use(self) -> FiniteGuard | None:
        """What leaves bad updates out; None if nobody does, as in a run that fell back from fp16."""
        wanted = self.trainer.this_run.spec.on_nonfinite == "skip" or self.trainer.precision.scaler is not None
        return self.gate if wanted else None

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the phase under way; in a loop of the user's, the only one."""
        return self.all_optimizers if self.phase is None else self.phase.optimizer

    @property
    def all_optimizers(self) -> Optimizer:
        """What updates all weights: the optimizer of the trainer, or several as one, unless they take turns."""
        several = list(self.trainer.optimizers().values())
        if len(several) == 1 or self.trainer.overrides("phases"):
            return several[0]
        if self._combined is None or self._combined.members != tuple(several):
            self._combined = CombinedOptimizer(several)
        return self._combined

    @property
    def trained(self) -> list[Any]:
        """The parameters that the update under way trains."""
        return optimizer_params(self.optimizer) if self.phase is None else self.phase.trained

    # Attempts -----------------------------------------------------------------------------------------------

    def attempt(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update; leave it out if its data was found to be bad, cut it finer if memory runs out."""
        trainer, run = self.trainer, self.trainer.this_run
        # Empty in nearly every run, which then pays for one look at a set.
        if self.skipped.steps:
            bad = run.progress.step + 1 in self.skipped.steps
            self.applied = torch.tensor(not bad, dtype=torch.float32, device=trainer.device)
            if bad:
                self.skip(phase, window)
                return
        before = None if run.spec.microbatch == "fixed" else BeforeAttempt(trainer.model, run.losses, run.metrics)
        try:
            run.execution.update(phase, window if before is None else self.splits.cut(window))
        except torch.OutOfMemoryError:
            if before is None or not self._may_halve(window):
                raise
            before.restore()
            self.halve()
            self.attempt(phase, window)
        except StopTrainingError:
            raise
        except Exception as error:
            error.add_note(self._step_position(phase, window))
            raise

    def skip(self, phase: Phase, window: list[Batch]) -> None:
        """Leave the data of a bad step out: it counts, and the schedule moves, but nothing is learnt from it."""
        self.phase = phase
        # There is no gradient to tell of; that of the step before is not this one's.
        self.norm = None
        self.samples = sum(map(size_of, window))
        if phase.scheduler is not None and self.trainer.this_run.schedule.by_step:
            self.trainer.scheduler_step()

    def _may_halve(self, window: list[Batch]) -> bool:
        # Alone only: another process would not know that this one makes more backward passes.
        alone = not self.trainer.processes.distributed
        # After an optimizer has stepped, the update cannot be made once more.
        return alone and not self.stepped and self.splits.parts < max(map(size_of, window))

    def halve(self) -> None:
        """Halve the micro-batches after memory ran out."""
        trainer = self.trainer
        self.splits.halve()
        for optimizer in trainer.optimizers().values():
            optimizer.zero_grad()
        if trainer.device.type == "cuda":
            # The allocator keeps blocks cut for the larger micro-batch, which the smaller ones would not fill.
            torch.cuda.empty_cache()
        trainer.print(f"memory ran out: each micro-batch is cut into {self.splits.parts}, the batch stays the same")

    def _step_position(self, phase: Phase, window: list[Batch]) -> str:
        progress = self.trainer.progress
        place = f"at step {progress.step + 1}, epoch {progress.epoch + 1}, in {function_name(phase.loss)}"
        # To gather batches now might fail as well, on a device that has failed.
        batches = window.made if isinstance(window, PlacedWindow) else window
        return f"{place}, for batches of {'; '.join(map(describe_batch, batches))}" if batches else place

    # Gradients ----------------------------------------------------------------------------------------------

    def calculate(self, phase: Phase, window: list[Batch]) -> None:
        """Accumulate the gradient of `window`; the host never waits for the device."""
        trainer, run = self.trainer, self.trainer.this_run
        self.phase = phase
        self.stepped = False
        if trainer.parallel.is_pipeline:
            self._calculate_in_stages(phase, window)
            return
        heard = not phase.silent
        gate = self.guard_in_use if self.gate is not None and heard else None
        if gate is not None:
            gate.begin()
        listening = trainer.callback_handler.table
        parts = len(window)
        self.samples = 0
        shared, scale, precision = run.shared_loss, self.scale, trainer.precision
        # One micro-batch on one process is left as it is, to be bit-equal to a hand-written loop.
        if parts > 1 or scale.pending or shared.module is not None:
            scale.begin(parts)
        # What a method returns is checked in the first window of a phase only: each check is time of the host.
        first = not self.recording and run.progress.visit_step == 0
        plain = shared.module is None and precision.plain and not first
        verb = phase.loss if run.verbs is None else run.verbs.of(phase.loss)
        measures = run.metrics.kept and heard and function_name(phase.loss) == MEASURED
        for position, batch in enumerate(window):
            if heard and listening["on_train_step_start"]:
                trainer.fire("on_train_step_start", batch=batch)
            # The common case goes straight to the method: what lies between is a good part of a small step.
            output, weight_param = (
                (verb(batch), None) if plain else self._shared_loss(phase, verb, batch, position == parts - 1)
            )
            loss = output["loss"]
            # A rank without data takes part with a batch of no weight: the others wait for it in the all-reduce.
            weight = self._count_weight(batch, output) if phase.stream.padded != position else 0
            # A loss that is the whole window's goes to its backward pass as the method returned it.
            several = parts > 1 or weight_param is not None
            counted = counted_in(output) if several and phase.stream.padded != position else None
            # What is recorded is a mean: a sum is divided by what it is over.
            if heard:
                recorded = weight if counted is None else counted.recorded(weight)
                run.losses.update(loss if scale.mean else mean_loss(loss, weight, trainer.loss_reduction), recorded)
            if gate is not None and gate.watches:
                gate.note(loss)
                # A bad loss on one rank spoils the weight_param, and through its all-reduce the update of every rank.
                weight_param = None if weight_param is None else weight_param * (1 + 0 * loss.detach())
            if heard and listening["on_train_step_end"]:
                step = phase.stream.drawn - parts + position
                trainer.fire("on_train_step_end", batch=batch, batch_output=output, step=step)
            if measures and phase.stream.padded != position:
                trainer.update_metrics(batch, output)
            if several:
                loss = scale.share(loss, weight if counted is None else counted, weight_param)
            if precision.passes is None or not self._own_backward:
                trainer.backward_step(loss)
            else:
                with precision.passes.in_backward_step():
                    trainer.backward_step(loss)

    def add_gradient(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, scaled where the precision wants it, to those of what learns now."""
        precision, shared = self.trainer.precision, self.trainer.this_run.shared_loss
        if precision.scaler is not None:
            loss = precision.scale(loss)
        inputs = None if self.phase is None else self.phase.parameters
        if inputs is not None and shared.module is not None:
            # What the losses of the window are means over is collected there too.
            inputs = [*inputs, shared.weight]
        if precision.products.expected and not precision.plain:
            precision.products.backward(loss, inputs)
            return
        loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]

    def _shared_loss(
        self, phase: Phase, verb: LossVerb, batch: Batch, last: bool
    ) -> tuple[dict[str, Any], Tensor | None]:
        """Return what the loss method makes of `batch`, and the weight_param that adds its weight up over all ranks."""
        trainer, shared = self.trainer, self.trainer.this_run.shared_loss
        weight_param: Tensor | None = None
        first = not self.recording and trainer.progress.visit_step == 0
        seen = self._check_means() if first and self.scale.pending else None
        # A mode would have what is compiled made anew; what runs eagerly once does so in every run alike.
        plainly = set_stance("force_eager") if seen is not None and trainer.is_compiled else NO_CONTEXT
        with plainly, NO_CONTEXT if seen is None else seen:
            if shared.module is None and trainer.precision.plain:
                output = verb(batch)
            else:
                with trainer.precision.autocast(phase.name):
                    output, weight_param = shared.compute(phase, verb, batch, last=last)
        if first:
            check_loss(output, verb=function_name(phase.loss))
            counted = counted_in(output)
            if seen is not None and counted is not None and counted.assumed:
                self.means.compare(seen, counted, function_name(phase.loss))
            elif seen is not None and not says_items(output):
                self.means.take(seen, function_name(phase.loss))
        return output, weight_param

    def _check_means(self) -> MeansSeen | None:
        """Return what sees over what losses are means; where steps are compiled only in the first update of a run."""
        trainer = self.trainer
        if trainer.is_compiled and (trainer.this_run.progress.step > 0 or trainer.this_run.execution.replays):
            return None
        return MeansSeen()

    def _count_weight(self, batch: Batch, output: dict[str, Any]) -> Any:
        """Count the samples of a micro-batch and return what its loss is a mean over."""
        size = output.get("batch_size")
        if type(size) is not int:
            self.samples += size_of(batch)
            return size_in(output, batch)
        self.samples += size
        items = output.get("num_items_in_batch")
        return size if items is None else items

    # Stages -------------------------------------------------------------------------------------------------

    def _calculate_in_stages(self, phase: Phase, window: list[Batch]) -> None:
        """Have all micro-batches of `window` under way at once, through stages on different processes."""
        trainer, run = self.trainer, self.trainer.this_run
        gate = self.guard_in_use if self.gate is not None else None
        if gate is not None:
            gate.begin()
        self.scale.begin(len(window))
        counting = [batch for position, batch in enumerate(window) if position != phase.stream.padded]
        self.samples = sum(map(size_of, counting))
        self._stage_items = items_in_window(trainer.loss_func, counting)
        loss = self.stage_loss()
        # A torch function mode is in the way of every call of torch's, so it is entered for the first window only.
        loss.means = self.means if trainer.progress.visit_step == 0 else None
        precision = trainer.precision
        scaler = precision.scaler
        settles = scaler is not None and not scaler.settled
        with precision.autocast(phase.name):
            found = trainer.parallel.run_window(
                trainer.model, counting, loss, self.scale.factor, None if scaler is None else precision.scale
            )
        precision.scaled_elsewhere(trainer.parallel.take_from_last if settles else None)
        for output, size in found:
            run.losses.update(output["loss"], output.get("num_items_in_batch", size))
            if gate is not None:
                gate.note(output["loss"])
        weight_param = trainer.this_run.shared_loss.weight
        factor = torch.ones_like(weight_param).mul_(self.scale.factor(self.stage_weight(found)))
        weight_param.grad = precision.like_gradients(factor)

    def stage_loss(self) -> StageLoss:
        """Return how batches go into stages, and what comes of them at their end."""
        trainer = self.trainer
        loss_func = trainer.precision.for_loss(trainer.loss_func)
        loss: StageLoss = trainer.parallel.stage_loss(trainer.model, loss_func, find_criterion(trainer.loss_func))
        return loss

    def stage_weight(self, found: list[tuple[dict[str, Any], int]]) -> Any:
        """Return what the losses of a window are means over, on every stage; the last one `found` them."""
        if self._stage_items is None and self.trainer.loss_func is None:
            # Only the last stage knows what its module said.
            items = [output["num_items_in_batch"] for output, _ in found if "num_items_in_batch" in output]
            said = self.trainer.parallel.from_last({"items": sum(items)} if items else {})
            return said.get("items", self.samples)
        return self.samples if self._stage_items is None else self._stage_items

    # Weights ------------------------------------------------------------------------------------------------

    def apply(self, phase: Phase) -> None:
        """Divide by the window's weight over all ranks, clip, step, schedule, zero."""
        trainer = self.trainer
        if self.scale.pending or trainer.this_run.shared_loss.module is not None:
            # Before clipping: the bound is for the gradient of the whole window, over all ranks.
            trainer.normalise_gradients(phase)
        if self.clips:
            trainer._clip_gradients()
        self.stepped = True
        trainer.optimizer_step()
        # A schedule is Python, which a replay does not repeat; of a recorded step it is moved outside.
        if phase.scheduler is not None and trainer.this_run.schedule.by_step and not self.recording:
            trainer.scheduler_step()
        trainer.optimizer_zero_grad()
        if self.exchanges:
            # Whoever steps this optimizer again has gradients of this process alone, which are then averaged.
            trainer.exchange.note(None)

    def normalise(self, phase: Phase) -> None:
        """Make the gradient that of one batch with all samples of the window, over all ranks."""
        shared = self.trainer.this_run.shared_loss
        if shared.module is None:
            self.scale.normalise(present_gradients(phase.trained))
            return
        weight = shared.take_weight(phase)
        if weight is not None:
            # It was collected by backward passes that began at a scaled loss, and so did gradients, which still are.
            weight = self.trainer.precision.true_size(weight)
        self.scale.normalise(present_gradients(phase.trained), weight)
        self.trainer.exchange.note(phase.optimizer)

    def complete_gradients(self, optimizer: Optimizer, parameters: Iterable[Any]) -> None:
        """Make the gradients of `parameters` those that `optimizer` will step by, so that they can be clipped.

        In a loop of the user's that is their mean over the processes, which is taken once more when it steps.
        """
        if not self.trainer.this_run.in_core_loop:
            GradientAverager(self.trainer.processes).average(parameters)
        self.trainer.precision.unscale(optimizer)

    def clip(self, norm: float | None, value: float | None) -> None:
        """Bound the gradient of the update, once, over all parameters of its optimizer."""
        trainer, trained = self.trainer, self.trained
        # In fp16 gradients are unscaled here, and not at the step: a bound means gradients of their true size.
        self.complete_gradients(self.optimizer, trained)
        gradients = present_gradients(trained)
        if value is not None:
            clip_by_value(gradients, value)
        # Each rank holds pieces: a bound by its own norm would scale every piece differently.
        known = trainer.parallel.norm(trained) if trainer.parallel.is_sharded else None
        if norm is not None:
            self.norm = clip_by_norm(gradients, norm, known)
        elif trainer.track_gradient_norm:
            self.norm = joint_norm(gradients) if known is None else known
        if self.norm is not None and (self.gate is None or self.guard_in_use is None):
            # Where the norm is known anyway, a gradient that is not finite shows in the loss of its own step.
            trainer.this_run.losses.spoil(self.norm)

    def step(self) -> None:
        """Have the optimizer update the weights, unless something is not finite and that is to leave no trace."""
        gate = None if self.gate is None else self.guard_in_use
        optimizer = self.all_optimizers if self.phase is None else self.phase.optimizer
        if gate is None:
            direct_step(optimizer)
            return
        trainer = self.trainer
        refuse_closures(optimizer)
        # Does nothing where clipping has unscaled them.
        trainer.precision.unscale(optimizer)
        gate.step(optimizer, present_gradients(optimizer_params(optimizer)), trainer.precision.overflow)
        self.applied = gate.applied
        trainer.precision.stepped()

    def zero_grad(self) -> None:
        """Forget the gradients of every optimizer."""
        for optimizer in self.optimizers:
            forget_gradients(optimizer)
        if self.trainer.parallel.is_sharded:
            # The model's own distributed weights keep theirs otherwise: no optimizer holds those.
            self.trainer.parallel.drop_gradients()
