"""Evaluation, gathering and prediction on one process and on several."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassAUROC

from tests.parallel.programs.models import classifier, flat, per_device, samples, sgd, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer, TrainerCallback
from treadle.callbacks import ModelEmaCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.errors import ConfigError, DataError
from treadle.parallel import Processes

program = Program("evaluation")
SIZES = (3, 4, 5, 11, 12, 13, 23, 24, 25, 26, 33)
"""Around one and two global batches, with every remainder that leaves a rank with less than the others."""


class Noting(TrainerCallback):
    """Keeps the first input of every sample that this rank evaluates; in this data it is the sample's number."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_eval_step_end(self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.seen += [int(number) for number in batch[0][:, 0]]


def numbered(count: int) -> TensorDataset:
    """Return samples whose first input is their place."""
    inputs, targets = samples(count).tensors
    inputs[:, 0] = torch.arange(count)
    return TensorDataset(inputs, targets)


def evaluated(data: Any, **settings: Any) -> Report:
    """Evaluate on `data`; say what was found, and which samples each rank saw."""
    noting = Noting()
    trainer = trainer_of(classifier(), callbacks=(noting,))
    results = trainer.evaluate(data, **{"per_device_batch_size": per_device(trainer)} | settings)
    return {"loss": results["evaluation_loss"], "accuracy": results["accuracy"], "seen": noting.seen}


@program.scenario
def sizes() -> Report:
    return {str(count): evaluated(numbered(count)) for count in SIZES}


@program.scenario
def sizes_with_drop_last() -> Report:
    return {str(count): evaluated(numbered(count), dataloader_kwargs={"drop_last": True}) for count in (13, 25)}


@program.scenario
def shuffled_loader() -> Report:
    size = per_device(trainer_of(classifier()))
    return evaluated(DataLoader(numbered(25), batch_size=size, shuffle=True))


class WithoutLength(IterableDataset[Any]):
    """Samples one after the other, without a length."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        data = numbered(self._count)
        return iter([data[place] for place in range(self._count)])


@program.scenario
def iterable() -> Report:
    return {str(count): evaluated(WithoutLength(count)) for count in (5, 26)}


@program.scenario
def gathered() -> Report:
    """Gather 2, 3, 4... rows by rank; rows equal to the padding; rows of ranks that have none; scalars."""
    processes = Processes()
    rank = processes.rank
    ragged = torch.arange(2.0 + rank) + 10 * rank
    padding_like = torch.full((2 + rank, 2), -1.0)
    nothing_first = torch.full((rank, 3), rank, dtype=torch.long)
    flags = torch.tensor([True] * (1 + rank))
    return {
        "ragged": processes.gather(ragged, padding_value=-1),
        "padding_like": processes.gather(padding_like, padding_value=-1),
        "nothing_first": processes.gather(nothing_first, padding_value=-100),
        "flags": processes.gather(flags, padding_value=0),
        "scalars": processes.gather(torch.tensor(float(rank))),
        "equal": processes.gather(torch.full((1, 2), float(rank))),
        "turned": processes.gather(torch.arange(6.0).view(2, 3).t() + rank),
        "by_the_trainer": trainer_of(classifier()).gather(ragged, padding_value=0),
    }


@program.scenario
def gathered_without_padding() -> Report:
    processes = Processes()
    try:
        processes.gather(torch.zeros(1 + processes.rank))
    except ConfigError as error:
        return {"message": str(error)}
    return {"message": ""}


@program.scenario
def predicted() -> Report:
    trainer = trainer_of(classifier())
    return {str(count): trainer.predict(numbered(count), per_device(trainer)) for count in SIZES}


@program.scenario
def predicted_without_length() -> Report:
    trainer = trainer_of(classifier())
    return {"outputs": trainer.predict(WithoutLength(26), per_device(trainer))}


class Describes(Trainer):
    """Predicts something that is no tensor."""

    def calculate_prediction(self, batch: Any) -> dict[str, Tensor]:
        return {"scores": self.model(batch[0])}


@program.scenario
def predicted_no_tensor() -> Report:
    try:
        trainer_of(classifier(), Describes).predict(samples(12))
    except DataError as error:
        return {"message": str(error)}
    return {"message": ""}


class Recorded(Trainer):
    """Gathers what it evaluates, as users do."""

    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        self.rows: list[Tensor] = []

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.rows.append(batch[0][:, 0])
        return output

    def eval_epoch_end(self) -> None:
        self.run_history.update_metric("numbers", self.gather(torch.cat(self.rows), padding_value=-1).tolist())


@program.scenario
def gathered_in_a_verb() -> Report:
    trainer = trainer_of(classifier(), Recorded)
    results = trainer.evaluate(numbered(25), per_device(trainer))
    return {"numbers": sorted(results["numbers"])}


@program.scenario
def metric_whose_state_grows() -> Report:
    """Evaluate a metric that keeps every score, with ranks of unequal numbers of batches."""
    trainer = trainer_of(classifier(), metrics={"auroc": MulticlassAUROC(num_classes=3)})
    return {"auroc": trainer.evaluate(numbered(25), per_device(trainer))["auroc"]}


def apart() -> nn.Module:
    """Return a model whose batch norm is another one on each rank."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
    set_apart(model)
    return model


