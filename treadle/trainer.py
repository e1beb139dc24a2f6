"""The trainer: what was built once, the loop, and the methods to override."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.callback import EVENTS, CallbackHandler
from treadle.callbacks import DEFAULT_CALLBACKS
from treadle.callbacks.limit_batches import active_limit
from treadle.checkpoint import Policy, Storage, Tracked, trainer_files
from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.checkpoint.run_state import RunState
from treadle.config.arguments import checked_names
from treadle.data import Batch, Stream
from treadle.data.loaders import DEFAULT_SIZE, needs_no_workers, refuse_idle_collate, resolve_batch_size
from treadle.data.run_streams import RunData, Streams, default_workers
from treadle.errors import ConfigError, StopTrainingError
from treadle.events import EventStorage, InMemoryRunHistory, LossTracker, RunHistory
from treadle.execution import Compile, CudaGraphs, Execution, ExecutionOption, Recorder, check_execution, execution_of
from treadle.loop import Due, Log, Updater
from treadle.loop.accelerator import AcceleratorFacade
from treadle.loop.custom_loop import CustomRun, custom_updates, guard_evaluation, guard_updates, perform_passes
from treadle.loop.forwarded import HandedLoader, OfRun, training_on
from treadle.loop.metrics import GivenMetrics, update_metrics
from treadle.loop.nonfinite import RollBack
from treadle.loop.run_config import TrainerRunConfig, resolved_config
from treadle.loop.verbs import check_trainer_class
from treadle.memory.activation_checkpointing import ActivationCheckpointing
from treadle.memory.offload import check_offload
from treadle.ops.loss_items import count_targets, own_loss
from treadle.ops.losses import default_loss, model_inputs
from treadle.optim.combined import as_named
from treadle.optim.fused import check_closures
from treadle.optim.gradients import LossReduction
from treadle.optim.lr_scaling import LRScaling
from treadle.parallel import GradientExchange, Plan, Processes
from treadle.parallel.factory import check_trainer, strategy_for
from treadle.parallel.strategy import Strategy
from treadle.phase import Phase
from treadle.precision import LossScaling, Precision, PrecisionName, SinglePrecision, precision_for
from treadle.precision.tf32 import ConvolutionPrecision, Deterministic, MatmulPrecision
from treadle.progress import Progress
from treadle.result import TrainResult, build_result
from treadle.run import Run
from treadle.runs.lock import run_lock
from treadle.runs.mirror import working_folder
from treadle.schedules import require_factory
from treadle.schedules.extend import Extend
from treadle.spec import Interval, Microbatch, OnNonFinite, Option, RunSpec, check_parts


class Trainer:
    """Trains a model; subclass it and override a method, or add a callback.

    It holds what was built, and nothing of a single run: that is in `this_run`. Methods that begin with *create* or
    *calculate* return a value, all others change the trainer.

    Args:
        model: The module to train.
        loss_func: `loss_func(outputs, targets)`; None if the model or overridden methods return the loss.
        optimizer: What updates the weights; or several, in a list or by name, which step together, or in turns if
            `phases` says so. None is enough to evaluate.
        callbacks: Instances or classes, called in this order.
        run_history: Where metrics of epochs are kept; by default in memory.
        metrics: Names such as "accuracy", functions of (outputs, targets), torchmetrics; one, a list or a dict of them.
        train_metrics: Those that training keeps: None, the names and functions among them; True, all; False; or others.
        seed: Seeds Python, NumPy and torch when a run starts. None leaves every generator alone, and the order
            of the data then follows torch's generator at that moment.
        run_dir: The folder of the run; or the URL of one in a bucket, or a `Storage`; None writes nothing.
        precision: The format of forward and backward passes: "fp32", "bf16", "fp16", or "auto", which is bf16 on CUDA
            devices that have units for it and fp32 elsewhere; or what makes a `Precision` of your own for a device.
        loss_scaling: How the loss is scaled in fp16, and what happens when that does not help.
        matmul_precision: How products of fp32 matrices are rounded during the run: "highest", "high" (TF32) or
            "medium"; None leaves torch as it is.
        convolution_precision: The same for convolutions: "highest" or "high" (TF32).
        loss_reduction: Whether the loss of a batch is the "mean" or the "sum" over its samples.
        device: Where to train; by default the GPU of this process if there is one.
        checkpoints: Which checkpoints of the run folder are kept, and how they are written.
        on_nonfinite: What happens when a loss or gradient is nan or infinite: "raise" ends the run and names the
            step; "skip" leaves that update out; "rollback" returns to the last checkpoint and skips its data.
        max_rollbacks: How often a run may roll back before it gives up.
        deterministic: Whether torch must give the same bits each time, and fail where it cannot.
        execution: How a step is carried out: "eager" as torch does, "compile" with `torch.compile`, "graph" recorded on
            the CUDA device and replayed, "auto" the fastest of these, measured there; the `Choice` or the
            `execution.json` of an earlier run; or what makes an `Execution` of your own for a trainer.
        compile: What of a step is compiled, within a recorded one too: True, a mode, or `Compile(...)`.
        microbatch: "auto" halves the micro-batch, and keeps the batch, when memory runs out.
        activation_checkpointing: Patterns for the names or classes of modules whose activations are computed again
            in the backward pass instead of being kept; "auto" takes the blocks that the model is a row of.
        offload_optimizer: Whether the state of the optimizers is kept in the memory of the host.
        timeout: Seconds that several processes wait for each other before they fail; by default 1,800.
        parallel: How several processes share the run: a `Plan`, or "auto", by which each has all of the model; or what
            makes a `Strategy` of your own for the processes.

    >>> import torch
    >>> from torch import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> data = [(torch.ones(2), torch.zeros(1))] * 4
    >>> trainer = Trainer(model, nn.MSELoss(), optim.SGD(model.parameters(), lr=0.1), callbacks=())
    >>> trainer.train(data, num_epochs=2, per_device_batch_size=2).steps
    4
    """

    # What a run was given, and where it is: found here during the run, and after it.
    progress: OfRun[Progress] = OfRun("progress")
    settings: OfRun[RunSpec] = OfRun("settings")
    run_config: OfRun[TrainerRunConfig | None] = OfRun("config")
    train_dataset: OfRun[Any] = OfRun("data.train_dataset")
    eval_dataset: OfRun[Any] = OfRun("data.eval_dataset")
    collate_fn: OfRun[Any] = OfRun("data.collate_fn")
    create_scheduler_fn: OfRun[Any] = OfRun("schedule.factory")
    scheduler: OfRun[Any] = OfRun("schedule.scheduler")
    streams: OfRun[dict[str, Stream]] = OfRun("streams.by_name")
    gradient_norm: OfRun[Tensor | None] = OfRun("updater.norm")
    _loss_tracker: OfRun[LossTracker] = OfRun("losses")
    _train_dl_kwargs: OfRun[dict[str, Any] | None] = OfRun("data.train_kwargs")
    _eval_dl_kwargs: OfRun[dict[str, Any] | None] = OfRun("data.eval_kwargs")
    _train_dataloader = HandedLoader(evaluation=False)
    _eval_dataloader = HandedLoader(evaluation=True)
    # Options that are asked for by their names.
    seed, run_dir, loss_reduction, on_nonfinite = Option(), Option(), Option(), Option()
    deterministic, microbatch, execution, compile = Option(), Option(), Option(), Option()

    custom_methods: frozenset[str] = frozenset()
    """Methods of a subclass's own whose names are near those of the trainer's, and that others call."""
    _pad_uneven_eval_batches = False
    """A name of pytorch-accelerated's: here an evaluation counts every sample once, and pads nothing."""
    ITEMS_REMEDY = (
        'return "num_items_in_batch" beside "loss": the sum of the weights of the targets that are not ignored, '
        "which treadle.ops.loss_items.items_in(loss_func, targets) gives"
    )
    """What to do where a loss is a mean over something else than samples and does not say so."""
    leaves_by_itself = True
    """Whether `train` leaves where a signal came at its end; a door that has more to do then leaves after that."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_trainer_class(cls, Trainer)
        guard_evaluation(cls)
        guard_updates(cls)

    @checked_names
    def __init__(
        self,
        model: nn.Module,
        loss_func: Any,
        optimizer: Optimizer | Mapping[str, Optimizer] | Sequence[Optimizer] | None,
        callbacks: Iterable[Any] = DEFAULT_CALLBACKS,
        run_history: RunHistory | None = None,
        *,
        metrics: Any = None,
        train_metrics: Any = None,
        seed: int | None = None,
        run_dir: str | Path | Storage | None = None,
        precision: PrecisionName | Callable[[torch.device], Precision] = "fp32",
        loss_scaling: LossScaling | None = None,
        matmul_precision: MatmulPrecision | None = None,
        convolution_precision: ConvolutionPrecision | None = None,
        loss_reduction: LossReduction = "mean",
        device: torch.device | str | None = None,
        checkpoints: Policy | None = None,
        on_nonfinite: OnNonFinite = "raise",
        max_rollbacks: int = 3,
        deterministic: bool = False,
        microbatch: Microbatch = "fixed",
        execution: ExecutionOption | Callable[["Trainer"], Execution] = "auto",
        compile: bool | str | Compile = False,
        activation_checkpointing: Sequence[str] | Literal["auto"] | None = None,
        offload_optimizer: bool = False,
        timeout: float | None = None,
        parallel: Plan | Strategy | Literal["auto"] | Callable[[Processes], Strategy] = "auto",
    ) -> None:
        self.spec = RunSpec(
            seed=seed,
            run_dir=None if run_dir is None else working_folder(run_dir),
            precision=precision,
            loss_scaling=loss_scaling,
            matmul_precision=matmul_precision,
            convolution_precision=convolution_precision,
            loss_reduction=loss_reduction,
            device=device,
            checkpoints=Policy() if checkpoints is None else checkpoints,
            on_nonfinite=on_nonfinite,
            max_rollbacks=max_rollbacks,
            deterministic=deterministic,
            microbatch=microbatch,
            execution=execution,
            compile=Compile.of(compile or execution == "compile"),
            activation_checkpointing=activation_checkpointing or (),
            offload_optimizer=offload_optimizer,
            timeout=timeout,
            parallel=parallel,
        )
        check_parts(model, loss_func, optimizer, callbacks)
        self.model, self.loss_func, self.optimizer = model, loss_func, optimizer
        self.processes = Processes(device, timeout=timeout, folder=self.spec.run_dir)
        self.exchange = GradientExchange(self.processes, self)
        check_execution(execution, self.processes.device, self.spec.compile)
        agree = self.processes.make_largest if self.processes.distributed else None
        self.precision = precision_for(precision, self.processes.device, loss_scaling, agree)
        self.parallel = strategy_for(parallel, self.processes)
        self.parallel.share_scale(self.precision)
        self.single_precision = SinglePrecision(matmul_precision, convolution_precision)
        self.activation_checkpointing = ActivationCheckpointing(model, self.spec.activation_checkpointing)
        check_offload(offload_optimizer, self.optimizers().values(), execution)
        self.run_history: RunHistory = InMemoryRunHistory() if run_history is None else run_history
        self.callback_handler = CallbackHandler(callbacks)
        self.callback_handler.on_stop = lambda error: self.this_run.stop.take(error)
        self.max_batches_per_epoch: int | None = active_limit()
        self.track_gradient_norm = False
        self.tracked, self._metrics = Tracked(), GivenMetrics(metrics, train_metrics)
        self.this_run = self.create_run()
        self.fire("on_init_end")
        self.check_plan()

    def check_plan(self) -> None:
        """Refuse what the plan cannot do, before anything runs."""
        check_trainer(self, Trainer)
        if not self.has_custom_loop:
            check_closures(self, Trainer)

    # Training -----------------------------------------------------------------------------------------------

    @checked_names
    def train(
        self,
        train_dataset: Any,
        num_epochs: int | None = None,
        eval_dataset: Any = None,
        per_device_batch_size: int = DEFAULT_SIZE,
        max_num_train_steps: int | None = None,
        gradient_accumulation_steps: int = 1,
        gradient_clip_value: float | None = None,
        create_scheduler_fn: Callable[[Optimizer], Any] | None = None,
        train_dataloader_kwargs: dict[str, Any] | None = None,
        eval_dataloader_kwargs: dict[str, Any] | None = None,
        reset_run_history: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        resume_from: str | os.PathLike[str] | None = None,
        *,
        max_steps: int | None = None,
        clip_norm: float | None = None,
        scheduler_interval: Interval | None = None,
        scheduler_metric: str | None = None,
        eval_every: int | str | None = "1 epoch",
        log_every: int | str = 50,
        save_every: int | str | None = None,
        resume: Literal["auto"] | None = None,
        extend: Extend | None = None,
        lr_scaling: LRScaling | None = None,
    ) -> TrainResult:
        """Train on `train_dataset` and return how it went.

        Args:
            train_dataset: A map-style or iterable data set, a `DataLoader`, or an iterable of ready batches.
            num_epochs: Passes over the data; None trains until `max_steps`.
            eval_dataset: What to evaluate on, in any of these forms.
            per_device_batch_size: Samples per micro-batch on each process, where the trainer makes the loader.
            max_num_train_steps: The same as `max_steps`.
            gradient_accumulation_steps: Micro-batches in one update.
            gradient_clip_value: Bounds every element of the gradient.
            create_scheduler_fn: Called with the optimizer, returns its scheduler; placeholders in it are replaced.
            train_dataloader_kwargs: Arguments of the training loader, over the defaults.
            eval_dataloader_kwargs: Arguments of the evaluation loader, over the defaults.
            reset_run_history: Whether the metrics of earlier runs are forgotten.
            collate_fn: Joins samples into a batch.
            resume_from: A folder that `save_training_state` wrote, to resume from.
            max_steps: The most updates; with `num_epochs`, whichever ends first.
            clip_norm: Bounds the norm of the whole gradient.
            scheduler_interval: Whether the scheduler moves on per "step" or per "epoch"; by default per step, and
                per epoch if a metric drives it.
            scheduler_metric: The metric that drives the scheduler, for one whose `step` takes it.
            eval_every: How often to evaluate: "500 steps", "1 epoch" or a number of steps.
            log_every: How often scalars are read from the device.
            save_every: How often the run is saved into its folder; by default after every epoch.
            resume: "auto" resumes the run in `run_dir` if there is one; None refuses to touch it.
            extend: What a schedule made for a shorter run does when the run is continued with a larger limit:
                "stretch" to the new length, or "hold" its last rate.
            lr_scaling: How the learning rates follow the samples of an update, which are those of all processes.
        """
        own = self.overrides("create_train_dataloader") or self.overrides("create_eval_dataloader")
        spec = self.spec.for_training(
            num_epochs=num_epochs,
            max_steps=max_steps,
            max_num_train_steps=max_num_train_steps,
            per_device_batch_size=resolve_batch_size(
                per_device_batch_size, train_dataset, eval_dataset, used=own, tell=self.print
            ),
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_clip_value=gradient_clip_value,
            clip_norm=clip_norm,
            scheduler_interval=scheduler_interval,
            scheduler_metric=scheduler_metric,
            eval_every=eval_every,
            log_every=log_every,
            save_every=save_every,
            resume_from=resume_from,
            resume=resume,
            extend=extend,
            lr_scaling=lr_scaling,
        )
        if self.optimizer is None:
            raise ConfigError("this trainer has no optimizer, so it can only evaluate; build it with optimizer=")
        factory = None if create_scheduler_fn is None else require_factory(create_scheduler_fn)
        if reset_run_history and resume_from is None:
            self.run_history.reset()
        run = self.this_run = self.create_run()
        run.spec, run.schedule.factory = spec, factory
        run.data = RunData(train_dataset=train_dataset, eval_dataset=eval_dataset, collate_fn=collate_fn)
        run.prepare(train_dataloader_kwargs, eval_dataloader_kwargs)
        exactly = Deterministic(self.device) if spec.deterministic else nullcontext()
        alone = run_lock(spec.run_dir, self.processes, lambda: not run.stop.pauses)
        signals = run.stop.handling_signals(can_save=spec.run_dir is not None)
        with alone, self.storage, signals, exactly, self.single_precision, run.updater.saving_memory():
            result = self.carry_out()
        # Outside of the block: the run came to its end, and its status must say finished before the process goes.
        if self.leaves_by_itself:
            run.leave_after_end()
        return result

    def carry_out(self) -> TrainResult:
        """Open the run that is prepared, run it, and close it however it ends."""
        run = self.this_run
        with run.opened():
            if not self.overrides("_run_training"):
                with custom_updates(self):
                    self._run_training()
            else:
                with self.callback_handler.session(None, self), CustomRun(self), custom_updates(self):
                    self._run_training()
        return build_result(run)

    def _run_training(self) -> None:
        """Run the epochs, with the methods and events that come before and after them."""
        run, stop = self.this_run, self.this_run.stop
        run.in_core_run = True
        self.training_run_start()
        with self.callback_handler.session("on_training_run_start", self):
            run.state.restore()
            stop.reason = self._run_epochs() if stop.over is None else run.already_finished(stop.over)
            run.finish()
            self.training_run_end()
            self.fire("on_training_run_end")
        run.in_core_run = False

    def _run_epochs(self) -> str:
        """Run epochs until a limit is reached or somebody wants to stop; return why."""
        run, stop = self.this_run, self.this_run.stop
        run.state.warn_untracked()
        try:
            stop.begin_loop()
            if self.progress.mid_epoch and run.limit_reached():
                # The run was over inside an epoch, and is started again: only the end of that epoch is due.
                run.epoch()
            while (reason := run.limit_reached()) is None:
                try:
                    run.epoch()
                except RollBack as request:
                    run.checkpointer.roll_back(request)
        except StopTrainingError as error:
            reason = str(error) or "a callback asked to stop"
            stop.end_loop(reason)
            self.print(reason)
            self.fire("on_stop_training_error")
        stop.looping = False
        return reason

    @property
    def has_custom_loop(self) -> bool:
        """Whether the loop of an epoch is the user's own."""
        return self.overrides("_run_train_epoch")

    def _run_train_epoch(self, train_dl: Any) -> bool | None:
        """Train one epoch: every phase, every window, one update each; return whether all steps of the run are made."""
        run, progress = self.this_run, self.progress
        with training_on(self, train_dl):
            run.in_core_loop = True
            run.begin_epoch()
            done = progress.visit
            for visit, phase in enumerate(self.phases(progress.epoch)):
                if visit < done:
                    continue
                run.streams.replay(replaying=False)
                for window in run.windows(phase):
                    run.updater.attempt(phase, window)
                    run.after_update()
                if run.limit_reached():
                    break
                progress.finish_visit()
            run.end_epoch()
        run.in_core_loop = False
        return progress.step >= run.due.last_step

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield the phases of an epoch, in order; override it to alternate losses, data or optimizers.

        The base has one phase: all of the training data with `calculate_train_batch_loss`. The same phases must
        come for the same epoch each time, for a run is resumed by asking for them again.
        """
        assert self._train_dataloader is not None
        yield Phase(
            "train",
            self._train_dataloader,
            self.calculate_train_batch_loss,
            self.this_run.updater.all_optimizers,
            scheduler=self.scheduler,
            accumulation=self.settings.gradient_accumulation_steps,
        )

    # Methods to override ------------------------------------------------------------------------------------

    def training_run_start(self) -> None:
        """Called when everything is ready and the first epoch is about to begin."""

    def train_epoch_start(self) -> None:
        """Put the model into training mode."""
        self.model.train()

    def train_epoch_end(self) -> None:
        """Called after the last batch of an epoch, before its loss is recorded."""

    def training_run_epoch_end(self) -> None:
        """Called when an epoch's training and evaluation are both done."""

    def training_run_end(self) -> None:
        """Called when the run is over, stopped runs included."""

    # An update ----------------------------------------------------------------------------------------------

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update from the micro-batches in `window`."""
        self.calculate_gradients(phase, window)
        self.apply_gradients(phase)

    def calculate_gradients(self, phase: Phase, window: list[Batch]) -> None:
        """Accumulate the gradient of `window`; the host never waits for the device."""
        self.this_run.updater.calculate(phase, window)

    def apply_gradients(self, phase: Phase) -> None:
        """Divide by the window's weight over all ranks, clip, step, schedule, zero."""
        self.this_run.updater.apply(phase)

    def normalise_gradients(self, phase: Phase) -> None:
        """Make the gradient that of one batch with all samples of the window, over all ranks."""
        self.this_run.updater.normalise(phase)

    def _clip_gradients(self) -> None:
        """Bound the gradient of the update, once, over all parameters of its optimizer."""
        self.this_run.updater.clip(self.settings.clip_norm, self.settings.gradient_clip_value)

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss of one micro-batch.

        Returns:
            A dict with "loss", "model_outputs" and "batch_size"; other entries reach the callbacks. If the loss
            is a mean over something else than samples, such as tokens, "num_items_in_batch" says over how many.
        """
        if self.loss_func is None and self.this_run.updater.scale.pending:
            return own_loss(self.model, batch)
        plain = self.precision.plain
        output = default_loss(self.model, self.loss_func if plain else self.precision.for_loss(self.loss_func), batch)
        return count_targets(output, self.loss_func, batch) if self.this_run.updater.scale.pending else output

    def backward_step(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, which is already this micro-batch's share of the update."""
        self.this_run.updater.add_gradient(loss)

    def optimizer_step(self) -> None:
        """Update the weights."""
        self.this_run.updater.step()

    def scheduler_step(self) -> None:
        """Move the schedule on: by one update, or, where a metric drives it, by that metric's latest value."""
        self.this_run.schedule.step()

    def optimizer_zero_grad(self) -> None:
        """Forget the gradients; with several optimizers all of them, since a loss may reach another's weights."""
        self.this_run.updater.zero_grad()

    _perform_forward_and_backward_passes = perform_passes
    update_metrics = update_metrics

    def _update_loss_tracker(self, loss: Any, batch_size: Any) -> None:
        """Add a loss to the mean of the epoch; it stays on the device until a log is due."""
        self._loss_tracker.update(loss, batch_size)

    def _add_epoch_loss_to_run_history(self, metric_name: str = "train_loss_epoch") -> None:
        """Record the mean loss of the epoch, over the samples of all processes, under `metric_name`."""
        self.this_run.log.record_epoch_loss(metric_name)

    # Data, model, settings, schedule ------------------------------------------------------------------------

    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        """Return the loader for training; `train_dl_kwargs` win over the defaults."""
        return self.this_run.streams.training_loader(self.get_default_train_dl_kwargs(batch_size), train_dl_kwargs)

    def get_default_train_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the loader arguments of training that were not given."""
        workers = 0 if needs_no_workers(self.train_dataset, self.collate_fn) else default_workers(self.device)
        pins = self.device.type == "cuda"
        return {"shuffle": True, "batch_size": batch_size, "pin_memory": pins, "num_workers": workers}

    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
        """Return the loader for evaluation; `eval_dl_kwargs` win over the defaults."""
        return self.this_run.streams.evaluation_loader(self.get_default_eval_dl_kwargs(batch_size), eval_dl_kwargs)

    def get_default_eval_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the loader arguments of an evaluation that were not given."""
        return {"shuffle": False, "batch_size": batch_size, "pin_memory": self.device.type == "cuda", "num_workers": 0}

    def _prepare_dataloaders(self) -> None:
        """Make the streams that batches of training and evaluation are drawn from, out of the loaders."""
        self.this_run.streams.open()

    def add_stream(self, name: str, source: Any, **loader_kwargs: Any) -> Stream:
        """Add data for a phase of your own, and return the stream to draw it from.

        Call it in `training_run_start` or later; its place is saved with the run.
        """
        return self.this_run.streams.add(name, source, **loader_kwargs)

    def _prepare_model_and_optimizer(self) -> nn.Module:
        """Bring the model to the device and, with several processes, wrap its loss for data parallelism."""
        self.this_run.updater.prepare_model()
        return self.model

    def _create_run_config(
        self,
        per_device_batch_size: int,
        num_epochs: int | None,
        gradient_accumulation_steps: int,
        max_num_train_steps: int | None,
        gradient_clip_value: float | None,
    ) -> TrainerRunConfig:
        """Return the settings of the run, resolved; the run goes by what an override changes."""
        return resolved_config(self, num_epochs, gradient_accumulation_steps, max_num_train_steps, gradient_clip_value)

    def create_scheduler(self) -> Any:
        """Return the scheduler: the factory given to `train`, its placeholders replaced, called with the optimizer."""
        return self.this_run.schedule.create()

    # Evaluation and prediction ------------------------------------------------------------------------------

    def evaluate(
        self,
        dataset: Any = None,
        per_device_batch_size: int = DEFAULT_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Any = None,
    ) -> dict[str, Any]:
        """Run one evaluation epoch on `dataset` and return its metrics by name.

        Every metric that was recorded meanwhile is returned by its name, the loss as `evaluation_loss`. The metrics
        of training stay as they are: in the history these are kept apart, as `evaluation_<name>`.

        Args:
            dataset: What to evaluate on; by default the evaluation data of the last `train`.
            per_device_batch_size: Samples per batch on each process; by default those of the last `train`, or 8.
            dataloader_kwargs: Arguments for the loader, over the defaults.
            collate_fn: Joins samples into a batch; by default the one of the last `train`.
        """
        data = self.eval_dataset if dataset is None else dataset
        if data is None:
            raise ConfigError("evaluate() has no data; pass a dataset")
        refuse_idle_collate(collate_fn, data)
        own = self.overrides("create_eval_dataloader")
        size = resolve_batch_size(self.this_run.evaluator.size(per_device_batch_size), data, used=own, tell=self.print)
        return self.this_run.evaluator.evaluate(data, size, dataloader_kwargs, collate_fn)

    def _run_evaluation(self) -> None:
        """Run the one evaluation epoch of `evaluate`, with what goes before and after it."""
        self.evaluation_run_start()
        with self.callback_handler.session("on_evaluation_run_start", self):
            self._run_eval_epoch(self._eval_dataloader, is_training=False)
            self.evaluation_run_end()
            self.fire("on_evaluation_run_end")

    def predict(
        self,
        dataset: Any,
        per_device_batch_size: int = DEFAULT_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Any = None,
    ) -> Any:
        """Return the model's outputs for every sample of `dataset`, in order, on every process.

        Outputs that are tensors come back as one tensor on the CPU, other outputs as a list of batches.
        """
        refuse_idle_collate(collate_fn, dataset)
        size = resolve_batch_size(self.this_run.evaluator.size(per_device_batch_size), dataset, tell=self.print)
        return self.this_run.evaluator.predict(dataset, size, dataloader_kwargs, collate_fn)

    def calculate_prediction(self, batch: Batch) -> Any:
        """Return the outputs of the model for one batch; override it for other than `model(inputs)`."""
        if self.parallel.is_pipeline:
            return self.parallel.forward(self.model, *model_inputs(batch))
        return self.model(*model_inputs(batch)[0], **model_inputs(batch)[1])

    def evaluation_run_start(self) -> None:
        """Called before `evaluate` begins."""

    def evaluation_run_end(self) -> None:
        """Called after `evaluate` ends."""

    def eval_epoch_start(self) -> None:
        """Put the model into evaluation mode; it gets the mode it was found in back afterwards."""
        self.model.eval()

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return `{"loss": ..., "model_outputs": ..., "batch_size": ...}` for one batch, without gradients."""
        if self.parallel.is_pipeline:
            return self.parallel.evaluate(self.model, self.precision.for_loss(self.loss_func), batch)
        output = default_loss(self.model, self.precision.for_loss(self.loss_func), batch)
        return count_targets(output, self.loss_func, batch)

    def eval_epoch_end(self) -> None:
        """Called after the last batch of an evaluation, before its loss is recorded."""

    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> dict[str, Any]:
        """Run one evaluation epoch over `valid_dl`, record its metrics and return them."""
        return self.this_run.evaluator.run_epoch(valid_dl, is_training=is_training, is_intermediate=is_intermediate)

    # Files, beside those of a run: what they hold is said where they are written ----------------------------

    save_checkpoint = trainer_files.save_checkpoint
    load_checkpoint = trainer_files.load_checkpoint
    import_checkpoint = trainer_files.import_checkpoint
    save_training_state = trainer_files.save_training_state
    load_training_state = trainer_files.load_training_state

    # The parts of a run, which a door may give others ----------------------------------------------------------

    def create_run(self) -> Run:
        """Return a run, which has not begun."""
        return Run(self)

    def create_state(self) -> RunState:
        """Return what says what the state of a run is, and brings it back."""
        return RunState(self)

    def create_checkpointer(self, folder: Path) -> RunCheckpointer:
        """Return what keeps the run that begins in its folder."""
        return RunCheckpointer(self, self.this_run.state, folder)

    def create_log(self) -> Log:
        """Return what reads losses from the device and acts on those that are not finite."""
        return Log(self)

    def create_streams(self) -> Streams:
        """Return what makes the streams of a run."""
        return Streams(self)

    def create_updater(self) -> Updater:
        """Return what makes the updates of a run by these methods."""
        return Updater(self)

    def create_due(self) -> Due:
        """Return what says when the run logs, evaluates, saves and ends: by default what `train` was asked for."""
        return Due.of(self.settings, evaluates=self._eval_dataloader is not None, alone=not self.processes.distributed)

    def create_execution(self) -> Execution:
        """Return what carries out the updates of this run."""
        return execution_of(self)

    def create_recorder(self) -> Recorder | None:
        """Return what records steps on this device; None if nothing can."""
        return CudaGraphs(self.device) if self.device.type == "cuda" else None

    # Looking at it, talking to it ----------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where this process trains."""
        return self.processes.device

    @property
    def storage(self) -> EventStorage:
        """Where scalars are put during a run."""
        return self.run_history.storage

    @property
    def is_compiled(self) -> bool:
        """Whether the trainer has forward passes compiled."""
        return self.spec.compile is not None or self.this_run.verbs is not None

    @property
    def _accelerator(self) -> AcceleratorFacade:
        return AcceleratorFacade(self)

    def optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers by name; a single one is called "optimizer"."""
        return as_named(self.optimizer)

    def track(self, **objects: Any) -> Self:
        """Save each object with every checkpoint of this trainer, under its keyword."""
        self.tracked.add(**objects)
        return self

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine only, and into the log of the run's folder if it has one."""
        self._accelerator.print(*args, **kwargs)
        self.this_run.checkpointer.log(" ".join(map(str, args)))

    def gather(self, tensor: Tensor, padding_value: float | None = None) -> Tensor:
        """Return the rows of `tensor` from every process, in rank order; see `Processes.gather`."""
        return self.processes.gather(tensor, padding_value)

    def get_model(self, keep_torch_compile: bool = True) -> nn.Module:
        """Return the user's module, without what `torch.compile` put around it if asked."""
        return self.model if keep_torch_compile else getattr(self.model, "_orig_mod", self.model)

    def fire(self, event: str, **kwargs: Any) -> None:
        """Tell the callbacks that `event` happens."""
        self.callback_handler.call_event(event, self, **kwargs)

    def overrides(self, name: str) -> bool:
        """Whether the class of this trainer has a method of this name of its own."""
        return getattr(type(self), name) is not getattr(Trainer, name)

    def show_loop(self) -> None:
        """Print which callback acts at which event, in the order of a run."""
        width = max(map(len, EVENTS))
        for event in EVENTS:
            names = ", ".join(type(callback).__name__ for callback in self.callback_handler.listeners(event)) or "-"
            self.print(f"{event:<{width}}  {names}")

    @property
    def how_to_resume(self) -> str:
        """What a run that was asked to leave says after where it is saved."""
        if self.settings.resume == "auto":
            return "start the same command to resume"
        return "to resume, pass resume='auto' and start the same command"

    def request_stop(self, reason: str, *, for_good: bool = False) -> None:
        """Ask for the run to end in good order, on every process, at the next point where they agree.

        Args:
            reason: Why, in words.
            for_good: Whether the run is over by that; else it resumes when it is started again.
        """
        self.this_run.stop.request(reason, for_good=for_good)
