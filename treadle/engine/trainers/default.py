"""The trainer that is built from a config."""

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from treadle.config import LazyConfig, get_config, instantiate, try_get_key
from treadle.config.resolution import resolve_batch_sizes, resolve_train
from treadle.console.lines import DETAIL, fields
from treadle.data.batch import mover
from treadle.data.seeds import fold_seed, seed_generators
from treadle.engine import dist, hooks
from treadle.engine.batch_arguments import bind_placement
from treadle.engine.checkpointer import NEEDS_FOLDER, Checkpointer
from treadle.engine.config import builders as building
from treadle.engine.config.builders import set_activation_checkpoint
from treadle.engine.config.keys import check_keys, warn_unknown_keys
from treadle.engine.config.options import (
    add_pipeline_stages,
    check_supported,
    configured_device,
    core_options,
    data_size,
    read_execution,
    read_lr_scaling,
    read_plan,
    read_precision,
)
from treadle.engine.config.saved import config_to_save
from treadle.engine.core import CoreOptions, StepPlan
from treadle.engine.evaluation import DatasetEvaluator, inference_on_dataset
from treadle.engine.hooks.base import HookBase
from treadle.engine.hooks.events import BY_THE_STEP, MOMENTS
from treadle.engine.hooks.hook_list import is_callback
from treadle.engine.log import default_writers
from treadle.engine.setup import setup_logger
from treadle.engine.trainers.base import TrainerBase
from treadle.engine.trainers.eager import EagerTrainer, core_step, custom_step, is_core_step
from treadle.engine.trainers.graph import BUDGET, Graph, GraphTrainer
from treadle.errors import CheckpointError, ConfigError
from treadle.events import flatten_results
from treadle.files.ownership import mark_file
from treadle.optim.lr_scaling import scale_rates
from treadle.parallel import Processes
from treadle.precision import Precision
from treadle.runs.lock import require_free_for_all, run_lock
from treadle.runs.place import require_folder
from treadle.schedules.factory import require_scheduler
from treadle.writers import EventWriter

logger = logging.getLogger(__name__)


