"""One small training through each door, told of options by the core's names, and what is seen of it from outside."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from tests.interrupting import Updates
from tests.nas.small import make as make_search
from tests.nas.small import small
from tests.recsys.trainer.runs import make as make_recommender
from treadle import Trainer, nas
from treadle.lightning import StepModel, StepTrainer
from treadle.lightning import trainer as of_steps
from treadle.nas.oneshot import trainer as of_search
from treadle.recsys.config import core_options as of_recommenders
from treadle.schedules.placeholders import replace_placeholders
from treadle.spec import Names, divided, spec_options

SAMPLES, ROWS = 24, 8


class Forward(NamedTuple):
    """A forward pass of the watched module: in which mode, over how many rows, which, and what was looked at in it."""

    training: bool
    rows: int
    total: float
    found: Any


@dataclass
class Eye:
    """Watches a module and an optimizer by torch's own hooks, and puts things in their way.

    Args:
        look: Called in every forward pass.
        room: The most rows for which there is memory.
        poisoned: The forward pass of training, from 1, that gives nan.
    """

    look: Callable[[], Any] | None = None
    room: int | None = None
    poisoned: int | None = None
    forwards: list[Forward] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def watch(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        module.register_forward_pre_hook(self._before)
        module.register_forward_hook(self._after)
        optimizer.register_step_pre_hook(self._step)

    @property
    def trained(self) -> list[Forward]:
        return [one for one in self.forwards if one.training]

    @property
    def found(self) -> set[Any]:
        return {one.found for one in self.trained}

    def _before(self, module: nn.Module, given: Any) -> None:
        found = None if self.look is None else self.look()
        self.forwards.append(Forward(module.training, len(given[0]), float(given[0].detach().double().sum()), found))
        if self.room is not None and module.training and len(given[0]) > self.room:
            raise torch.OutOfMemoryError(f"no room for {len(given[0])} rows")

    def _after(self, module: nn.Module, given: Any, output: Tensor) -> Tensor:
        return output * float("nan") if self.poisoned == len(self.trained) and module.training else output

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        group = optimizer.param_groups[0]
        gradients = [one.grad.double() for one in group["params"] if one.grad is not None]
        self.rates.append(float(group["lr"]))
        self.norms.append(float(torch.stack([one.norm() for one in gradients]).norm()))
        self.largest.append(max(float(one.abs().max()) for one in gradients))
        self.passes.append(len(self.trained) - sum(self.passes))


@dataclass(frozen=True)
class Door:
    """A door, and its small training.

    Attributes:
        name: What it is called.
        names: How it calls the options.
        train: Trains in a folder, with what watches, the callback that counts and the options; returns the core.
        steps: Updates in an epoch.
        rows: Rows of a micro-batch.
        module: The name of the module that is watched.
        metric: What an evaluation reports.
        saved_state: Returns the training state that a core has left, to resume from.
    """

    name: str
    names: Names
    train: Callable[..., Any]
    steps: int
    rows: int
    module: str
    metric: str
    saved_state: Callable[[Any, Path], Any]

    def __str__(self) -> str:
        return self.name


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def points() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 2, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) * 3)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Sequential(nn.Linear(2, 4)), nn.Linear(4, 1))


DEFAULTS: dict[str, Any] = {"seed": 1, "device": "cpu", "num_epochs": 2}


def through_core(
    folder: Path, eye: Eye, *callbacks: Any, schedule: Any = None, evaluates: bool = False, **options: Any
) -> Any:
    built, asked = divided({"per_device_batch_size": ROWS, **DEFAULTS, **options})
    model = network()
    trainer = Trainer(model, nn.MSELoss(), sgd(model.parameters()), callbacks=callbacks, **built)
    eye.watch(model[0][0], trainer.optimizer)
    trainer.train(points(), eval_dataset=points() if evaluates else None, create_scheduler_fn=schedule, **asked)
    return trainer


class Line(StepModel):
    def __init__(self, schedule: Any) -> None:
        super().__init__()
        self.layers, self.schedule = network(), schedule

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        self.optimizer = sgd(self.parameters())
        if self.schedule is None:
            return self.optimizer
        moved = {"scheduler": self.schedule(self.optimizer), "interval": "step"}
        return {"optimizer": self.optimizer, "lr_scheduler": moved}


class EyedSteps(StepTrainer):
    """Watches the model once its optimizer is made."""

    eye: Eye

    def _made(self, model: StepModel) -> Any:
        found = super()._made(model)
        self.eye.watch(model.layers[0][0], found[1].optimizer)
        return found


def through_steps(
    folder: Path, eye: Eye, *callbacks: Any, schedule: Any = None, evaluates: bool = False, **options: Any
) -> Any:
    given = {"per_device_batch_size": ROWS, **DEFAULTS, **options}
    resume = given.pop("resume", None)
    trainer = EyedSteps(callbacks=callbacks, progress=False, **given)
    trainer.eye = eye
    numbers = {"NUM_EPOCHS": given["num_epochs"], "NUM_UPDATE_STEPS_PER_EPOCH": SAMPLES // ROWS}
    trainer.fit(Line(replace_placeholders(schedule, numbers)), points(), points() if evaluates else None, resume=resume)
    return trainer.core


class Candidates(nn.Module):
    """A space whose samples have nothing to do with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nas.LayerChoice({"flat": nn.Linear(4, 4), "none": nn.Identity()}, label="layer")
        self.head = nn.Sequential(nn.Linear(4, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(inputs))
        return output


def through_search(
    folder: Path, eye: Eye, *callbacks: Any, schedule: Any = None, evaluates: bool = False, **options: Any
) -> Any:
    """Train the weights of a supernet for as long as its warm-up, which is all of the search."""
    given = {of_search.NAMES[name]: value for name, value in {**DEFAULTS, **options}.items()}
    asked = {
        name: given.pop(name) for name in spec_options("train") if name in given and name not in of_search.OPTION_NAMES
    }
    given.setdefault("batch_size", ROWS)
    metrics = {"accuracy": MulticlassAccuracy(3)} if evaluates else None
    space = small(Candidates)
    given = {"grad_clip": None, "warmup_epochs": given["num_epochs"], **given}
    trainer = make_search(
        nas.DartsTrainer, space, optimizer=sgd, metrics=metrics, callbacks=callbacks, scheduler=schedule, **given
    )
    eye.watch(space.head[0], trainer.optimizer)
    trainer.fit(**asked)
    return trainer.core


def as_setting(option: str, value: Any) -> Any:
    if option == "eval_every":
        return int(str(value).split()[0])
    return str(value) if option == "run_dir" else value


def through_recommender(
    folder: Path, eye: Eye, *callbacks: Any, schedule: Any = None, evaluates: bool = False, **options: Any
) -> Any:
    options = {**DEFAULTS, **options}
    device, resume_from = options.pop("device"), options.pop("resume_from", None)
    assert device == "cpu"
    # A run with a folder of its own is gone on with by the same command.
    options.pop("resume", None)
    settings = {of_recommenders.NAMES[name]: as_setting(name, value) for name, value in options.items()}
    small_model = {"mf_embedding_size": 4, "mlp_embedding_size": 4, "mlp_hidden_size": [4], "dropout_prob": 0.0}
    by_sgd = {"learner": "sgd", "learning_rate": 0.1}
    settings = {"train_batch_size": 128, "gpu_id": "", "scheduler": schedule, **small_model, **by_sgd, **settings}
    run = make_recommender(folder, "NeuMF", *callbacks, **settings)
    inner = next(one for one in run.model.mlp_layers.modules() if isinstance(one, nn.Linear))
    eye.watch(inner, run.trainer.optimizer)
    if resume_from is not None:
        run.trainer.resume_checkpoint(resume_from)
    run.trainer.fit(run.train, run.valid if evaluates else None, verbose=False, saved="run_dir" in options)
    return run.trainer._core


def training_state(core: Any, folder: Path) -> Path:
    core.save_training_state(folder)
    return folder


CORE_NAMES: Names = {name: name for name in (*spec_options("trainer"), *spec_options("train"))}
DOORS = [
    Door("core", CORE_NAMES, through_core, 3, ROWS, "0", "eval_loss_epoch", training_state),
    Door("steps", of_steps.NAMES, through_steps, 3, ROWS, "layers.0", "val_loss", training_state),
    Door("search", of_search.NAMES, through_search, 3, ROWS, "head", "eval_loss_epoch", training_state),
    Door(
        "recommender",
        of_recommenders.NAMES,
        through_recommender,
        4,
        128,
        "mlp_layers",
        "valid_score",
        lambda core, folder: next(folder.parent.rglob("*.pth")),
    ),
]
__all__ = ["DOORS", "Door", "Eye", "Updates"]
