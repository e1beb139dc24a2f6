"""The core trainer behind one-shot trainers: two phases, architecture and weights, and verbs only."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.data import Batch, Stream
from treadle.data.loaders import is_map_style
from treadle.data.run_streams import Streams
from treadle.errors import CheckpointError
from treadle.events.history_buffer import Series
from treadle.execution import Compile
from treadle.loop import Updater
from treadle.memory.activation_checkpointing import ActivationCheckpointing
from treadle.nas.oneshot.supernet import Supernet
from treadle.nas.space.decisions import Architecture
from treadle.nas.viz.weight_history import SEARCH_FILE, WeightHistory, build_history, weight_metric_name
from treadle.ops.losses import read_targets
from treadle.phase import Phase, optimizer_params
from treadle.run import Run
from treadle.runs.folder import RunFolder
from treadle.schedules.factory import require_scheduler
from treadle.schedules.placeholders import replace_placeholders, values_in
from treadle.trainer import Trainer

# Two streams of batches, taken together or in turns


class PairedStream:
    """Batches of two streams, side by side, as one stream; each keeps its own place.

    Args:
        train: The first of each pair.
        validation: The second of each pair.
    """

    in_memory = None
    padded = None

    def __init__(self, train: Stream, validation: Stream) -> None:
        self._train, self._validation = train, validation
        self.keep_last = False

    @property
    def drawn(self) -> int:
        """Pairs drawn in this epoch."""
        return self._train.drawn

    def has_next(self) -> bool:
        """Whether there is another pair."""
        return self._train.has_next() and self._validation.has_next()

    def window(self, size: int) -> list[Batch]:
        """Draw up to `size` pairs."""
        pairs: list[Any] = list(zip(self._train.window(size), self._validation.window(size), strict=False))
        return pairs

    def leave_small_on_host(self) -> None:
        """Give small batches as they are, to somebody who copies them to the device himself."""
        self._train.leave_small_on_host()
        self._validation.leave_small_on_host()


def restart(*streams: Stream) -> None:
    """Begin another pass over the streams that have ended."""
    for stream in streams:
        if not stream.has_next():
            stream.begin(stream.epoch + 1)


def longer_stream(train: Stream, validation: Stream) -> Stream:
    """Return the stream that an epoch lasts as long as; the other begins again when it ends."""
    lengths = train.length, validation.length
    if lengths[0] is not None and lengths[1] is not None and lengths[1] > lengths[0]:
        return validation
    return train


ARCHITECTURE, WEIGHTS = "architecture", "weights"
INSIDE = "space."
"""What the names of a user's modules begin with in a supernet."""

Verb = TypeVar("Verb", bound=Callable[..., Any])


def step_by_step(verb: Verb) -> Verb:
    """Mark a loss verb that reports: where losses are compiled, what it calls is, in one piece, and not itself."""
    marked: Verb = torch.compiler.disable(verb, recursive=False)  # type: ignore[no-untyped-call]
    return marked


@dataclass(frozen=True, kw_only=True)
class OneShotPlan:
    """What a search does besides the training of the weights.

    Args:
        validation: The data that the architecture learns from.
        batch_size: Samples in a batch, where the trainer makes the loaders.
        loader_options: Arguments of the loaders that the trainer makes.
        warmup_epochs: Epochs in which only the weights are trained.
        clip_norm: Bounds the norm of the gradient of the weights.
        architecture_clip_norm: Bounds that of the architecture.
        metrics: Called with outputs and targets of each batch of the validation data.
        scheduler: Makes the schedule of the optimizer of the weights.
        accumulation: Micro-batches in an update.
    """

    validation: Any
    batch_size: int
    loader_options: dict[str, Any]
    warmup_epochs: int = 0
    clip_norm: float | None = None
    architecture_clip_norm: float | None = None
    metrics: Callable[[Any, Any], Any] | None = None
    scheduler: Callable[..., Any] | None = None
    accumulation: int = 1


