"""A model that says itself what a step of training and of evaluation is."""

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.loop.verbs import refuse_misspelt

if TYPE_CHECKING:
    from treadle.lightning.core import StepCore


STEPS = (
    *("training_step", "validation_step", "test_step", "configure_optimizers"),
    *("on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end"),
    *("on_validation_epoch_start", "on_validation_epoch_end"),
)
"""The methods of a `StepModel` that users override."""
INDEXED = ("training_step", "validation_step", "test_step")
"""Methods that may take the number of the batch besides the batch."""
_MOMENT = "write a callback with {}"
NOT_CALLED = {
    "training_epoch_end": "define on_train_epoch_end(self), and keep what steps return in a list of your own",
    "validation_epoch_end": "define on_validation_epoch_end(self), and keep what steps return in a list of your own",
    "test_epoch_end": "define on_validation_epoch_end(self), which test() calls, too",
    "on_test_epoch_start": "define on_validation_epoch_start(self), which test() calls, too",
    "on_test_epoch_end": "define on_validation_epoch_end(self), which test() calls, too",
    "on_fit_start": "define on_train_start(self)",
    "on_fit_end": "define on_train_end(self)",
    "on_validation_start": "define on_validation_epoch_start(self)",
    "on_validation_end": "define on_validation_epoch_end(self)",
    "on_train_batch_start": _MOMENT.format("on_train_step_start"),
    "on_train_batch_end": _MOMENT.format("on_update_end"),
    "on_validation_batch_start": _MOMENT.format("on_eval_step_start"),
    "on_validation_batch_end": _MOMENT.format("on_eval_step_end"),
    "on_before_backward": _MOMENT.format("on_train_step_end"),
    "on_after_backward": "override apply_gradients of a treadle.Trainer",
    "on_before_optimizer_step": "override optimizer_step of a treadle.Trainer",
    "on_before_zero_grad": "override optimizer_zero_grad of a treadle.Trainer",
    "on_save_checkpoint": "use track(name=object) of a treadle.Trainer",
    "on_load_checkpoint": "use track(name=object) of a treadle.Trainer",
    "optimizer_step": "override optimizer_step of a treadle.Trainer",
    "optimizer_zero_grad": "override optimizer_zero_grad of a treadle.Trainer",
    "lr_scheduler_step": "override scheduler_step of a treadle.Trainer",
    "configure_gradient_clipping": "pass clip_norm= or gradient_clip_value= to StepTrainer",
    "configure_callbacks": "pass callbacks= to StepTrainer",
    "predict_step": "define forward: predict() returns its outputs",
}
"""Methods of Lightning's modules that nobody calls here, and what to do instead."""