class DefaultTrainer(TrainerBase):
    """Trains what a config describes; override a `build_...` method, `get_batch`, `test` or `build_hooks`.

    The parts are made in this order: tokenizer, data, the numbers that depend on the data, model, optimizer, schedule,
    the inner trainer `_trainer` that makes the steps, the checkpointer, and the hooks. A step of your own is a
    subclass of `EagerTrainer` or `GraphTrainer` put into `self._trainer` after `super().__init__(cfg)`.

    Args:
        cfg: A config with `model`, `optim`, `dataloader` and `train`; it is copied, and completed by the defaults of
            `common/train.py`.

    Attributes:
        cfg: The config with every number worked out, as it is saved in `output_dir/config.yaml`.
        model: The model.
        optimizer: The optimizer.
        lr_scheduler: The schedule; it moves only if `hooks.LRScheduler` is among the hooks.
        train_loader: The training data.
        test_loader: The loaders of test data, by name in `test_loader.names`.
        checkpointer: What saves and loads.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg = building.complete(cfg)
        check_supported(cfg)
        require_folder(cfg.train.output_dir, NEEDS_FOLDER)
        setup_logger(cfg.train.output_dir)
        warn_unknown_keys(check_keys(cfg))
        folder, timeout = Path(cfg.train.output_dir), try_get_key(cfg, "train.dist.timeout", default=None)
        self._processes = Processes(configured_device(cfg), timeout=timeout, folder=folder)
        if cfg.train.seed is not None:
            seed_generators(fold_seed(cfg.train.seed, dist.get_rank()))
        self._build_data(cfg)
        self.model = self._ready(self.build_model(cfg))
        add_pipeline_stages(cfg, read_plan(cfg, dist.get_world_size()), self.model)
        self.optimizer = self.build_optimizer(cfg, self.model)
        self._scale_rates(cfg)
        self.lr_scheduler = self.build_lr_scheduler(cfg, self.optimizer)
        if self.lr_scheduler is not None or try_get_key(cfg, "train.scheduler") is not None:
            require_scheduler(self.lr_scheduler, maker=f"{type(self).__name__}.build_lr_scheduler")
        self.graph_eval: Graph | None = None
        self._trainer = self._build_inner()
        self.global_batch_size = cfg.train.global_batch_size
        self.max_iter = cfg.train.train_iter
        self.checkpointer = Checkpointer(
            self.model, cfg.train.output_dir, trainer=self, max_to_keep=cfg.train.checkpointer.max_to_keep
        )
        self._last_eval_results: Any = None
        self.resume_or_load(cfg.train.resume)
        if not self.start_iter:
            # That of a run that is there is replaced once the run has been taken for this one.
            require_free_for_all(folder, self._processes)
            self._save_config()
        self.register_hooks([*self.build_callbacks(), *self.build_hooks()])

    # Setting up ---------------------------------------------------------------------------------------------

    def _build_data(self, cfg: Any) -> None:
        sizes = resolve_batch_sizes(
            cfg.train.train_micro_batch_size,
            cfg.train.global_batch_size,
            cfg.train.num_accumulation_steps,
            data_size(cfg),
        )
        cfg.train.update(sizes._asdict())
        self.tokenizer = self.build_tokenizer(cfg)
        built = self.build_train_loader(cfg, self.tokenizer)
        self.train_loader, validation, test = built if isinstance(built, tuple) else (built, None, None)
        self.test_loader = building.TestLoaders()
        for name, loaders in (("validation", validation), ("test", test)):
            for loader in loaders if isinstance(loaders, list) else [loaders]:
                if loader is not None:
                    self.test_loader.add(name, loader)
        named = building.named_loaders(self.build_test_loader(cfg, self.tokenizer))
        for name, loader in zip(named.names, named, strict=True):
            self.test_loader.add(name, loader)
        self.auto_scale_hyperparams(cfg, self.train_loader)

    def _ready(self, model: nn.Module) -> nn.Module:
        """Bring the model to its device, and set up what is computed again in the backward pass."""
        model.to(self._processes.device)
        if self.cfg.train.activation_checkpoint.enabled:
            patterns = try_get_key(self.cfg, "train.activation_checkpoint.modules", default=None)
            names = set_activation_checkpoint(model, None if patterns is None else list(patterns))
            logger.info(
                "activations are computed again in %s", names or "the blocks that the model chose", extra=DETAIL
            )
        return model

    def _scale_rates(self, cfg: Any) -> None:
        """Have the learning rates follow the batch, before a schedule is built on them."""
        scaling, batch = read_lr_scaling(cfg), cfg.train.global_batch_size
        if scaling.rule != "none":
            scale_rates(self.optimizer, scaling.factor(batch))
            logger.info(scaling.describe(batch))

    def _build_inner(self) -> EagerTrainer:
        cfg = self.cfg
        accumulation = cfg.train.num_accumulation_steps
        if not read_execution(cfg).compiles:
            return EagerTrainer(self.model, self.train_loader, self.optimizer, accumulation)
        text = "graph mode: the model is compiled by torch.compile; on a GPU the step is recorded if it can be"
        logger.info(text, extra=DETAIL)
        graph = self.build_graph(cfg, self.model, self.optimizer, self.lr_scheduler, is_train=True)
        self.graph_eval = self.build_graph(cfg, self.model, is_train=False)
        return GraphTrainer(graph, self.train_loader, accumulation)

    def resume_or_load(self, resume: bool | str = True) -> None:
        """Find out where the run begins.

        Args:
            resume: True or "auto" resumes from the newest checkpoint in `output_dir` if there is one; False begins
                with `train.load_weight`, if it is given, at iteration 0.

        Raises:
            ConfigError: `resume` is something else.
            CheckpointError: What there is does not fit, or there is a run and it is not to be resumed.
        """
        if resume not in (True, False, "auto", None):
            raise ConfigError(f"train.resume={resume!r} is unknown; use True, False or 'auto'")
        self._resumes = bool(resume)
        weights = self.cfg.train.load_weight
        if not self._resumes and dist.broadcast_from_main(self.checkpointer.has_checkpoint()):
            raise CheckpointError(
                f"{self.cfg.train.output_dir} already holds a run; set train.resume=True (or pass --resume) to resume "
                "it, or choose another train.output_dir"
            )
        newest = dist.broadcast_from_main(self.checkpointer.iteration_to_resume()) if self._resumes else None
        self.checkpointer.resume_or_load(os.fspath(weights or ""), resume=newest is not None)
        self.start_iter = self.iter = newest or 0
        self.cfg.train.start_iter = self.start_iter

    def _save_config(self) -> None:
        if dist.is_main_process():
            Path(self.cfg.train.output_dir).mkdir(parents=True, exist_ok=True)
            own = None if type(self) is DefaultTrainer else type(self)
            file = Path(self.cfg.train.output_dir) / "config.yaml"
            LazyConfig.save(config_to_save(self.cfg, own), file)
            mark_file(file)

    # Training -----------------------------------------------------------------------------------------------

    def train(self) -> Any:  # type: ignore[override]
        """Run the iterations that are left, and return the results of the last evaluation.

        Called again, it continues: after `max_iter` was raised, or after a stop.
        """
        start, end = max(self.start_iter, self.iter), self.max_iter
        self.iter = start
        if start >= end and (self._core is not None or not self._is_unfinished(start, end)):
            logger.info("nothing to do: iteration %d of %d is reached", start, end)
            return self._last_eval_results
        self.start_iter = start
        folder = Path(self.cfg.train.output_dir)
        with run_lock(folder, self._processes, lambda: self.iter >= self.max_iter, encloses=True):
            self._run(start, max(start, end), resume=self._resumes)
        self.core.this_run.leave_after_end()
        return self._last_eval_results

    def _is_unfinished(self, start: int, end: int) -> bool:
        """Whether the last iteration was saved and what follows it, such as the final evaluation, was not done."""
        return start == end and start > 0 and not dist.broadcast_from_main(self.checkpointer.is_complete())

    def _options(self) -> CoreOptions:
        inner, most = self._trainer, self.checkpointer.max_to_keep
        return inner.adapted(core_options(self.cfg, model=inner.model, optimizer=inner.optimizer, max_to_keep=most))

    def _plan(self) -> StepPlan:
        inner, face = self._trainer, weakref.proxy(self)
        _check_inner(inner, type(self).__name__)
        get_batch = self._placed(self.get_batch)
        foreign = None
        if not is_core_step(self):
            foreign = lambda place: face.run_step()  # noqa: E731 - a name for it is all that is needed
        elif not is_core_step(inner):
            foreign = custom_step(inner, self, self.get_batch, self.cfg.train.input_placement_device)
        if foreign is not None:
            self._check_foreign()
        return inner.step_plan(get_batch, foreign)

    def _placed(self, get_batch: Callable[..., Any]) -> Callable[[Any], Any]:
        mixup = getattr(self.train_loader, "mixup_func", None)
        return bind_placement(get_batch, self.cfg.train.input_placement_device, mixup)

    def _check_foreign(self) -> None:
        """Refuse what a step of the user's would silently go without."""
        if read_precision(self.cfg) == "fp16":
            raise ConfigError(
                "train.amp.dtype='fp16' scales the loss, which a run_step of your own does not; use 'bf16', or leave "
                "run_step as it is"
            )
        policy = try_get_key(self.cfg, "train.on_nonfinite", default=None) or "raise"
        if policy == "skip":
            raise ConfigError("train.on_nonfinite='skip' works with the built-in run_step only; use 'raise'")

    def _bind(self, core: Any) -> None:
        self._trainer.attach_core(core)

    @core_step
    def run_step(self) -> None:
        """Have the inner trainer make one step."""
        self._trainer.iter = self.iter
        device = self.cfg.train.input_placement_device
        if is_core_step(self._trainer):
            self._trainer.run_step(self.get_batch, device)
        else:
            custom_step(self._trainer, self, self.get_batch, device)(0)

    # What to build ------------------------------------------------------------------------------------------

    def build_callbacks(self) -> list[Any]:
        """Return the callbacks that `train.callbacks` describes; they act before the hooks.

        Raises:
            ConfigError: One of them is no callback.
        """
        found = []
        for place, node in enumerate(try_get_key(self.cfg, "train.callbacks", default=None) or ()):
            made = instantiate(node)
            if not is_callback(made):
                raise ConfigError(
                    f"train.callbacks.{place} builds a {type(made).__name__}, which is no callback; give a LazyCall of "
                    "one of treadle.callbacks, or of a class derived from TrainerCallback"
                )
            found.append(made)
        return found

    def build_hooks(self) -> list[HookBase | None]:
        """Return the hooks: timer, schedule, checkpoints, evaluation, and the writers last."""
        train = self.cfg.train
        found: list[HookBase | None] = [
            hooks.IterationTimer(),
            hooks.Throughput(
                train.log_period,
                tokens_per_sample=try_get_key(self.cfg, "train.tokens_per_sample", default=None),
                flops_per_sample=try_get_key(self.cfg, "train.flops_per_sample", default=None),
                peak_flops=try_get_key(self.cfg, "train.peak_flops", default=None),
            ),
            None if self.lr_scheduler is None else hooks.LRScheduler(),
            hooks.PeriodicCheckpointer(self.checkpointer, train.checkpointer.period),
        ]
        if train.evaluation.enabled and self.test_loader:
            found += self._evaluation_hooks()
        if dist.is_main_process():
            # Last, so that what evaluation reports is written.
            found.append(hooks.PeriodicWriter(self.build_writers(), train.log_period))
        return found

    def _evaluation_hooks(self) -> list[HookBase | None]:
        evaluation, face = self.cfg.train.evaluation, weakref.proxy(self)
        usual = get_config("common/train.py").train.evaluation.eval_metric

        def evaluate() -> Any:
            face._last_eval_results = face.test(face.cfg, face.test_loader, face.graph_eval or face.model)
            return face._last_eval_results

        return [
            hooks.EvalHook(evaluation.eval_period, evaluate),
            hooks.BestCheckpointer(
                evaluation.eval_period,
                self.checkpointer,
                val_metric=evaluation.eval_metric,
                mode=evaluation.eval_mode,
                chosen=evaluation.eval_metric != usual,
            ),
        ]

    def build_writers(self) -> list[EventWriter]:
        """Return the writers: the console, `metrics.json` and, if it is installed, TensorBoard, in `output_dir`."""
        size, end = self.global_batch_size, self.max_iter
        return default_writers(self.cfg.train.output_dir, end, batch_size=size, told=self.evaluated)

    @classmethod
    def build_tokenizer(cls, cfg: Any) -> Any:
        """Return the tokenizer; None if the config has none."""
        return building.build_tokenizer(cfg)

    @classmethod
    def build_model(cls, cfg: Any) -> nn.Module:
        """Return the model that `cfg.model` describes."""
        building.require(cfg, "model")
        model = instantiate(cfg.model)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"cfg.model builds a {type(model).__name__}; it must be a torch.nn.Module")
        return model

    @classmethod
    def build_graph(
        cls,
        cfg: Any,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        lr_scheduler: Any = None,
        is_train: bool = True,
    ) -> Graph:
        """Return the model compiled as `cfg.graph` says."""
        return Graph(
            model,
            optimizer,
            backend=try_get_key(cfg, "graph.backend", default="inductor"),
            mode=try_get_key(cfg, "graph.mode", default=None),
            fullgraph=try_get_key(cfg, "graph.fullgraph", default=False),
            budget=try_get_key(cfg, "graph.compile_budget", default=BUDGET),
        )

    @classmethod
    def build_optimizer(cls, cfg: Any, model: nn.Module) -> Optimizer:
        """Return the optimizer that `cfg.optim` describes, over the parameters of `model`."""
        optimizer: Optimizer = building.build_optimizer(cfg, model)
        return optimizer

    @classmethod
    def build_lr_scheduler(cls, cfg: Any, optimizer: Optimizer) -> Any:
        """Return the schedule that `cfg.train.scheduler` describes; None if it is None."""
        return building.build_scheduler(cfg, optimizer)

    @classmethod
    def build_train_loader(cls, cfg: Any, tokenizer: Any = None) -> Any:
        """Return the loader of training data, or it with loaders of validation and test data: (train, val, test)."""
        built = building.build_train_data(cfg, tokenizer)
        train, *others = built if isinstance(built, tuple) else (built, None, None)
        size = cfg.train.train_micro_batch_size
        loader = building.as_loader(train, batch_size=size, shuffle=True, where="dataloader.train")
        return (loader, *others)

    @classmethod
    def build_test_loader(cls, cfg: Any, tokenizer: Any = None) -> Any:
        """Return the loaders of test data that `cfg.dataloader.test` describes."""
        return building.build_test_data(cfg, tokenizer)

    @classmethod
    def build_evaluator(cls, cfg: Any) -> DatasetEvaluator:
        """Return the evaluator that `cfg.train.evaluation.evaluator` describes."""
        evaluator: DatasetEvaluator = instantiate(cfg.train.evaluation.evaluator)
        if not hasattr(evaluator, "process"):
            raise ConfigError(
                f"train.evaluation.evaluator builds a {type(evaluator).__name__}, which has no process(); it must be a "
                "LazyCall of an evaluator"
            )
        return evaluator

    @classmethod
    def auto_scale_hyperparams(cls, cfg: Any, data_loader: Any) -> None:
        """Work out the numbers of `cfg.train` that depend on the data and the number of processes, in place."""
        resolved = resolve_train(cfg.train, data_parallel_size=data_size(cfg), dataset_length=_samples_in(data_loader))
        cfg.train.update(resolved)

    @classmethod
    def get_batch(cls, data: Any, input_placement_device: str | None = None, mixup_func: Any = None) -> Any:
        """Return the arguments of the model for one batch, which is on the device already.

        Args:
            data: The batch: a dict of tensors, a tuple of them, or one tensor.
            input_placement_device: Where `train.input_placement_device` wants inputs; "cpu" brings them there.
            mixup_func: Called with the batch before it is handed on, if the train loader has a `mixup_func`.
        """
        if mixup_func is not None:
            data = mixup_func(data)
        if input_placement_device == "cpu":
            data = mover(torch.device("cpu"))(data)
        return data if isinstance(data, (Mapping, tuple, list)) else (data,)

    @classmethod
    def test(cls, cfg: Any, test_loaders: Any, model: Any, evaluator: DatasetEvaluator | None = None) -> dict[str, Any]:
        """Evaluate `model` on each of the loaders, and log the results.

        Args:
            cfg: The config.
            test_loaders: Loaders, in a list or by name.
            model: The model.
            evaluator: What to evaluate with; by default what `build_evaluator` returns.

        Returns:
            The results; by the names of the loaders if there are several.
        """
        check_keys(cfg)
        named = building.named_loaders(test_loaders)
        bare = model.model if isinstance(model, Graph) else model
        device = next(bare.parameters(), torch.zeros(())).device
        precision = Precision(read_precision(cfg), device)
        results = {
            name: inference_on_dataset(
                model,
                loader,
                cfg.train.test_micro_batch_size,
                cfg.train.evaluation.eval_iter,
                cls.get_batch,
                cfg.train.input_placement_device,
                cls.build_evaluator(cfg) if evaluator is None else evaluator,
                device=device,
                autocast=precision.autocast,
            )
            for name, loader in zip(named.names, named, strict=True)
        }
        for name, found in results.items():
            logger.info("evaluation  %s  %s", name, fields(flatten_results(found)) or "no numbers")
        return next(iter(results.values())) if len(results) == 1 else results


def _check_inner(inner: EagerTrainer, outer: str) -> None:
    """Refuse an inner trainer with what only the trainer that has the loop calls."""
    kind = type(inner).__name__
    if len(inner.hook_list):
        found = [type(hook).__name__ for hook in inner.hook_list]
        raise ConfigError(
            f"_trainer of {outer} has hooks that nobody would call, {found}: register them with {outer} itself"
        )
    for name in MOMENTS:
        if name != BY_THE_STEP and getattr(type(inner), name) is not getattr(TrainerBase, name):
            raise ConfigError(
                f"{kind}.{name} would never be called: {outer} has the loop, and {kind} makes the steps; define it in "
                f"{outer}"
            )


def _samples_in(loader: Any) -> int | None:
    """Return how many samples one pass over `loader` has; None if it does not say."""
    dataset = getattr(loader, "dataset", None)
    try:
        return len(dataset) if dataset is not None else None
    except TypeError:
        return None
