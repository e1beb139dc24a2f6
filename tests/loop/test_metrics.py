"""Metrics as people write them: names, functions and torchmetrics, for training and evaluation."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional import classification as reference
from torchmetrics.functional import regression

from treadle import Trainer
from treadle.errors import ConfigError
from treadle.lightning import StepModel, StepTrainer
from treadle.loop.metric_inputs import Measured
from treadle.loop.metrics import Metrics
from treadle.parallel import Processes

CE, BCE, MSE = nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(), nn.MSELoss()


def drawn(*shape: int, classes: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + classes)
    return torch.randint(classes, shape, generator=generator) if classes else torch.randn(*shape, generator=generator)


def value_of(name: Any, outputs: Any, targets: Any, loss: Any = CE, model: Any = None) -> Any:
    """Return a metric over two batches, the second one shorter."""
    metrics = Metrics(name)
    trainer: Any = SimpleNamespace(loss_func=loss, model=model or nn.Linear(1, 1), device=torch.device("cpu"))
    half = len(targets) * 2 // 3
    for part in (slice(None, half), slice(half, None)):
        metrics.update(Measured(outputs[part], targets[part], len(targets[part]), trainer))
    found = metrics.compute(Processes("cpu"))
    return next(iter(found.values())) if len(found) == 1 else found


OUTPUTS, TARGETS = drawn(60, 7), drawn(60, classes=7)
CLASSES: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "accuracy": (reference.multiclass_accuracy, {"average": "micro"}),
    "top5_accuracy": (reference.multiclass_accuracy, {"average": "micro", "top_k": 5}),
    "precision": (reference.multiclass_precision, {"average": "macro"}),
    "recall": (reference.multiclass_recall, {"average": "macro"}),
    "f1": (reference.multiclass_f1_score, {"average": "macro"}),
}


@pytest.mark.parametrize("name", CLASSES)
def test_named_metrics_of_classes_are_those_of_torchmetrics(name: str) -> None:
    function, arguments = CLASSES[name]
    assert value_of(name, OUTPUTS, TARGETS) == pytest.approx(function(OUTPUTS, TARGETS, 7, **arguments).item())
    # Of text and of pictures, with the classes in the last or the second dimension, and with targets that do not count.
    ignored = torch.where(drawn(60, classes=3) == 0, -100, TARGETS)
    expected = function(OUTPUTS, ignored, 7, ignore_index=-100, **arguments).item()
    assert value_of(name, OUTPUTS.reshape(12, 5, 7), ignored.reshape(12, 5)) == pytest.approx(expected)
    assert value_of(name, OUTPUTS.reshape(12, 5, 7).mT, ignored.reshape(12, 5)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["accuracy", "precision", "recall", "f1", "auroc"])
@pytest.mark.parametrize("columns", [0, 1, 2])
def test_named_metrics_of_two_classes_look_for_the_second_one(name: str, columns: int) -> None:
    logits, truth = drawn(60), drawn(60, classes=2)
    outputs = {0: logits, 1: logits[:, None], 2: torch.stack([-logits, logits], 1) / 2}[columns]
    function = getattr(reference, f"binary_{'f1_score' if name == 'f1' else name}")
    given = truth if columns == 2 else truth.reshape(outputs.shape).float()
    found = value_of(name, outputs, given, CE if columns == 2 else BCE)
    assert found == pytest.approx(function(logits.sigmoid(), truth).item(), abs=2e-3 if name == "auroc" else 1e-6)


def test_probabilities_are_answers_from_a_half_on_where_the_loss_takes_probabilities() -> None:
    assert value_of("accuracy", torch.tensor([0.4, 0.6, 0.9]), torch.tensor([0.0, 0.0, 1.0]), nn.BCELoss()) == 2 / 3


def test_targets_that_are_shares_of_classes_are_right_where_the_largest_is() -> None:
    assert value_of("accuracy", OUTPUTS, OUTPUTS.softmax(1)) == 1


def test_auroc_of_several_classes_is_their_mean_as_exact_as_bf16() -> None:
    expected = reference.multiclass_auroc(OUTPUTS, TARGETS, 7).item()
    assert value_of("auroc", OUTPUTS, TARGETS) == pytest.approx(expected, abs=2e-3)
    exact = OUTPUTS[:, 0].bfloat16().float()
    truth = TARGETS > 3
    assert value_of("auroc", exact, truth.float(), MSE) == pytest.approx(
        reference.binary_auroc(exact, truth.int()).item()
    )


@pytest.mark.parametrize("name", ["mae", "mse", "rmse", "r2"])
@pytest.mark.parametrize("columns", [0, 3])
def test_named_metrics_of_values_are_those_of_torchmetrics(name: str, columns: int) -> None:
    outputs = drawn(60, columns) if columns else drawn(60)
    targets = (
        outputs * 0.7 + 3 + 0.3 * drawn(60, 1 + columns)[:, :columns].reshape(outputs.shape) if columns else -outputs
    )
    expected = {
        "mae": regression.mean_absolute_error(outputs, targets),
        "mse": regression.mean_squared_error(outputs, targets),
        "rmse": regression.mean_squared_error(outputs, targets, squared=False),
        "r2": regression.r2_score(outputs, targets),
    }[name]
    assert value_of(name, outputs, targets, MSE) == pytest.approx(expected.item(), rel=1e-5)
    assert value_of(name, outputs[..., None], targets, MSE) == pytest.approx(expected.item(), rel=1e-5)


def test_perplexity_is_over_the_targets_that_count() -> None:
    ignored = torch.where(drawn(60, classes=3) == 0, -100, TARGETS)
    expected = F.cross_entropy(OUTPUTS, ignored).exp().item()
    assert value_of("perplexity", OUTPUTS.reshape(12, 5, 7), ignored.reshape(12, 5)) == pytest.approx(expected)


def test_metrics_of_a_language_model_with_a_loss_of_its_own_are_of_the_next_token() -> None:
    model = nn.Linear(1, 1)
    model.loss_type, model.config = "ForCausalLM", SimpleNamespace(is_encoder_decoder=False)  # type: ignore[assignment]
    scores, labels = OUTPUTS.reshape(12, 5, 7), TARGETS.reshape(12, 5)
    expected = F.cross_entropy(scores[:, :-1].reshape(-1, 7), labels[:, 1:].reshape(-1)).exp().item()
    assert value_of("perplexity", scores, labels, None, model) == pytest.approx(expected)


def test_a_function_is_a_mean_weighted_by_samples() -> None:
    def error(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean()

    outputs, targets = drawn(9), drawn(9, classes=2)
    assert value_of(error, outputs, targets) == pytest.approx(error(outputs, targets).item())
    several = {"both": lambda one, other: {"a": (one - other).abs(), "b": float((one - other).abs().mean())}}
    expected = error(outputs, targets).item()
    assert value_of(several, outputs, targets) == {"a": pytest.approx(expected), "b": pytest.approx(expected)}


REFUSED: list[tuple[Any, Any, Any, Any, str]] = [
    (
        "accuracy",
        drawn(4),
        drawn(4, classes=2),
        MSE,
        "does not tell whether they are logits or probabilities; pass a fun",
    ),
    ("accuracy", drawn(4, 3), drawn(5, classes=3), CE, "no dimension fits the targets"),
    ("accuracy", drawn(4, 3, 3), drawn(4, 3, classes=3), MSE, "may be in the second dimension or in the last"),
    ("accuracy", [drawn(4, 3)] * 4, drawn(4, classes=3), CE, "both must be tensors; override update_metrics"),
    ("top5_accuracy", drawn(4, 3), drawn(4, classes=3), CE, "the best five of 3 classes, which is always right"),
    ("f1", drawn(4, 3), drawn(4, 3).relu(), BCE, r"several labels.*task='multilabel' with num_labels=3"),
    ("auroc", drawn(4, 17), drawn(4, classes=17), CE, "16 classes at most, and there are 17; pass torchmetrics"),
    ("mse", drawn(4, 3), drawn(4), MSE, r"outputs of shape \(2, 3\).*targets of shape \(2,\).*one output for each"),
    ({"own": lambda one, other: one}, drawn(6, 2), drawn(4), MSE, "one value, or one for each sample"),
]


@pytest.mark.parametrize(("name", "outputs", "targets", "loss", "message"), REFUSED)
def test_what_a_metric_cannot_read_is_refused(name: Any, outputs: Any, targets: Any, loss: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        value_of(name, outputs, targets, loss)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("acuracy", "'acuracy' does not exist; did you mean 'accuracy'"),
        (["accuracy", "accuracy"], "two metrics called 'accuracy'; give them names, in a dict"),
        ([lambda one, other: one], "a function without a name"),
        ({"accuracy": MulticlassAccuracy}, "is the class MulticlassAccuracy; pass an instance"),
        (3, "metrics=3: pass a name such as 'accuracy'"),
        ({"x": 3}, "is a int without"),
    ],
)
def test_what_is_no_metric_is_refused_when_the_trainer_is_built(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(nn.Linear(1, 1), MSE, None, metrics=given)


# In runs -----------------------------------------------------------------------------------------------------


def built(loss: Any = CE, kind: Any = Trainer, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return kind(model, loss, torch.optim.SGD(model.parameters(), lr=0.3), callbacks=(), seed=1, **options)


def data(count: int = 22) -> TensorDataset:
    inputs = drawn(count, 4)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def run(trainer: Any, **options: Any) -> Any:
    return trainer.train(data(), 2, data(10), 8, **options)


class Counting(Trainer):
    """Counts what it is right in, in training, as one would otherwise."""

    right = samples = 0

    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        self.right = self.samples = 0

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        self.right += int((output["model_outputs"].argmax(1) == batch[1]).sum())
        self.samples += len(batch[1])
        return output


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}], ids=["plain", "accumulated"])
def test_names_and_functions_are_kept_for_training_too(settings: dict[str, Any]) -> None:
    def share(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).float().mean()

    trainer = built(kind=Counting, metrics=["accuracy", share, MulticlassAccuracy(3)])
    run(trainer, **settings)
    history = trainer.run_history
    expected = trainer.right / trainer.samples
    assert trainer.samples == 22
    assert history.get_latest_metric("train_accuracy") == expected
    assert history.get_latest_metric("train_share") == pytest.approx(expected)
    assert "train_multiclassaccuracy" not in history.get_metric_names()
    assert len(history.get_metric_values("train_accuracy")) == len(history.get_metric_values("accuracy")) == 2
    right = (trainer.predict(data(10)).argmax(1) == data(10).tensors[1]).sum().item()
    assert history.get_latest_metric("accuracy") == right / 10


def test_train_metrics_says_which_are_kept_for_training() -> None:
    every = {"accuracy": "accuracy", "torch": MulticlassAccuracy(3, average="micro")}
    trainer = built(metrics=every, train_metrics=True)
    run(trainer)
    latest = trainer.run_history.get_latest_metric
    assert latest("train_torch") == pytest.approx(latest("train_accuracy"))
    none = built(metrics=every, train_metrics=False)
    run(none)
    assert not any(name.startswith("train_acc") for name in none.run_history.get_metric_names())
    only = built(train_metrics="f1")
    run(only)
    assert len(only.run_history.get_metric_values("train_f1")) == 2
    assert "f1" not in only.run_history.get_metric_names()


def test_metrics_leave_the_training_itself_alone() -> None:
    plain, measured = built(), built(metrics=["accuracy", "auroc", "f1"])
    run(plain)
    run(measured)
    assert torch.equal(plain.model.weight, measured.model.weight)


def test_a_second_run_begins_with_nothing() -> None:
    trainer = built(metrics="accuracy")
    run(trainer)
    trainer.train(TensorDataset(drawn(3, 4), drawn(3, classes=3)), 1, per_device_batch_size=3)
    assert trainer.run_history.get_latest_metric("train_accuracy") * 3 == pytest.approx(
        round(trainer.run_history.get_latest_metric("train_accuracy") * 3)
    )


def test_an_epoch_that_is_halved_for_memory_counts_each_sample_once() -> None:
    class OutOfMemory(Counting):
        failed = False

        def backward_step(self, loss: Tensor) -> None:
            if not self.failed:
                self.failed = True
                raise torch.OutOfMemoryError
            super().backward_step(loss)

    trainer = built(kind=OutOfMemory, metrics="accuracy", microbatch="auto")
    trainer.train(data(), 1, per_device_batch_size=8)
    plain = built(metrics="accuracy")
    plain.train(data(), 1, per_device_batch_size=8)
    assert trainer.samples == 22 + 8
    assert trainer.run_history.get_latest_metric("train_accuracy") == plain.run_history.get_latest_metric(
        "train_accuracy"
    )


def test_a_function_that_reads_the_device_is_refused_in_training_and_not_in_evaluation() -> None:
    metrics = {"share": lambda outputs, targets: float((outputs.argmax(1) == targets).float().mean())}
    with pytest.raises(ConfigError, match=r"returned a float for a batch of training; .*train_metrics=False"):
        run(built(metrics=metrics))
    trainer = built(metrics=metrics, train_metrics=False)
    run(trainer)
    assert trainer.run_history.get_latest_metric("share") > 0


def test_a_loss_method_that_returns_no_outputs_is_told_of() -> None:
    class OnlyLoss(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            return {"loss": CE(self.model(batch[0]), batch[1]), "batch_size": len(batch[1])}

    with pytest.raises(ConfigError, match=r"no 'model_outputs', .*train_metrics=\['accuracy'\].*train_metrics=False"):
        run(built(kind=OnlyLoss, metrics="accuracy"))


def test_a_loop_that_hands_nothing_to_the_metrics_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    class OwnLoop(Trainer):
        hands = False

        def _run_train_epoch(self, train_dl: Any) -> None:
            for batch in train_dl:
                output = self.calculate_train_batch_loss(batch)
                output["loss"].backward()
                if self.hands:
                    self.update_metrics(batch, output)
                self.optimizer.step()  # type: ignore[union-attr]
                self.optimizer.zero_grad()  # type: ignore[union-attr]

    trainer = built(kind=OwnLoop, metrics="accuracy")
    run(trainer)
    assert capsys.readouterr().out.count("saw no batch") == 1
    trainer.hands = True
    run(trainer)
    assert len(trainer.run_history.get_metric_values("train_accuracy")) == 2


@pytest.mark.parametrize("given", ["loss", {"loss_epoch": "mse"}])
def test_a_metric_of_training_cannot_have_the_name_of_the_loss(given: Any) -> None:
    metrics = given if isinstance(given, dict) else {given: "mse"}
    with pytest.raises(ConfigError, match=r"cannot be called 'loss.*is the loss"):
        built(metrics=metrics)


def test_train_metrics_true_without_metrics_is_refused() -> None:
    with pytest.raises(ConfigError, match="train_metrics=True has no metrics to keep"):
        built(train_metrics=True)


class Stepping(StepModel):
    """Returns its outputs beside its loss, or does not."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.returns = nn.Linear(4, 3), returns

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = self.layer(batch[0])
        loss = CE(outputs, batch[1])
        return {"loss": loss, "outputs": outputs} if self.returns else loss

    validation_step = training_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3)


def test_models_with_their_own_steps_are_measured_by_the_outputs_they_return() -> None:
    functions = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float()}
    trainer = StepTrainer(num_epochs=1, metrics=functions, progress=False, per_device_batch_size=8)
    trainer.fit(Stepping(True), data(), data(10))
    assert trainer.core is not None
    history = trainer.core.run_history
    assert {"accuracy", "train_accuracy"} <= set(history.get_metric_names())
    with pytest.raises(ConfigError, match=r"return \{'loss': loss, 'outputs': outputs\} from its steps"):
        StepTrainer(num_epochs=1, metrics=functions, progress=False).fit(Stepping(False), data())
