"""Cross-entropies whose mean is not over samples, on one process and on several."""

import importlib.util
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tests.engine import parts as engine_parts
from tests.parallel.programs.models import classifier, outcome, per_device, samples, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer
from treadle.errors import LossError
from treadle.parallel import Plan
from treadle.parallel.state_dict import gather_state

program = Program("weighted")
WEIGHT = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)


def data(ignored: bool) -> TensorDataset:
    inputs, targets = samples(53).tensors
    if ignored:
        targets = targets.clone()
        targets[::3] = -100
    return TensorDataset(inputs, targets)


def train(loss: Any, kind: type[Trainer] = Trainer, *, ignored: bool = False, parts: int = 1, **options: Any) -> Report:
    """Train with a short last batch; the recorded loss is a mean over samples, and depends on the split."""
    trainer = trainer_of(classifier(), kind, loss_func=loss, metrics=None, **options)
    settings = {"gradient_accumulation_steps": parts, "train_dataloader_kwargs": {"shuffle": False}}
    result = trainer.train(data(ignored), num_epochs=2, per_device_batch_size=per_device(trainer) // parts, **settings)
    return {"weights": outcome(trainer, result)["weights"], "steps": result.steps}


for name, arguments in {
    "weights": {"loss": nn.CrossEntropyLoss(WEIGHT)},
    "weights_accumulated": {"loss": nn.CrossEntropyLoss(WEIGHT), "parts": 3},
    "ignored": {"loss": nn.CrossEntropyLoss(), "ignored": True},
    "ignored_accumulated": {"loss": nn.CrossEntropyLoss(), "ignored": True, "parts": 2},
    "both": {"loss": nn.CrossEntropyLoss(WEIGHT, ignore_index=2, label_smoothing=0.1)},
}.items():
    program.add(name, partial(train, **arguments))


class Labelled(nn.Module):
    """Computes its loss from its labels, as a language model of transformers does: each row predicts the next label."""

    loss_type, config = "ForCausalLM", SimpleNamespace(is_encoder_decoder=False)

    def __init__(self) -> None:
        super().__init__()
        self.body = classifier()

    def forward(self, inputs: Tensor, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        items = kwargs.get("num_items_in_batch")
        flat = self.body(inputs)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        if items is None:
            return {"loss": nn.functional.cross_entropy(*flat)}
        return {"loss": nn.functional.cross_entropy(*flat, reduction="sum") / items}


class Rows(Dataset[dict[str, Tensor]]):
    """53 rows of 7 labels, of which fewer and fewer count; one row has none."""

    def __init__(self) -> None:
        self.inputs, self.labels = (one.clone().unflatten(0, (53, 7)) for one in samples(53 * 7).tensors)
        for row, labels in enumerate(self.labels):
            labels[1 + (row * 5) % 7 :] = -100

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


@program.scenario
def labels(parts: int = 1) -> Report:
    trainer = trainer_of(Labelled(), loss_func=None, metrics=None)
    settings = {"gradient_accumulation_steps": parts, "train_dataloader_kwargs": {"shuffle": False}}
    result = trainer.train(Rows(), num_epochs=2, per_device_batch_size=per_device(trainer) // parts, **settings)
    return {"weights": outcome(trainer, result)["weights"], "steps": result.steps}


program.add("labels_accumulated", partial(labels, parts=3))


@program.scenario
def two_optimizers() -> Report:
    model = classifier()
    first, last = (torch.optim.SGD(model[place].parameters(), lr=0.1 + place, momentum=0.9) for place in (0, 2))
    trainer = trainer_of(model, optimizer=[first, last], metrics=None)
    settings = {"clip_norm": 0.05, "train_dataloader_kwargs": {"shuffle": False}}
    result = trainer.train(data(ignored=True), num_epochs=2, per_device_batch_size=per_device(trainer), **settings)
    return {"weights": outcome(trainer, result)["weights"], "steps": result.steps}


class Own(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return {"loss": self.loss_func(self.model(batch[0]), batch[1]), "batch_size": len(batch[1])}


@program.scenario
def own_verb() -> Report:
    try:
        train(nn.CrossEntropyLoss(WEIGHT), Own)
    except LossError as error:
        return {"message": str(error)}
    return {"message": ""}


def in_stages(end: type[nn.Linear], loss: Any, targets: Tensor | None = None, **options: Any) -> Report:
    """Cut the model in two where there are two processes; every window is cut into micro-batches."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), end(8, 3)).double()
    alone = trainer_of(classifier()).processes.size == 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = trainer_of(
        model,
        loss_func=loss,
        optimizer=optimizer,
        metrics=None,
        parallel="auto" if alone else Plan(pipeline=2),
        **options,
    )
    inputs, drawn = samples(48).tensors
    targets = drawn if targets is None else targets
    settings = {"gradient_accumulation_steps": 1 if alone else 4, "train_dataloader_kwargs": {"shuffle": False}}
    trainer.train(TensorDataset(inputs, targets), 2, per_device_batch_size=12 if alone else 3, **settings)
    return {"outputs": trainer.predict(TensorDataset(inputs, targets)), "steps": trainer.progress.step}


@program.scenario
def stages() -> Report:
    return in_stages(nn.Linear, nn.CrossEntropyLoss(WEIGHT, ignore_index=2))


class Ends(nn.Linear):
    """A last module that computes the loss, and says over what it is a mean."""

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Any:
        scores = super().forward(hidden)
        if targets is None:
            return scores
        return {
            "loss": nn.functional.cross_entropy(scores, targets, WEIGHT),
            "num_items_in_batch": WEIGHT[targets].sum(),
        }


@program.scenario
def stages_that_end_in_a_loss() -> Report:
    if trainer_of(classifier()).processes.size == 1:
        return in_stages(nn.Linear, nn.CrossEntropyLoss(WEIGHT))
    return in_stages(Ends, None)


class BadLoss(nn.CrossEntropyLoss):
    """Infinite, with a gradient that is fine, for a batch whose targets are all the last class."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target) + torch.where((target == 2).all(), torch.inf, 0.0)


@program.scenario
def stages_with_a_bad_loss() -> Report:
    targets = torch.arange(48) % 3
    targets[12:24] = 2
    return in_stages(nn.Linear, BadLoss(), targets, on_nonfinite="skip")


def pretrained_from_config(stages: bool, accumulation: int) -> Report:
    """Train a model of transformers from a config, on windows of eight rows of which fewer and fewer labels count."""
    from tests.hf.models import Padded, build

    size = trainer_of(classifier()).processes.size
    shares = 1 if stages else size
    dist = {"device_type": "cpu", "pipeline_parallel_size": size if stages else 1}
    sizes = {"train_micro_batch_size": 8 // accumulation // shares, "global_batch_size": 8}
    name = f"labels_{size}_{stages}_{accumulation}"
    cfg = engine_parts.make_config(program.folder / name, train_iter=6, dist=dist, scheduler=None, **sizes)
    cfg.model = LazyCall(build)(kind="gpt2", dtype=torch.float64)
    cfg.dataloader = {"train": LazyCall(Padded)(), "test": []}
    trainer = DefaultTrainer(cfg)
    trainer.train()
    losses = [float(value) for value, _ in trainer.storage.history("total_loss").values()]
    state = gather_state(trainer.model)
    return {"weights": torch.cat([state[name].double().reshape(-1) for name in sorted(state)]), "losses": losses}


if importlib.util.find_spec("transformers"):
    for stages_or_shares, at_once in ((True, 1), (True, 4), (False, 1), (False, 4)):
        program.add(
            f"pretrained {'stages' if stages_or_shares else 'shares'} {at_once}",
            partial(pretrained_from_config, stages_or_shares, at_once),
        )
