"""The trainer of models that bring their own steps."""

from collections.abc import Iterable
from typing import Any, Literal

from treadle.callbacks import DEFAULT_CALLBACKS
from treadle.errors import ConfigError
from treadle.lightning.core import StepCore
from treadle.lightning.manual import ManualCore, check_options
from treadle.lightning.module import StepModel
from treadle.lightning.optimizers import OptimizerSetup, read_optimizers, read_several
from treadle.parallel.processes import known_device
from treadle.result import TrainResult
from treadle.spec import Names, Refused, spec_options

# How the trainer of models with steps of their own calls the options of the core: by their names, as arguments


MODELS = "the model says it, in what configure_optimizers returns: {'lr_scheduler': {'scheduler': ..., "
NAMES: Names = {
    **{name: name for name in (*spec_options("trainer"), *spec_options("train"))},
    "scheduler_interval": Refused(f"{MODELS}'interval': 'step'}}}}"),
    "scheduler_metric": Refused(f"{MODELS}'monitor': 'val_loss'}}}}"),
    "resume": "fit(resume)",
}
PARTS: Names = {
    "model": "fit(model)",
    "loss_func": Refused("the model has its loss in training_step"),
    "optimizer": Refused("the model makes it, in configure_optimizers"),
    "callbacks": "callbacks",
    "run_history": "run_history",
    "metrics": "metrics",
    "train_metrics": "train_metrics",
    "train_dataset": "fit(train_dataloaders)",
    "eval_dataset": "fit(val_dataloaders)",
    "max_num_train_steps": "max_steps",
    "create_scheduler_fn": Refused("the model makes it, in configure_optimizers"),
    "train_dataloader_kwargs": Refused("loaders are given to fit ready-made"),
    "eval_dataloader_kwargs": Refused("loaders are given to fit ready-made"),
    "reset_run_history": Refused("each fit has a history of its own"),
    "collate_fn": Refused("loaders are given to fit ready-made"),
}
"""The same for the arguments of the core's trainer that are no options."""


