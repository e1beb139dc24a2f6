"""What every trainer stands on: its parts, its processes, its events and how it stops."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.accelerator import AcceleratorFacade
from treadle.activation_checkpointing import ActivationCheckpointing
from treadle.callback import EVENTS, CallbackHandler
from treadle.callbacks import DEFAULT_CALLBACKS
from treadle.callbacks.limit_batches import active_limit
from treadle.checkpoint import Policy, Tracked
from treadle.data import Stream
from treadle.errors import ConfigError
from treadle.events import InMemoryRunHistory, LossTracker, RunHistory
from treadle.execution import Compile, CompiledVerbs, Execution, check_execution
from treadle.gradients import REDUCTIONS
from treadle.handed_loader import HandedLoader
from treadle.metrics import EvaluationMetrics
from treadle.offload import check_offload
from treadle.parallel import GradientExchange, Plan, Processes
from treadle.parallel.choosing import strategy_for
from treadle.parallel.strategy import Strategy
from treadle.precision import LossScaling, Precision, SinglePrecision
from treadle.progress import Progress
from treadle.run import Run
from treadle.run_config import TrainerRunConfig
from treadle.run_place import place_of
from treadle.settings import RunSettings

if TYPE_CHECKING:
    from treadle.trainer import Trainer

ON_NONFINITE = ("raise", "skip", "rollback")
MICROBATCH = ("fixed", "auto")


class Foundation:
    """The parts of a trainer and what they need to work together; `Trainer` adds the loop.

    Args:
        model: The module to train.
        loss_func: Called as `loss_func(outputs, targets)`; None if the model returns its own loss, or if both
            loss verbs are overridden.
        optimizer: What updates the weights, or several by name for a trainer with phases; None is enough to
            evaluate.
        callbacks: Instances or classes, called in this order.
        run_history: Where metrics of epochs are kept; by default in memory.
        metrics: Torchmetrics by name, kept during evaluations.
        seed: Seeds Python, NumPy and torch when a run starts. None leaves every generator alone, and the order
            of the data then follows torch's generator at that moment.
        run_dir: The folder of the run; None writes nothing.
        precision: The format of forward and backward passes: "fp32", "bf16", "fp16", or "auto", which is bf16 on CUDA
            devices that have units for it and fp32 elsewhere.
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
        execution: How a step is carried out: "eager" line by line, "compile" with `torch.compile`, "graph" recorded
            on the CUDA device and replayed, "auto" recorded where it can be and line by line elsewhere; or what
            makes an `Execution` of one's own for a trainer.
        compile: What of a step is compiled, within a recorded one too: True, a mode, or `Compile(...)`.
        microbatch: "auto" halves the micro-batch, and keeps the batch, when memory runs out.
        activation_checkpointing: Patterns for the names or classes of modules whose activations are computed again
            in the backward pass instead of being kept.
        offload_optimizer: Whether the state of the optimizers is kept in the memory of the host.
        timeout: Seconds that several processes wait for each other before they fail; by default 1,800.
        parallel: How several processes share the run: a `Plan`, or "auto", by which each has all of the model.
    """

    _train_dataloader = HandedLoader(evaluation=False)
    _eval_dataloader = HandedLoader(evaluation=True)
    custom_methods: frozenset[str] = frozenset()
    """Methods of a subclass's own whose names are near those of the trainer's, and that others call."""
    _pad_uneven_eval_batches = False
    """A name of pytorch-accelerated's: here an evaluation counts every sample once, and pads nothing."""
    ITEMS_REMEDY = (
        'return "num_items_in_batch" beside "loss": the sum of the weights of the targets that are not ignored, '
        "which treadle.loss_items.items_in(loss_func, targets) gives"
    )
    """What to do where a loss is a mean over something else than samples and does not say so."""

    def __init__(
        self,
        model: nn.Module,
        loss_func: Any,
        optimizer: Optimizer | Mapping[str, Optimizer] | None,
        callbacks: Iterable[Any] = DEFAULT_CALLBACKS,
        run_history: RunHistory | None = None,
        *,
        metrics: Any = None,
        seed: int | None = None,
        run_dir: str | Path | None = None,
        precision: str = "fp32",
        loss_scaling: LossScaling | None = None,
        matmul_precision: str | None = None,
        convolution_precision: str | None = None,
        loss_reduction: str = "mean",
        device: torch.device | str | None = None,
        checkpoints: Policy | None = None,
        on_nonfinite: str = "raise",
        max_rollbacks: int = 3,
        deterministic: bool = False,
        microbatch: str = "fixed",
        execution: str | Callable[["Trainer"], Execution] = "eager",
        compile: bool | str | Compile = False,
        activation_checkpointing: Sequence[str] | None = None,
        offload_optimizer: bool = False,
        timeout: float | None = None,
        parallel: Plan | Strategy | str = "auto",
    ) -> None:
        _check_choices(on_nonfinite, max_rollbacks, microbatch, loss_reduction)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
            raise ConfigError(f"seed={seed!r} must be a whole number, or None to seed nothing")
        _check_parts(model, loss_func, optimizer, callbacks)
        self.model = model
        self.loss_func = loss_func
        self.optimizer: Any = optimizer
        self.seed = seed
        self.run_dir = None if run_dir is None else place_of(Path(run_dir))
        self.loss_reduction = loss_reduction
        self.checkpoint_policy = Policy() if checkpoints is None else checkpoints
        self.on_nonfinite = on_nonfinite
        self.max_rollbacks = max_rollbacks
        if not isinstance(deterministic, bool):
            raise ConfigError(f"deterministic={deterministic!r} must be True or False")
        self.deterministic = deterministic
        self.microbatch = microbatch
        self.execution = execution
        self.compile = Compile.of(compile or execution == "compile")
        self.processes = Processes(device, timeout=timeout, folder=self.run_dir)
        self.exchange = GradientExchange(self.processes, self)
        check_execution(execution, self.processes.device, self.compile)
        agree = self.processes.make_largest if self.processes.distributed else None
        self.precision = Precision(precision, self.processes.device, loss_scaling, agree)
        self.parallel = strategy_for(parallel, self.processes)
        self.precision.agree_on_overflow = agree if self.parallel.spreads else None
        self.single_precision = SinglePrecision(matmul_precision, convolution_precision)
        self.activation_checkpointing = ActivationCheckpointing(model, activation_checkpointing or ())
        self.offload_optimizer = offload_optimizer
        check_offload(offload_optimizer, self.optimizers().values(), execution)
        self.progress = Progress()
        self.run_history: RunHistory = InMemoryRunHistory() if run_history is None else run_history
        self.callback_handler = CallbackHandler(callbacks)
        self.callback_handler.on_stop = lambda error: self.this_run.stop.take(error)
        self.max_batches_per_epoch: int | None = active_limit()
        self._accelerator = AcceleratorFacade(self)  # type: ignore[arg-type]
        self._loss_tracker = LossTracker(self.progress)
        self._metrics = EvaluationMetrics(metrics)
        self.tracked = Tracked()
        self._prepare_for_first_run()
        self.this_run = Run(self)  # type: ignore[arg-type]
        self.fire("on_init_end")
        self._check_plan()

    def _prepare_for_first_run(self) -> None:
        """Have everything that a run fills in as it is where none has begun."""
        self.train_dataset: Any = None
        self.eval_dataset: Any = None
        self.collate_fn: Any = None
        self.create_scheduler_fn: Any = None
        self.scheduler: Any = None
        self.run_config: TrainerRunConfig | None = None
        self.recording = self.in_own_loop = self.in_own_run = self.in_own_update = False
        self.track_gradient_norm = False
        self.gradient_norm: Tensor | None = None
        self.update_applied: Tensor | None = None
        self._settings: RunSettings | None = None
        self._train_dataloader = self._eval_dataloader = None
        self.prepares_data = False
        self._train_dl_kwargs: dict[str, Any] | None = None
        self._eval_dl_kwargs: dict[str, Any] | None = None
        self.scheduled_by_step = True
        self._rate_factor = 1.0
        # What carries updates out, or leaves them out.
        self._optimizers: list[Optimizer] = []
        self._verbs: CompiledVerbs | None = None

    def _check_plan(self) -> None:
        """Refuse what the plan cannot do, before anything runs."""

    @property
    def device(self) -> torch.device:
        """Where this process trains."""
        return self.processes.device

    @property
    def streams(self) -> dict[str, Stream]:
        """What the batches of training are drawn from, by name."""
        return self.this_run.streams.by_name

    @property
    def storage(self) -> Any:
        """Where scalars are put during a run."""
        return self.run_history.storage

    @property
    def settings(self) -> RunSettings:
        """The arguments of the run under way."""
        if self._settings is None:
            raise ConfigError("this trainer has no run yet; call train() first")
        return self._settings

    def optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers by name; a single one is called "optimizer"."""
        if self.optimizer is None:
            return {}
        return dict(self.optimizer) if isinstance(self.optimizer, Mapping) else {"optimizer": self.optimizer}

    def track(self, **objects: Any) -> Self:
        """Save each object with every checkpoint of this trainer, under its keyword."""
        self.tracked.add(**objects)
        return self

    @property
    def replays(self) -> bool:
        """Whether updates may be replayed from a recording, so that their verbs are not called."""
        return self.this_run.execution.replays

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
        self.callback_handler.call_event(event, self, **kwargs)  # type: ignore[arg-type]

    def show_loop(self) -> None:
        """Print which callback acts at which event, in the order of a run."""
        known = [(event, self.callback_handler.listeners(event)) for event in EVENTS]
        width = max(len(event) for event in EVENTS)
        for event, callbacks in known:
            names = ", ".join(type(callback).__name__ for callback in callbacks) or "-"
            self.print(f"{event:<{width}}  {names}")

    def request_stop(self, reason: str, *, for_good: bool = False) -> None:
        """Ask for the run to end in good order, on every process, at the next point where they agree.

        Args:
            reason: Why, in words.
            for_good: Whether the run is over by that; else it goes on when it is started again.
        """
        self.this_run.stop.request(reason, for_good=for_good)


# Python's message about an argument that nobody knows names this function: users know it as the trainer's.
Foundation.__init__.__qualname__ = "Trainer.__init__"


def _check_choices(on_nonfinite: str, max_rollbacks: int, microbatch: str, loss_reduction: str) -> None:
    if on_nonfinite not in ON_NONFINITE:
        raise ConfigError(f"on_nonfinite={on_nonfinite!r} is unknown; use one of {ON_NONFINITE}")
    if type(max_rollbacks) is not int or max_rollbacks < 0:
        raise ConfigError(f"max_rollbacks={max_rollbacks!r} must be a whole number from 0")
    if microbatch not in MICROBATCH:
        raise ConfigError(f"microbatch={microbatch!r} is unknown; use one of {MICROBATCH}")
    if loss_reduction not in REDUCTIONS:
        raise ConfigError(f"loss_reduction={loss_reduction!r} is unknown; use 'mean' or 'sum'")


def _check_parts(model: Any, loss_func: Any, optimizer: Any, callbacks: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    if isinstance(loss_func, type) and issubclass(loss_func, nn.Module):
        name = loss_func.__name__
        raise ConfigError(f"loss_func is the class {name}; pass an instance: loss_func={name}()")
    if loss_func is not None and not callable(loss_func):
        raise ConfigError(f"loss_func is a {type(loss_func).__name__}; pass a callable of (outputs, targets), or None")
    several = list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]
    for one in several:
        if one is not None and not isinstance(one, Optimizer):
            raise ConfigError(f"optimizer is a {type(one).__name__}; pass a torch.optim.Optimizer, or a dict of them")
    if callbacks is None or isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks={callbacks!r}; pass a sequence of callbacks, or () for none")
