"""The page about pytorch-accelerated's trainer: its examples run, its order is kept, its verbs are there."""

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

import treadle
from tests.contract.pages import Mend, block_with, literal_blocks, ported, read_page, run
from treadle import Trainer, TrainerCallback, TrainerPlaceholderValues

PAGE = "pytorch-accelerated-trainer.rst"
TRAINING_EXAMPLE = "for epoch in num_epochs:"
FACTORY_EXAMPLE = "create_scheduler_fn = partial("
METRICS_EXAMPLE = "class TrainerWithMetrics(Trainer):"

MISSPELT_PARTIAL = Mend(
    "from functools import Partial",
    "from functools import partial",
    "functools has no Partial; the line below uses partial",
)
MISSING_TASK = [
    Mend(
        f"{metric}(num_classes=num_classes)",
        f'{metric}(task="multiclass", num_classes=num_classes)',
        "torchmetrics has required the argument task since 0.11",
    )
    for metric in ("Accuracy", "Precision", "Recall")
]


def samples(count: int, seed: int, classes: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 4, generator=generator), torch.randint(classes, (count,), generator=generator)
    )


def arguments(rate: float = 0.1) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return {"model": model, "loss_func": nn.CrossEntropyLoss(), "optimizer": SGD(model.parameters(), lr=rate)}


def test_every_example_of_the_page_is_run_below() -> None:
    blocks = literal_blocks(read_page(PAGE))
    assert len(blocks) == 4
    assert (FACTORY_EXAMPLE in blocks[0], METRICS_EXAMPLE in blocks[1], TRAINING_EXAMPLE in blocks[2]) == (True,) * 3
    assert "evaluation_run_start()" in blocks[3]


# Learning-rate schedulers -------------------------------------------------------------------------------------------


def test_the_scheduler_factory_drives_a_run() -> None:
    example = run(ported(block_with(PAGE, FACTORY_EXAMPLE), MISSPELT_PARTIAL))
    rates = []

    class NoteRates(TrainerCallback):
        def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
            rates.append(trainer.optimizer.param_groups[0]["lr"])

    trainer = Trainer(**arguments(), callbacks=(NoteRates,), device="cpu")
    trainer.train(samples(32, seed=0), num_epochs=4, create_scheduler_fn=example["create_scheduler_fn"])
    # A step size of 7 counts updates: 4 epochs of 4 make 16 of them.
    assert rates == pytest.approx([0.1] * 7 + [0.01] * 7 + [0.001] * 2)
    assert isinstance(trainer.scheduler, StepLR)


def test_the_placeholders_of_the_page_are_there() -> None:
    listed = re.findall(r"^- ``([A-Z_]+)``$", read_page(PAGE), re.MULTILINE)
    assert len(listed) == 4
    assert set(listed) <= {placeholder.name for placeholder in TrainerPlaceholderValues}


# Metrics ------------------------------------------------------------------------------------------------------------


def scores(model: nn.Module, data: TensorDataset) -> dict[str, float]:
    """Return accuracy, precision and recall over all classes together, counted class by class."""
    inputs, targets = data.tensors
    with torch.no_grad():
        predicted = model(inputs).argmax(dim=-1)
    right = [int(((predicted == label) & (targets == label)).sum()) for label in range(3)]
    wrongly_in = [int(((predicted == label) & (targets != label)).sum()) for label in range(3)]
    left_out = [int(((predicted != label) & (targets == label)).sum()) for label in range(3)]
    return {
        "accuracy": sum(right) / len(targets),
        "precision": sum(right) / (sum(right) + sum(wrongly_in)),
        "recall": sum(right) / (sum(right) + sum(left_out)),
    }