class StepTrainer:
    """Trains, evaluates and applies a `StepModel`.

    Args:
        num_epochs: Passes over the data; None trains until `max_steps`.
        max_steps: The most updates.
        gradient_accumulation_steps: Micro-batches in one update.
        clip_norm: Bounds the norm of the gradient.
        gradient_clip_value: Bounds every element of the gradient.
        callbacks: Callbacks besides the usual ones.
        progress: Whether the usual callbacks are there, which show the progress.
        eval_every: How often to evaluate: "500 steps", "1 epoch" or a number of steps.
        log_every: How often numbers are read from the device.
        save_every: How often the run is saved, if it has a folder.
        **options: Further arguments of `treadle.Trainer`: `seed`, `run_dir`, `precision`, `device` and so on; and of
            its `train`: `lr_scaling`, `extend`, `resume_from`, `per_device_batch_size`.

    Attributes:
        core: The trainer at work; None before the first `fit`.
    """

    def __init__(
        self,
        *,
        num_epochs: int | None = None,
        max_steps: int | None = None,
        gradient_accumulation_steps: int = 1,
        clip_norm: float | None = None,
        gradient_clip_value: float | None = None,
        callbacks: Iterable[Any] = (),
        progress: bool = True,
        eval_every: int | str | None = "1 epoch",
        log_every: int | str = 50,
        save_every: int | str | None = None,
        **options: Any,
    ) -> None:
        if options.get("device") is not None:
            known_device(options["device"])
        for name in options:
            own = {**PARTS, **NAMES}.get(name)
            if isinstance(own, Refused):
                raise ConfigError(f"StepTrainer takes no {name!r}: {own.reason}")
        self._settings: dict[str, Any] = {
            **{name: options.pop(name) for name in spec_options("train") if name in options},
            "num_epochs": num_epochs,
            "max_steps": max_steps,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "clip_norm": clip_norm,
            "gradient_clip_value": gradient_clip_value,
            "eval_every": eval_every,
            "log_every": log_every,
            "save_every": save_every,
        }
        self._callbacks = [*(DEFAULT_CALLBACKS if progress else ()), *callbacks]
        self._options = options
        self.core: StepCore | None = None

    def fit(
        self,
        model: StepModel,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        *,
        resume: Literal["auto"] | None = None,
    ) -> TrainResult:
        """Train a model and return how it went.

        Args:
            model: The model.
            train_dataloaders: The training data: a loader, or anything that `Trainer.train` takes; or a `datamodule`.
            val_dataloaders: What to evaluate on.
            datamodule: An object with `train_dataloader()` and `val_dataloader()`, in place of the two; by default the
                model itself, if it has them.
            resume: "auto" resumes the run in `run_dir` if there is one.
        """
        if datamodule is None and train_dataloaders is None and hasattr(model, "train_dataloader"):
            datamodule = model
        if datamodule is None and hasattr(train_dataloaders, "train_dataloader"):
            datamodule = train_dataloaders
        if datamodule is not None:
            train_dataloaders, val_dataloaders = _datamodule_loaders(datamodule)
        if train_dataloaders is None:
            raise ConfigError("fit() has no data; pass train_dataloaders= or datamodule=")
        core, made = self._made(model)
        scheduled: dict[str, Any] = {}
        if made.scheduler is not None:
            schedule = {"scheduler_interval": made.interval, "scheduler_metric": made.metric}
            scheduled = {"create_scheduler_fn": lambda optimizer: made.scheduler, **schedule}
        return core.train(
            train_dataloaders,
            eval_dataset=val_dataloaders,
            resume=resume,
            **self._settings,
            **scheduled,
        )

    def _made(self, model: StepModel) -> tuple[StepCore, Any]:
        if not isinstance(model, StepModel):
            raise ConfigError(f"fit() got a {type(model).__name__}; derive it from treadle.lightning.StepModel")
        if not model.automatic_optimization:
            return self._made_manual(model)
        made = read_optimizers(model.configure_optimizers())
        self.core = StepCore(model, made.optimizer, callbacks=self._callbacks, **self._options)
        return self.core, made

    def _made_manual(self, model: StepModel) -> tuple[StepCore, Any]:
        """Return the core of a model that makes its updates itself: the run moves no schedule."""
        check_options(model, self._settings)
        setups = read_several(model.configure_optimizers())
        schedules = [one.scheduler for one in setups if one.scheduler is not None]
        optimizers = [one.optimizer for one in setups]
        self.core = ManualCore(model, optimizers, schedules, callbacks=self._callbacks, **self._options)
        return self.core, OptimizerSetup(optimizers[0])

    def validate(self, model: StepModel, dataloaders: Any = None) -> dict[str, float]:
        """Evaluate by `validation_step`; return the means of what it logged, and metrics that were recorded besides."""
        return self._evaluated(model, dataloaders, "validation_step")

    def test(self, model: StepModel, dataloaders: Any = None) -> dict[str, float]:
        """Evaluate by `test_step`; return the means of what it logged, and metrics that were recorded besides."""
        return self._evaluated(model, dataloaders, "test_step")

    def predict(self, model: StepModel, dataloaders: Any) -> Any:
        """Return the outputs of the model for every sample."""
        return self._find_core(model).predict(dataloaders)

    def _evaluated(self, model: StepModel, data: Any, step: str) -> dict[str, float]:
        core = self._find_core(model)
        core.evaluates_by = step
        try:
            found = core.evaluate(data)
        finally:
            core.evaluates_by = "validation_step"
        # A loss that the step returned is for early stopping and the like; whoever wants it here logs it.
        found.pop("evaluation_loss", None)
        return {**found, **core.evaluated}

    def _find_core(self, model: StepModel) -> StepCore:
        if self.core is None or self.core.model is not model:
            return self._made(model)[0]
        return self.core


def _datamodule_loaders(datamodule: Any) -> tuple[Any, Any]:
    """Return the training and evaluation data of an object that makes loaders."""
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        if hasattr(datamodule, name):
            getattr(datamodule, name)(*arguments)
    evaluation = getattr(datamodule, "val_dataloader", lambda: None)()
    return datamodule.train_dataloader(), evaluation