class OneShotState:
    """What a search must find again when it goes on: what its rows stand for, and what its chance depends on.

    Args:
        rows: The names of what is weighed or decided.
    """

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = list(rows)
        self.seed = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the names and the seed."""
        return {"rows": self.rows, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the seed.

        Raises:
            CheckpointError: The state is of another space, or of one whose choices come in another order.
        """
        if state["rows"] != self.rows:
            pairs = zip(state["rows"], self.rows, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), ("more choices", "fewer"))
            raise CheckpointError(
                f"the search is of another space: {first[0]!r} in the checkpoint where this one has {first[1]!r}; "
                "build the space as it was"
            )
        self.seed = int(state["seed"])


class OneShotCore(Trainer):
    """Trains a supernet: in turns the architecture, on validation data, and the weights.

    Args:
        supernet: The space with what is learnt about it.
        loss: Called with outputs and targets.
        optimizers: That of the "weights", and that of the "architecture" if it is learnt by gradients.
        plan: What the search does.
        options: Arguments of the core trainer.
    """

    model: Supernet

    def __init__(
        self, supernet: Supernet, loss: Any, optimizers: dict[str, Any], plan: OneShotPlan, options: dict[str, Any]
    ) -> None:
        self.plan = plan
        patterns = options.pop("activation_checkpointing", None)
        compile_how = options.pop("compile", False)
        super().__init__(supernet, loss, optimizers, compile=_inside(compile_how), **options)
        self.activation_checkpointing = ActivationCheckpointing(supernet.space, patterns or ())
        self.search = OneShotState(self._names())
        self.penalties: list[Any] = []
        self.draw_found: Callable[[], None] = lambda: None

    def _names(self) -> list[str]:
        """Return the names of what is learnt or decided, to know the space again by."""
        return list(self.model.choices.decisions)

    @property
    def architecture_parameters(self) -> list[nn.Parameter]:
        """What the optimizer of the architecture trains."""
        return optimizer_params(self.optimizers()[ARCHITECTURE])

    @property
    def weight_parameters(self) -> list[nn.Parameter]:
        """What the optimizer of the weights trains."""
        return optimizer_params(self.optimizers()[WEIGHTS])

    # Data and phases ----------------------------------------------------------------------------------------

    def _prepare_dataloaders(self) -> None:
        super()._prepare_dataloaders()
        data, options = self.plan.validation, {}
        if not is_ready(data):
            options = self.get_default_train_dl_kwargs(self.plan.batch_size) | self.plan.loader_options
        self.add_stream("validation", data, **options)

    def create_streams(self) -> "OneShotStreams":
        """Return what makes the streams of both data, and knows how they take turns."""
        return OneShotStreams(self)

    def updates_per_epoch(self) -> tuple[int | None, int | None]:
        """Return how many updates of the weights an epoch has, and how many in all; None if nobody can know."""
        length = longer_stream(self.streams["train"], self.streams["validation"]).length
        updates = None if length is None else math.ceil(length / self.plan.accumulation)
        return updates, None if updates is None else 2 * updates

    def training_run_start(self) -> None:
        """Say which of both data begins again when it ends, and have what was found drawn before any page is made."""
        if self.run_dir is not None and self.processes.is_main:
            self.this_run.checkpointer.afterwards(self.draw_found)
        train, validation = self.streams["train"], self.streams["validation"]
        if train.length != validation.length and self.uses_both:
            shorter = "validation" if longer_stream(train, validation) is train else "training"
            self.print(
                f"an epoch has {train.length} batches to train on and {validation.length} to validate on: the "
                f"{shorter} data begins again when it ends"
            )

    trainer_name = "a one-shot trainer"
    """The class that users see, for what is written and said."""
    uses_both = True
    """Whether an epoch takes batches of both data in turns."""

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield the architecture and the weights in turns, the architecture first; in a warm-up the weights alone."""
        train, validation = self.streams["train"], self.streams["validation"]
        if epoch < self.plan.warmup_epochs:
            yield self.weights_phase(train)
            return
        longer = longer_stream(train, validation)
        architecture, weights = self.architecture_phase(train, validation), self.weights_phase(train, steps=1)
        while longer.has_next():
            restart(validation)
            yield architecture
            restart(train)
            yield weights

    def weights_phase(self, train: Stream, *, steps: int | None = None, reuse: bool = False) -> Phase:
        """Return the phase that trains the weights."""
        return Phase(
            WEIGHTS,
            train,
            self.weights_loss,
            self.optimizers()[WEIGHTS],
            scheduler=self.scheduler,
            parameters=self.weight_parameters,
            accumulation=self.plan.accumulation,
            steps=steps,
            reuse=reuse,
        )

    def architecture_phase(self, train: Stream, validation: Stream) -> Phase:
        """Return the phase that trains the architecture."""
        return Phase(
            ARCHITECTURE,
            validation,
            self.architecture_loss,
            self.optimizers()[ARCHITECTURE],
            parameters=self.architecture_parameters,
            accumulation=self.plan.accumulation,
            steps=1,
        )

    def create_scheduler(self) -> Any:
        """Return the schedule of the weights, its placeholders replaced."""
        if self.plan.scheduler is None:
            return None
        factory = replace_placeholders(self.plan.scheduler, values_in(self))
        return require_scheduler(factory(self.optimizers()[WEIGHTS]), maker="the factory of the schedule")

    # Losses -------------------------------------------------------------------------------------------------

    @step_by_step
    def weights_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss that the weights learn from: that of a batch of the training data."""
        output = self.calculate_train_batch_loss(batch)
        self.report(f"{WEIGHTS}_loss", output["loss"])
        return output

    @step_by_step
    def architecture_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss that the architecture learns from: that of a batch of the validation data, and its price."""
        output = self.calculate_train_batch_loss(batch)
        self.report(f"{ARCHITECTURE}_loss", output["loss"])
        self.report_metrics(output["model_outputs"], batch)
        return {**output, "loss": self.priced(output["loss"])}

    @torch.compiler.disable(recursive=True)  # type: ignore[no-untyped-call, untyped-decorator]
    def priced(self, loss: Tensor) -> Tensor:
        """Return a loss with what the architecture pays for its cost."""
        if self.penalties:
            probabilities = self.model.weights.probabilities()
            for penalty in self.penalties:
                loss = penalty(loss, probabilities)
        return loss

    @torch.compiler.disable(recursive=True)  # type: ignore[no-untyped-call, untyped-decorator]
    def report(self, name: str, value: Tensor) -> None:
        """Put a number of this step into the storage; it stays on the device."""
        self.storage.put_scalar(name, value.detach())

    @torch.compiler.disable(recursive=True)  # type: ignore[no-untyped-call, untyped-decorator]
    def report_metrics(self, outputs: Any, batch: Batch) -> None:
        """Put the metrics of a batch of the validation data into the storage."""
        if self.plan.metrics is None:
            return
        with torch.no_grad():
            found = self.plan.metrics(getattr(outputs, "logits", outputs), read_targets(batch))
        named = found if isinstance(found, dict) else {"metric": found}
        for name, value in named.items():
            self.storage.put_scalar(f"validation_{name}", value.detach() if isinstance(value, Tensor) else value)

    # Updates ------------------------------------------------------------------------------------------------

    def create_updater(self) -> "OneShotUpdater":
        """Return what makes the updates of the phases, each bounded by its own norm."""
        return OneShotUpdater(self)

    def before_update(self, phase: Phase) -> None:
        """Get ready, on the host, for the update of a phase: what is random in it follows from seed and step."""

    def _clip_gradients(self) -> None:
        """Bound the gradients of each phase as the plan says."""
        updater = self.this_run.updater
        phase, plan = updater.phase, self.plan
        limit = plan.clip_norm if phase is None or phase.name == WEIGHTS else plan.architecture_clip_norm
        value = self.settings.gradient_clip_value
        if limit is None and value is None and not self.track_gradient_norm:
            # Nobody asked: that of another phase is not this one's.
            self.gradient_norm = None
            return
        updater.clip(limit, value)

    # State --------------------------------------------------------------------------------------------------

    def create_run(self) -> "OneShotRun":
        """Return a run that tracks what is searched."""
        return OneShotRun(self)

    def track_search(self) -> None:
        """Name what changes while the search goes on."""
        self.search.seed = self.this_run.streams.seed
        self.track(search=self.search)

    def train_epoch_end(self) -> None:
        """Put the weights of the candidates into the storage, for whoever looks at how they went."""
        for name, value in self.architecture_metrics().items():
            self.storage.put_scalar(name, value, smoothing_hint=False)

    def architecture_metrics(self) -> dict[str, float]:
        """Return what is learnt about the choices, by name."""
        rows = self.candidate_rows()
        return {
            weight_metric_name(row, candidate): value
            for row, values in self.probabilities().items()
            for candidate, value in zip(rows[row], values, strict=True)
        }

    def candidate_rows(self) -> dict[str, tuple[Any, ...]]:
        """Return what is weighed: for each row its candidates. Nothing, unless a trainer says otherwise."""
        return {}

    def probabilities(self) -> dict[str, list[float]]:
        """Return what the candidates of each row weigh, on the host; the weights of a row sum to one."""
        return {}

    def create_checkpointer(self, folder: Path) -> "OneShotCheckpointer":
        """Return what keeps the run, and what it searches."""
        return OneShotCheckpointer(self, self.this_run.state, folder)

    def write_search(self, folder: RunFolder, architecture: Architecture | None = None) -> None:
        """Write into the folder of the run what is searched, by whom, and what was found, once it was."""
        described = {"trainer": self.trainer_name, "rows": self.candidate_rows(), "architecture": architecture}
        folder.write(SEARCH_FILE, json.dumps(described, indent=1))

    def weights_over_time(self) -> WeightHistory:
        """Return how the weights of candidates went, as far as they were recorded."""
        rows = self.candidate_rows()
        records: dict[int, dict[str, float]] = {}
        for row, candidates in rows.items():
            for name in (weight_metric_name(row, candidate) for candidate in candidates):
                series = self.storage.series(name) if name in self.storage.names() else Series("step")
                for step, value in zip(series.steps, series.values, strict=True):
                    records.setdefault(step, {})[name] = value
        return build_history(self.trainer_name, rows, sorted(records.items()))


class OneShotRun(Run):
    """A run that tracks what is searched beside the training of its weights."""

    trainer: OneShotCore

    def track(self) -> None:
        """Name everything that changes while the run continues."""
        super().track()
        self.trainer.track_search()


class OneShotStreams(Streams):
    """The streams of a search, whose epochs take batches of both data in turns."""

    trainer: OneShotCore

    def planned_updates(
        self, num_epochs: int | None, max_steps: int | None, accumulation: int
    ) -> tuple[int | None, int | None, int | None]:
        """Return the updates of an epoch, those of the weights among them, and the most that the search makes."""
        core = self.trainer
        if "validation" not in self.by_name:
            return super().planned_updates(num_epochs, max_steps, accumulation)
        weights, every = core.updates_per_epoch()
        limits = [max_steps] if max_steps is not None else []
        if num_epochs is not None and every is not None and weights is not None:
            limits.append(num_epochs * every - min(num_epochs, core.plan.warmup_epochs) * (every - weights))
        return every, weights, min(limits, default=None)


class OneShotUpdater(Updater):
    """Makes the updates of a search, whose chance is drawn before each."""

    trainer: OneShotCore

    def attempt(self, phase: Phase, window: list[Batch]) -> None:
        """Draw what is random in an update, and make it."""
        self.trainer.before_update(phase)
        super().attempt(phase, window)


class OneShotCheckpointer(RunCheckpointer):
    """Keeps a search: what is searched stands in its folder."""

    trainer: OneShotCore

    def write_config(self) -> None:
        """Write what the run was asked to do, and what it searches."""
        super().write_config()
        self.trainer.write_search(self.folder)


def is_ready(data: Any) -> bool:
    """Whether data is a loader, or batches, already: nobody makes a loader of it."""
    return isinstance(data, DataLoader) or not (is_map_style(data) or isinstance(data, (Dataset, Mapping)))


def _inside(how: Any) -> Any:
    """Return how to compile, with the names of modules as they are in a supernet."""
    if not isinstance(how, Compile) or how.modules is None:
        return how
    patterns = [how.modules] if isinstance(how.modules, str) else how.modules
    return replace(how, modules=[f"{INSIDE}{pattern}" for pattern in patterns])