def test_the_trainer_with_metrics_records_them_in_training_and_evaluation() -> None:
    example = run(ported(block_with(PAGE, METRICS_EXAMPLE), *MISSING_TASK))
    train_data, eval_data, test_data = samples(40, seed=0), samples(22, seed=1), samples(19, seed=2)
    expected = []

    class CountAfterEachEpoch(TrainerCallback):
        def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            expected.append(scores(trainer.model, eval_data))

    trainer = example["TrainerWithMetrics"](
        3, **arguments(), callbacks=(*treadle.DEFAULT_CALLBACKS, CountAfterEachEpoch), device="cpu"
    )
    assert isinstance(trainer, Trainer)
    trainer.train(train_data, num_epochs=3, eval_dataset=eval_data, per_device_batch_size=8)
    results = trainer.evaluate(test_data, per_device_batch_size=8)
    assert results.keys() == {"evaluation_loss", "accuracy", "precision", "recall"}
    tested = scores(trainer.model, test_data)
    assert len(expected) == 3
    for name in ("accuracy", "precision", "recall"):
        assert results[name] == pytest.approx(tested[name])
        assert trainer.run_history.get_metric_values(name) == pytest.approx([one[name] for one in expected])
        assert trainer.run_history.get_metric_values(f"evaluation_{name}") == [results[name]]


# What goes on inside ------------------------------------------------------------------------------------------------

TRAIN_BATCHES, EVAL_BATCHES, EPOCHS = 3, 2, 2


class Depicted(dict[str, Any]):
    """The names of the page's pseudocode: whatever it calls is noted, in order."""

    LENGTHS = {"create_train_dataloader": range(TRAIN_BATCHES), "create_eval_dataloader": range(EVAL_BATCHES)}

    def __init__(self) -> None:
        super().__init__(num_epochs=range(EPOCHS))
        self.order: list[str] = []

    def __missing__(self, name: str) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            self.order.append(name)
            return self.LENGTHS.get(name, {"loss": None})

        return note


def depicted_order(block: str) -> list[str]:
    """Return the order of calls that the page depicts: its pseudocode is Python, so it is executed."""
    names = Depicted()
    exec(compile(block, "the pseudocode", "exec"), {}, names)  # noqa: S102 - executing the page's code is the test
    return names.order


def calls_in(block: str) -> dict[str, list[str]]:
    """Return every function that the pseudocode calls, with its arguments as they are written."""
    nodes = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    return {ast.unparse(node.func): [ast.unparse(argument) for argument in node.args] for node in nodes}


def recording_trainer(names: dict[str, list[str]]) -> tuple[Trainer, list[str]]:
    """Return a trainer that notes every verb and event among `names` as it comes."""
    order: list[str] = []

    def verb(name: str) -> Callable[..., Any]:
        def call(self: Trainer, *args: Any, **kwargs: Any) -> Any:
            order.append(name)
            return getattr(Trainer, name)(self, *args, **kwargs)

        return call

    def event(name: str) -> Callable[..., None]:
        def call(self: Any, trainer: Trainer, **kwargs: Any) -> None:
            order.append(name)
            assert set(names[name]) <= set(kwargs), f"{name} gets {sorted(kwargs)}, the page shows {names[name]}"

        return call

    events = {name: event(name) for name in names if name.startswith("on_")}
    verbs = {name: verb(name) for name in names if not name.startswith("on_")}
    callback = type("Recorder", (TrainerCallback,), events)
    trainer = type("RecordingTrainer", (Trainer,), verbs)(**arguments(), callbacks=(callback,), device="cpu")
    return trainer, order


def test_a_training_run_goes_in_the_order_that_the_page_depicts() -> None:
    block = block_with(PAGE, TRAINING_EXAMPLE)
    trainer, order = recording_trainer(calls_in(block))
    trainer.train(
        samples(2 * TRAIN_BATCHES, seed=0),
        num_epochs=EPOCHS,
        eval_dataset=samples(2 * EVAL_BATCHES, seed=1),
        per_device_batch_size=2,
        create_scheduler_fn=lambda optimizer: StepLR(optimizer, step_size=1),
    )
    assert order == depicted_order(block)