def set_apart(model: nn.Module) -> None:
    """Move the statistics of a batch norm as the batches of this rank would, and those of others would not."""
    model.get_submodule("1").running_mean.add_(Processes().rank)


class OwnEvaluation(Trainer):
    """Evaluates by a loop of its own, which knows nothing of processes but that samples are gathered."""

    @torch.no_grad()
    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> dict[str, Any]:
        self.model.eval()
        scores = torch.cat([self.model(batch[0]) for batch in valid_dl])
        total = float(self.gather(scores, padding_value=0).abs().sum())
        self.run_history.update_metric("scores", total)
        return {"scores": total}


class SetsApart(TrainerCallback):
    """Moves the buffers of the ranks apart after an update; in the evaluation that comes they are as they may be."""

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        set_apart(trainer.model)
        if trainer.progress.step == 2:
            self.predicted = trainer.predict(samples(12, seed=1), per_device(trainer))
            set_apart(trainer.model)


@program.scenario
def buffers_apart() -> Report:
    """Look at a model through every verb while its buffers differ; say what it is seen as."""
    data, found = samples(24, seed=1), {}
    trainer = trainer_of(apart())
    found["predicted"] = trainer.predict(data, per_device(trainer))
    trainer = trainer_of(apart())
    found["evaluated"] = trainer.evaluate(data, per_device(trainer))["evaluation_loss"]
    trainer = trainer_of(apart(), OwnEvaluation)
    found["by_own_loop"] = trainer.evaluate(data, per_device(trainer))["scores"]
    trainer = trainer_of(apart())
    trainer.save_checkpoint(program.folder / f"apart_on_{trainer.processes.size}")
    found["saved"] = trainer.model.get_submodule("1").running_mean
    return found


@program.scenario
def buffers_apart_in_a_run() -> Report:
    """Train with buffers that differ after each update; say what rank 0 saved and what all evaluated."""
    sets = SetsApart()
    average = ModelEmaCallback(decay=0.5, save_path=program.folder / f"average_on_{Processes().size}.safetensors")
    trainer = trainer_of(apart(), callbacks=(sets, average), run_dir=program.folder / f"run_on_{Processes().size}")
    trainer.train(
        samples(48),
        num_epochs=1,
        eval_dataset=samples(24, seed=1),
        per_device_batch_size=per_device(trainer),
        eval_every=2,
        save_every=2,
    )
    saved = CheckpointStore(program.folder / f"run_on_{trainer.processes.size}" / "checkpoints", Policy())
    weights = saved.read(saved.steps()[-1], rank=0)["tracked"]["model"]
    alone = apart()
    alone.load_state_dict(weights)
    inputs, targets = samples(24, seed=1).tensors
    return {
        "predicted": sets.predicted,
        "reported": trainer.run_history.get_latest_metric("eval_loss_epoch"),
        "of_the_saved": float(nn.functional.cross_entropy(alone.eval()(inputs), targets)),
        "average": trainer.run_history.get_latest_metric("ema_model_eval_loss_epoch"),
        "of_the_average": float(nn.functional.cross_entropy(average.ema_model.module(inputs), targets)),
        "mean": trainer.model.get_submodule("1").running_mean,
    }


@program.scenario
def train_evaluate_train() -> Report:
    """Alternate the verbs; ranks begin apart, and nothing but the trainer keeps them together."""
    model = classifier(seed=7 + Processes().rank)
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=(), seed=3)
    weights, losses = [], []
    for count in (25, 48, 49):
        trainer.train(samples(count), num_epochs=1, per_device_batch_size=per_device(trainer))
        weights.append(flat(model))
        losses.append(trainer.evaluate(samples(17, seed=1), per_device(trainer))["evaluation_loss"])
        losses.append(trainer.evaluate(samples(5, seed=2), per_device(trainer))["evaluation_loss"])
    return {
        "weights": torch.stack(weights),
        "losses": losses,
        "model_is_the_users": trainer.model is model and type(model) is nn.Sequential,
        "names": sorted(model.state_dict()),
    }


@program.fragile_scenario
def too_few_samples_to_evaluate() -> Report:
    try:
        trainer_of(classifier()).evaluate(samples(1))
    except DataError as error:
        return {"message": str(error)}
    return {"message": ""}


@program.scenario
def named_metrics() -> Report:
    """Evaluate by metrics that are sums; on so few samples that a rank has none, too."""
    names = ["accuracy", "precision", "recall", "f1", "auroc", "perplexity"]
    trainer = trainer_of(classifier(), metrics={**{name: name for name in names}, "largest": largest})
    return {str(count): trainer.evaluate(WithoutLength(count), per_device(trainer)) for count in (1, 13, 25)}


def largest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the largest output."""
    return outputs.amax(1).mean()


@program.fragile_scenario
def too_few_samples_to_train_with() -> Report:
    try:
        trainer_of(classifier()).train(samples(12), num_epochs=1, eval_dataset=samples(1))
    except DataError as error:
        return {"message": str(error)}
    return {"message": ""}


@program.fragile_scenario
def too_few_samples_to_predict() -> Report:
    return {"outputs": trainer_of(classifier()).predict(samples(1))}