class HyperParameters(dict[str, Any]):
    """Arguments by name, as items and as attributes.

    >>> HyperParameters(width=8).width
    8
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no hyperparameter {name!r}; there are {sorted(self)}") from None


class StepModel(nn.Module):
    """A module with `training_step`, `validation_step` and `configure_optimizers`; `StepTrainer` trains it.

    What a step returns is the loss, or a dict with `"loss"` in it. The methods that begin with `on_` are called at
    their moment; they do nothing unless they are overridden.

    With `self.automatic_optimization = False`, `training_step` makes the updates itself: it calls `manual_backward`,
    and `step` and `zero_grad` of the `optimizers()`, of which there may be several.

    Attributes:
        hparams: What `save_hyperparameters` kept.
        automatic_optimization: Whether the trainer makes the updates.
    """

    automatic_optimization: bool = True

    def __init__(self) -> None:
        super().__init__()
        self.hparams = HyperParameters()
        # A weak reference to the trainer at work: a copy of the model is not one of the trainer, too.
        vars(self)["_core"] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls, STEPS, NOT_CALLED)

    # To override ---------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of one micro-batch."""
        raise ConfigError(f"{type(self).__name__} does not say what a step is; define training_step(batch, batch_idx)")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate one batch: log what is to be reported; a loss that is returned is reported, too."""
        raise ConfigError(
            f"{type(self).__name__} does not say how it is evaluated; define validation_step(batch, batch_idx)"
        )

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate one batch of `StepTrainer.test`; by default as `validation_step` does."""
        return self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with its schedule if there is one, in any form that Lightning takes."""
        raise ConfigError(f"{type(self).__name__} does not say how it learns; define configure_optimizers()")

    def on_train_start(self) -> None:
        """Called before the first epoch."""

    def on_train_epoch_start(self) -> None:
        """Called before an epoch's first batch."""

    def on_train_epoch_end(self) -> None:
        """Called after an epoch's last batch."""

    def on_validation_epoch_start(self) -> None:
        """Called before an evaluation's first batch."""

    def on_validation_epoch_end(self) -> None:
        """Called after an evaluation's last batch."""

    def on_train_end(self) -> None:
        """Called when the run is over."""

    # To call -------------------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        *,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        batch_size: int | None = None,
        **shown: Any,
    ) -> None:
        """Report a number; the device is not waited for.

        Args:
            name: What it is called; with both `on_step` and `on_epoch`, `name_step` and `name_epoch`.
            value: The number, or a torchmetric that is reported and reset at the end of the epoch.
            on_step: Whether each step reports it: by default in training.
            on_epoch: Whether the mean over the samples of an epoch is reported: by default in evaluations.
            batch_size: How many samples it is the mean of; by default those of the batch.
            **shown: What Lightning takes besides, such as `prog_bar`; it has no effect.
        """
        self._running().log(name, value, on_step, on_epoch, batch_size)

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """Report several numbers."""
        for name, value in values.items():
            self.log(name, value, **options)

    def optimizers(self) -> Any:
        """Return the optimizer that `configure_optimizers` made, or a list of several."""
        made = list(self._running().optimizers().values())
        return made[0] if len(made) == 1 else made

    def lr_schedulers(self) -> Any:
        """Return the schedule that `configure_optimizers` made, or a list of several; None if there is none.

        Where `training_step` makes the updates, it moves them, too.
        """
        made = self._running().schedules
        return (made[0] if made else None) if len(made) < 2 else made

    def manual_backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss, where `training_step` makes the updates itself."""
        self._manual("manual_backward").manual_backward(loss)

    def toggle_optimizer(self, optimizer: Optimizer) -> None:
        """Have gradients for the weights of this optimizer only, until `untoggle_optimizer`."""
        self._manual("toggle_optimizer").toggle(optimizer)

    def untoggle_optimizer(self, optimizer: Optimizer) -> None:
        """Have gradients for all the weights that had some before `toggle_optimizer`."""
        self._manual("untoggle_optimizer").untoggle()

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
    ) -> None:
        """Bound the gradients of an optimizer's weights, by their norm or each element, before it steps."""
        core = self._manual("clip_gradients")
        if gradient_clip_algorithm not in ("norm", "value"):
            raise ConfigError(f"clip_gradients(gradient_clip_algorithm={gradient_clip_algorithm!r}): 'norm' or 'value'")
        if gradient_clip_val is not None:
            core.clip_optimizer(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def save_hyperparameters(self, *names: str, ignore: Iterable[str] = ()) -> None:
        """Keep the arguments of the `__init__` that calls this in `hparams`.

        Args:
            *names: Which; by default all.
            ignore: Which not.
        """
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        known = inspect.getargvalues(frame.f_back)
        given = {name: known.locals[name] for name in known.args if name != "self"}
        given |= known.locals.get(known.keywords or "", {})
        hidden = {ignore} if isinstance(ignore, str) else set(ignore)
        self.hparams.update(
            {name: value for name, value in given.items() if name in (names or given) and name not in hidden}
        )

    @property
    def trainer(self) -> Any:
        """The trainer that is at work."""
        return self._running()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters()).device

    @property
    def current_epoch(self) -> int:
        """The epoch under way, from 0."""
        core = self._core_now()
        return 0 if core is None else core.progress.epoch

    @property
    def global_step(self) -> int:
        """How many updates were made; where `training_step` makes them itself, how many batches it was called for."""
        core = self._core_now()
        return 0 if core is None else core.progress.step

    def _core_now(self) -> "StepCore | None":
        reference = vars(self)["_core"]
        return None if reference is None else reference()

    def _manual(self, method: str) -> Any:
        if self.automatic_optimization:
            raise ConfigError(
                f"{type(self).__name__} called {method}, but the trainer makes its updates; set "
                "self.automatic_optimization = False in __init__ to make them in training_step"
            )
        return self._running()

    def _running(self) -> "StepCore":
        core = self._core_now()
        if core is None:
            name = type(self).__name__
            raise ConfigError(f"{name} is not being trained; log() and trainer need a StepTrainer at work")
        return core
