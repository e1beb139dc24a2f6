"""Setting a run up: streams, the model on its device, resolved settings, the scheduler, what is tracked."""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from treadle._evaluation import Evaluation
from treadle._saving import ModelState
from treadle.data import RandomState, Stream
from treadle.data.loaders import loader_arguments, needs_no_workers, refuse_idle_collate
from treadle.data.streams import Streams
from treadle.errors import ConfigError
from treadle.execution import CompiledVerbs, CudaGraphs, Execution, GraphExecution, Recorder, prefer_fused
from treadle.execution.fused import state_to_weights
from treadle.loop import Due
from treadle.loop.cadence import AGREEMENT_STEPS
from treadle.losses import name_of
from treadle.lr_scaling import scale_rates
from treadle.memory import forget_peak, keep_host_memory
from treadle.placeholders import TrainerPlaceholderValues, replace_placeholders
from treadle.progress import Progress
from treadle.run import Run
from treadle.run_config import TrainerRunConfig, checked_config
from treadle.schedules.factory import require_scheduler


class SetUp(Evaluation):
    """Everything between the call of `train` and the first epoch."""

    def _set_up_run(
        self, train_kwargs: dict[str, Any] | None, eval_kwargs: dict[str, Any] | None, reset_history: bool
    ) -> None:
        self.progress = self.storage.progress = self._loss_tracker.progress = Progress()
        self.this_run = Run(self)  # type: ignore[arg-type]
        self.update_applied = None
        if reset_history:
            self.run_history.reset()
        self.this_run.streams.seed_run()
        self.precision.begin_run()
        self.prepares_data = True
        try:
            self._create_dataloaders(train_kwargs, eval_kwargs)
            self._prepare_dataloaders()
        finally:
            self.prepares_data = False
        self.this_run.streams.open()
        self._prepare_model_and_optimizer()
        forget_peak(self.device)
        if self.device.type == "cpu":
            keep_host_memory()
        for optimizer in self._optimizers:
            # A run that was stopped may have left gradients behind.
            optimizer.zero_grad()
        self._resolve_config()
        self._scale_rates()
        self.scheduler = self._make_scheduler()
        self.scheduled_by_step = self.settings.interval_of(self.scheduler) == "step"
        self.this_run.due = self.create_due()
        updater = self.this_run.updater
        updater.prepare(None if self._train_dataloader is None else self._train_dataloader.batch_size)
        self._loss_tracker.skip_nonfinite = updater.gate is not None
        self._track_run()
        self.this_run.execution = self.create_execution()

    def _scale_rates(self) -> None:
        """Have the learning rates follow the batch, whatever an earlier run of this trainer made of them."""
        assert self.run_config is not None
        scaling, batch = self.settings.lr_scaling, self.run_config.train_total_batch_size
        factor = scaling.factor(batch)
        if factor != self._rate_factor:
            for optimizer in self._optimizers:
                scale_rates(optimizer, factor / self._rate_factor)
            self._rate_factor = factor
        if scaling.rule != "none":
            self.print(scaling.describe(batch))

    def create_execution(self) -> Execution:
        """Return what carries out the updates of this run."""
        own: Any = self
        if self.compile is not None and (self._verbs is None or self._verbs.model is not self.model):
            self._verbs = CompiledVerbs(self.compile, self.model)
        if callable(self.execution):
            return self.execution(own)
        recorder = self.create_recorder() if self.execution in ("graph", "auto") else None
        return Execution(own) if recorder is None else GraphExecution(own, recorder, required=self.execution == "graph")

    def create_recorder(self) -> Recorder | None:
        """Return what records steps on this device; None if nothing can."""
        return CudaGraphs(self.device) if self.device.type == "cuda" else None

    @contextmanager
    def _saving_memory(self) -> Iterator[None]:
        """Let the run take less memory of the device, in the ways that were asked for."""
        with ExitStack() as stack:
            stack.enter_context(self.activation_checkpointing)
            for offloaded in self.this_run.updater.offloaded:
                stack.enter_context(offloaded)
            yield

    def create_streams(self) -> Streams:
        """Return what makes the streams of a run."""
        own: Any = self
        return Streams(own)

    def create_due(self) -> Due:
        """Return what says when the run logs, evaluates, saves and ends: by default what `train` was asked for."""
        settings = self.settings
        return Due(
            last=settings.max_steps,
            log=settings.log_every,
            evaluate=None if self._eval_dataloader is None else settings.eval_every,
            save=settings.save_every,
            agree=AGREEMENT_STEPS if self.processes.distributed else 0,
        )

    def _create_dataloaders(self, train_kwargs: dict[str, Any] | None, eval_kwargs: dict[str, Any] | None) -> None:
        """Have the loaders of training and evaluation made, by the verbs for them."""
        self._train_dl_kwargs, self._eval_dl_kwargs = train_kwargs, eval_kwargs
        size = self.settings.per_device_batch_size
        self._train_dataloader = self.create_train_dataloader(size, train_kwargs)
        self._eval_dataloader = None if self.eval_dataset is None else self.create_eval_dataloader(size, eval_kwargs)

    def _prepare_dataloaders(self) -> None:
        """Make the streams that batches of training and evaluation are drawn from, out of the loaders."""
        self.this_run.streams.open()

    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        """Return the loader for training; `train_dl_kwargs` win over the defaults."""
        defaults = self.get_default_train_dl_kwargs(batch_size)
        kwargs = loader_arguments(self.train_dataset, defaults, train_dl_kwargs, "train_dataloader_kwargs")
        sources = [self.train_dataset] if self.eval_dataset is None else [self.train_dataset, self.eval_dataset]
        refuse_idle_collate(self.collate_fn, *sources)
        return self.this_run.streams.loader(
            self.train_dataset, **{"shuffle": True, "collate_fn": self.collate_fn, **kwargs}
        )

    def get_default_train_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the loader arguments of training that were not given."""
        workers = 0 if needs_no_workers(self.train_dataset, self.collate_fn) else _default_workers(self.device)
        pins = self.device.type == "cuda"
        return {"shuffle": True, "batch_size": batch_size, "pin_memory": pins, "num_workers": workers}

    def add_stream(self, name: str, source: Any, **loader_kwargs: Any) -> Stream:
        """Add data for a phase of one's own, and return the stream to draw it from.

        Call it in `training_run_start` or later; its place is saved with the run.
        """
        return self.this_run.streams.add(name, source, **loader_kwargs)

    def _prepare_model_and_optimizer(self) -> nn.Module:
        """Bring the model to the device and, with several processes, wrap its loss for data parallelism."""
        self.prepare_model()
        self.precision.check(self.model)
        self._optimizers = list(self.optimizers().values())
        if not self.offload_optimizer:
            for optimizer in self._optimizers:
                state_to_weights(optimizer)
        if not any(getattr(module, "sparse", False) for module in self.model.modules()):
            # A fused optimizer does not take the sparse gradients of embeddings that ask for them.
            for optimizer in self._optimizers:
                prefer_fused(optimizer)
        self.this_run.shared_loss.prepare(self.model, self._optimizers)
        return self.model

    def prepare_model(self) -> None:
        """Bring the model to the device, or what this process holds of it."""
        if not self.parallel.prepared:
            self._check_held()
        self.parallel.prepare(self.model, list(self.optimizers().values()))
        self.parallel.place(self.model)

    def _check_held(self) -> None:
        groups = [group for optimizer in self.optimizers().values() for group in optimizer.param_groups]
        held = {id(parameter) for group in groups for parameter in group["params"]}
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if held and trainable and not any(id(parameter) in held for parameter in trainable):
            raise ConfigError("the optimizer holds no parameter of this model; build it from model.parameters()")

    def _resolve_config(self) -> None:
        """Have the settings of the run resolved, and go by what came of it."""
        settings = self.settings
        asked: dict[str, Any] = {
            "per_device_batch_size": settings.per_device_batch_size,
            "num_epochs": settings.num_epochs,
            "gradient_accumulation_steps": settings.accumulation,
            "max_num_train_steps": settings.max_steps,
            "gradient_clip_value": settings.clip_value,
        }
        own = SetUp._create_run_config(self, **asked)
        self.run_config = checked_config(self._create_run_config(**asked), own)
        self._settings = settings.as_in(self.run_config, own)

    def planned_updates(
        self, num_epochs: int | None, max_steps: int | None, accumulation: int
    ) -> tuple[int | None, int | None, int | None]:
        """Return how many updates an epoch has, how many of these move a schedule, and the most that a run makes.

        What cannot be known is None.
        """
        batches = None if self._train_dataloader is None else self._train_dataloader.length
        updates = None if batches is None else math.ceil(batches / accumulation)
        limits = [] if max_steps is None else [max_steps]
        if num_epochs is not None and updates is not None:
            limits.append(num_epochs * updates)
        return updates, updates, min(limits, default=None)

    def _create_run_config(
        self,
        per_device_batch_size: int,
        num_epochs: int | None,
        gradient_accumulation_steps: int,
        max_num_train_steps: int | None,
        gradient_clip_value: float | None,
    ) -> TrainerRunConfig:
        """Return the settings of the run, resolved; the run goes by what an override changes."""
        settings, size, accumulation = self._settings, self.parallel.data_size, gradient_accumulation_steps
        train_size = None if self._train_dataloader is None else self._train_dataloader.batch_size
        eval_size = None if self._eval_dataloader is None else self._eval_dataloader.batch_size
        updates, scheduled, limit = self.planned_updates(num_epochs, max_num_train_steps, accumulation)
        return TrainerRunConfig(
            num_epochs=num_epochs,
            train_per_device_batch_size=train_size,
            train_dl_kwargs=self._train_dl_kwargs,
            eval_per_device_batch_size=eval_size,
            eval_dl_kwargs=self._eval_dl_kwargs,
            gradient_accumulation_steps=accumulation,
            gradient_clip_value=gradient_clip_value,
            clip_norm=None if settings is None else settings.clip_norm,
            train_total_batch_size=None if train_size is None else train_size * size * accumulation,
            eval_total_batch_size=None if eval_size is None else eval_size * size,
            num_update_steps_per_epoch=updates,
            num_local_update_steps_per_epoch=scheduled,
            max_num_train_steps=limit,
            is_local_process_zero=self.processes.is_local_main,
            is_world_process_zero=self.processes.is_main,
            is_distributed=self.processes.distributed,
            mixed_precision=self.precision.kind,
            num_processes=self.processes.size,
            parallel=self.parallel.describe(),
            device=str(self.device),
            seed=self.seed,
            loss_reduction=self.loss_reduction,
            on_nonfinite=self.on_nonfinite,
            microbatch=self.microbatch,
            deterministic=self.deterministic,
            matmul_precision=self.single_precision.matmul,
            convolution_precision=self.single_precision.convolution,
            loss_scaling=asdict(self.precision.loss_scaling) if self.precision.initial == "fp16" else None,
            activation_checkpointing=list(self.activation_checkpointing.patterns) or None,
            offload_optimizer=self.offload_optimizer,
            execution=self.execution if isinstance(self.execution, str) else name_of(self.execution),
            compile=None if self.compile is None else self.compile.describe(),
            eval_every=None if settings is None or self.eval_dataset is None else str(settings.eval_every),
            log_every="" if settings is None else str(settings.log_every),
            save_every=None if settings is None or settings.save_every is None else str(settings.save_every),
            run_dir=None if self.run_dir is None else str(self.run_dir),
            lr_scaling=None if settings is None or settings.lr_scaling.rule == "none" else asdict(settings.lr_scaling),
        )

    def placeholder_values(self) -> dict[str, int | None]:
        """Return what the placeholders in a scheduler factory stand for in this run."""
        assert self.run_config is not None
        assert self._train_dataloader is not None
        updates = self.run_config.num_local_update_steps_per_epoch
        values = {
            TrainerPlaceholderValues.NUM_EPOCHS: self._epochs_to_schedule(updates),
            TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH: updates,
            TrainerPlaceholderValues.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: updates,
            TrainerPlaceholderValues.TRAIN_DATALOADER_LEN: self._train_dataloader.length,
            TrainerPlaceholderValues.EVAL_DATALOADER_LEN: (
                None if self._eval_dataloader is None else self._eval_dataloader.length
            ),
        }
        return {placeholder.name: value for placeholder, value in values.items()}

    def _epochs_to_schedule(self, updates: int | None) -> int | None:
        if self.settings.num_epochs is not None or self.settings.max_steps is None or updates is None:
            return self.settings.num_epochs
        return math.ceil(self.settings.max_steps / updates)

    def _make_scheduler(self) -> Any:
        """Return what `create_scheduler` makes; None only if nobody asked for a scheduler.

        Raises:
            ConfigError: A factory was given and nothing came of it, or something else than a scheduler.
        """
        scheduler = self.create_scheduler()
        own = type(self).create_scheduler.__module__.partition(".")[0] != "treadle"
        maker = f"{type(self).__name__}.create_scheduler" if own else "create_scheduler_fn"
        if scheduler is not None or self.create_scheduler_fn is not None:
            return require_scheduler(scheduler, maker=maker)
        if own:
            self.print(f"{maker} returned None: the learning rates stay as they are")
        return None

    def create_scheduler(self) -> Any:
        """Return the scheduler: the factory given to `train`, its placeholders replaced, called with the optimizer."""
        if self.create_scheduler_fn is None:
            return None
        if len(self.optimizers()) > 1:
            raise ConfigError(
                "create_scheduler_fn is for one optimizer; with several, override create_scheduler "
                "and give each phase its scheduler"
            )
        factory = replace_placeholders(self.create_scheduler_fn, self.placeholder_values())
        return factory(next(iter(self.optimizers().values())))

    def _track_run(self) -> None:
        """Name everything that changes while the run goes on; a checkpoint is this and nothing else."""
        self.track(model=ModelState(self.model))
        for name, optimizer in self.optimizers().items():
            self.track(**{name: self.optimizer_state(optimizer)})
        self.tracked.remove("scheduler")
        if self.scheduler is not None:
            self.track(scheduler=self.scheduler)
        for name, stream in self.streams.items():
            self.track(**{f"stream_{name}": stream})
        self.tracked.remove("stream_evaluation")
        if self._eval_dataloader is not None:
            self.track(stream_evaluation=self._eval_dataloader)
        self.track(
            precision=self.precision,
            progress=self.progress,
            history=self.run_history,
            losses=self._loss_tracker,
            callbacks=self.callback_handler,
            random=RandomState(),
            poisoned=self.this_run.updater.skipped,
            micro_batches=self.this_run.updater.splits,
        )
        self.tracked.remove("gate")
        if self.this_run.updater.gate is not None:
            self.track(gate=self.this_run.updater.gate)


def _default_workers(device: torch.device) -> int:
    """Workers pay where a GPU would wait; on the CPU they only take its cores away."""
    if device.type != "cuda":
        return 0
    per_process = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(8, per_process))