def test_an_evaluation_run_goes_in_the_order_that_the_page_depicts() -> None:
    block = block_with(PAGE, "evaluation_run_start()")
    trainer, order = recording_trainer(calls_in(block))
    trainer.evaluate(samples(2 * EVAL_BATCHES, seed=1), per_device_batch_size=2)
    assert order == depicted_order(block)


def test_backward_gets_the_loss_of_the_batch() -> None:
    assert calls_in(block_with(PAGE, TRAINING_EXAMPLE))["backward_step"] == ["batch_output['loss']"]
    losses: list[tuple[Tensor, Tensor]] = []

    class NoteLosses(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            self.output = super().calculate_train_batch_loss(batch)
            return self.output

        def backward_step(self, loss: Tensor) -> None:
            losses.append((loss, self.output["loss"]))
            super().backward_step(loss)

    NoteLosses(**arguments(), callbacks=(), device="cpu").train(samples(8, seed=0), num_epochs=1)
    assert len(losses) == 1
    assert losses[0][0] is losses[0][1]


# What the page lists ------------------------------------------------------------------------------------------------


def test_every_method_that_the_page_lists_is_there_and_documented() -> None:
    listed = re.findall(r"automethod:: (?:[\w.]+\.)?(\w+)$", read_page(PAGE), re.MULTILINE)
    assert len(listed) > 30
    listed.remove("__init__")  # described where its class is
    undocumented = [name for name in listed if not getattr(getattr(Trainer, name, None), "__doc__", None)]
    assert undocumented == []


def test_every_class_that_the_page_lists_is_exported() -> None:
    listed = re.findall(r"autoclass:: (\w+)$", read_page(PAGE), re.MULTILINE)
    assert listed == ["Trainer", "TrainerPlaceholderValues"]
    assert set(listed) <= set(treadle.__all__)


SIGNATURES = {
    "__init__": "model loss_func optimizer callbacks run_history",
    "train": "train_dataset num_epochs eval_dataset per_device_batch_size max_num_train_steps "
    "gradient_accumulation_steps gradient_clip_value create_scheduler_fn train_dataloader_kwargs "
    "eval_dataloader_kwargs reset_run_history collate_fn resume_from",
    "evaluate": "dataset per_device_batch_size dataloader_kwargs collate_fn",
    "save_checkpoint": "save_path checkpoint_kwargs save_optimizer save_scheduler save_per_node",
    "load_checkpoint": "checkpoint_path load_optimizer load_scheduler",
    "create_train_dataloader": "batch_size train_dl_kwargs",
    "create_eval_dataloader": "batch_size eval_dl_kwargs",
    "get_default_train_dl_kwargs": "batch_size",
    "get_default_eval_dl_kwargs": "batch_size",
    "calculate_train_batch_loss": "batch",
    "calculate_eval_batch_loss": "batch",
    "backward_step": "loss",
    "_create_run_config": "per_device_batch_size num_epochs gradient_accumulation_steps max_num_train_steps "
    "gradient_clip_value",
    "_prepare_dataloaders": "",
    "_prepare_model_and_optimizer": "",
    "_run_training": "",
    "_clip_gradients": "",
    "_add_epoch_loss_to_run_history": "metric_name",
    "_run_train_epoch": "train_dl",
    "_run_eval_epoch": "valid_dl is_training is_intermediate",
    "gather": "tensor padding_value",
    "get_model": "keep_torch_compile",
    "save_training_state": "output_dir checkpoint_kwargs",
    "load_training_state": "input_dir",
}
"""The arguments of the methods that the page lists and of their companions, in the order users pass them."""


@pytest.mark.parametrize(("method", "expected"), SIGNATURES.items())
def test_the_arguments_of_a_method_have_the_names_and_the_order_that_users_know(method: str, expected: str) -> None:
    parameters = inspect.signature(getattr(Trainer, method)).parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ["self", *expected.split()]
