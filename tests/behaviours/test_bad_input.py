"""Mistakes of users, and the messages they get: what is wrong, where, and what to do."""

import inspect
import pydoc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import EarlyStoppingCallback, SaveBestModelCallback
from treadle.errors import CallbackError, ConfigError, DataError, LossError, UnknownEventError, UnknownMetricError
from treadle.trainer import Trainer

DATA = TensorDataset(torch.ones(12, 2), torch.zeros(12, 1))
EMPTY = TensorDataset(torch.ones(0, 2), torch.zeros(0, 1))


def make_trainer(*callbacks: Any, kind: type[Trainer] = Trainer, **kwargs: Any) -> Any:
    model = kwargs.pop("model", None) or nn.Linear(2, 1)
    options = {
        "loss_func": nn.MSELoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "device": "cpu",
        **kwargs,
    }
    return kind(model, callbacks=callbacks, **options)


def with_loss(make_loss: Callable[[Any, Any], Any]) -> Any:
    """A trainer whose loss verb returns what `make_loss` makes of the trainer and a proper output."""

    class Losing(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            return make_loss(self, super().calculate_train_batch_loss(batch))

    return make_trainer(kind=Losing)


class NoSamples(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


# Parts of the trainer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet"}, r"model is a str; pass a torch\.nn\.Module"),
        ({"loss_func": "mse"}, r"loss_func is a str; pass a callable of \(outputs, targets\), or None"),
        ({"optimizer": "adam"}, r"optimizer is a str; pass a torch\.optim\.Optimizer, or a list or a dict of them"),
        ({"optimizer": torch.optim.SGD}, r"optimizer is a type; pass a torch\.optim\.Optimizer"),
        ({"optimizer": {"a": 1}}, r"optimizer is a int; pass a torch\.optim\.Optimizer, or a list or a dict of them"),
        ({"seed": "a"}, "seed='a' must be a whole number, or None to seed nothing"),
        ({"seed": True}, "seed=True must be a whole number, or None to seed nothing"),
        ({"callbacks": None}, r"callbacks=None; pass a sequence of callbacks, or \(\) for none"),
        ({"callbacks": "bar"}, r"callbacks='bar'; pass a sequence of callbacks, or \(\) for none"),
        ({"loss_reduction": "average"}, r"loss_reduction='average' is unknown; use 'mean' or 'sum'"),
        ({"precision": "fp8"}, r"precision='fp8' is unknown; use one of \('auto', 'fp32', 'bf16', 'fp16'\)"),
        ({"metrics": ["acuracy"]}, r"the metric 'acuracy' does not exist; did you mean 'accuracy'"),
        ({"metrics": {"f1": 3}}, r"metrics\['f1'\] is a int without \['update', 'compute', 'reset'\]"),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused_when_the_trainer_is_built(arguments: dict[str, Any], message: str) -> None:
    model = nn.Linear(2, 1)
    parts = {"model": model, "loss_func": nn.MSELoss(), "optimizer": None, "callbacks": (), "device": "cpu"}
    with pytest.raises(ConfigError, match=message):
        Trainer(**{**parts, **arguments})


def test_an_argument_that_nobody_knows_is_told_under_the_name_of_the_trainer() -> None:
    with pytest.raises(TypeError, match=r"^Trainer\(\) takes no 'precison'; did you mean 'precision'\?"):
        Trainer(nn.Linear(1, 1), nn.MSELoss(), None, precison="bf16")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 3}, r"^Trainer\.train\(\) takes no 'epochs'; did you mean 'num_epochs'\?$"),
        ({"batch_size": 3}, r"takes no 'batch_size'; did you mean 'per_device_batch_size'\?$"),
        ({"zzz": 3}, r"takes no 'zzz'; it takes \['train_dataset', "),
    ],
)
def test_an_argument_of_train_that_nobody_knows_is_told_with_the_nearest(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make_trainer().train(DATA, **arguments)


def test_an_argument_of_a_callback_that_nobody_knows_is_told_with_the_nearest() -> None:
    class Own(EarlyStoppingCallback):
        def __init__(self, level: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    for kind, given in ((EarlyStoppingCallback, {}), (Own, {"level": 1})):
        with pytest.raises(ConfigError, match=r"takes no 'patiance'; did you mean 'early_stopping_patience'\?"):
            kind(patiance=3, **given)  # type: ignore[arg-type]


def test_signatures_are_those_of_the_functions_themselves() -> None:
    assert list(inspect.signature(Trainer).parameters)[:3] == ["model", "loss_func", "optimizer"]
    assert list(inspect.signature(Trainer.train, follow_wrapped=False).parameters)[:2] == ["self", "train_dataset"]
    assert "early_stopping_patience: int = 1" in pydoc.render_doc(EarlyStoppingCallback, renderer=pydoc.plaintext)
    assert "Train on `train_dataset`" in str(Trainer.train.__doc__)


def test_a_model_that_was_given_as_a_class_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model is a type; pass a torch\.nn\.Module"):
        Trainer(nn.Linear, nn.MSELoss(), None, device="cpu")  # type: ignore[arg-type]


def test_a_loss_that_was_given_as_a_class_is_refused() -> None:
    """`nn.MSELoss` instead of `nn.MSELoss()` would be called with outputs and targets as its arguments."""
    with pytest.raises(ConfigError, match=r"loss_func is .*MSELoss.*MSELoss\(\)"):
        make_trainer(loss_func=nn.MSELoss)


def test_the_optimizer_of_another_model_is_refused() -> None:
    trainer = make_trainer(optimizer=torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=r"holds no parameter of this model; build it from model\.parameters\(\)"):
        trainer.train(DATA, 1)


def test_training_without_an_optimizer_is_refused() -> None:
    trainer = make_trainer(optimizer=None)
    with pytest.raises(ConfigError, match="no optimizer, so it can only evaluate; build it with optimizer="):
        trainer.train(DATA, 1)


# Callbacks ----------------------------------------------------------------------------------------------------


class Quiet(TrainerCallback):
    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        pass


def test_a_callback_class_given_twice_is_refused_by_name() -> None:
    with pytest.raises(CallbackError, match=r"Quiet was given twice; .* pass a single Quiet or a subclass of it"):
        make_trainer(Quiet, Quiet())


def test_something_that_is_no_callback_is_refused() -> None:
    with pytest.raises(CallbackError, match="is no callback: it has none of the methods"):
        make_trainer(42)


def test_a_misspelt_event_is_refused_where_the_class_is_written() -> None:
    with pytest.raises(UnknownEventError, match=r"Typo\.on_train_step_ends .* did you mean 'on_train_step_end'\?"):

        class Typo(TrainerCallback):
            def on_train_step_ends(self, trainer: Any, **kwargs: Any) -> None:
                pass


@pytest.mark.parametrize("callback", [EarlyStoppingCallback, SaveBestModelCallback])
def test_a_metric_that_is_never_reported_is_named_with_those_that_are(callback: Any, tmp_path: Any) -> None:
    options = {"save_path": tmp_path / "best.pt"} if callback is SaveBestModelCallback else {}
    trainer = make_trainer(callback(watch_metric="auc", **options))
    with pytest.raises(UnknownMetricError, match=r"'auc'.*eval_loss_epoch"):
        trainer.train(DATA, 1, eval_dataset=DATA)


def test_a_scheduler_metric_that_is_never_reported_is_named_with_those_that_are() -> None:
    def plateau(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    with pytest.raises(UnknownMetricError, match=r"no metric 'auc' .*\['eval_loss_epoch', 'train_loss_epoch'\]"):
        make_trainer().train(DATA, 1, eval_dataset=DATA, create_scheduler_fn=plateau, scheduler_metric="auc")


# Arguments of train -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"train\(\) needs a limit; pass num_epochs= or max_steps="),
        ({"num_epochs": 0}, "num_epochs=0 must be a whole number above 0"),
        ({"num_epochs": -1}, "num_epochs=-1 must be a whole number above 0"),
        ({"num_epochs": 1.5}, r"num_epochs=1\.5 must be a whole number above 0"),
        ({"num_epochs": True}, "num_epochs=True must be a whole number above 0"),
        ({"num_epochs": "3"}, "num_epochs='3' must be a whole number above 0"),
        ({"max_steps": 0}, "max_steps=0 must be a whole number above 0"),
        ({"max_steps": 4, "max_num_train_steps": 5}, "max_steps=4 and max_num_train_steps=5 differ; pass one of them"),
        ({"num_epochs": 1, "per_device_batch_size": 0}, "per_device_batch_size=0 must be a whole number above 0"),
        ({"num_epochs": 1, "gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be a whole number"),
        ({"num_epochs": 1, "gradient_clip_value": -1.0}, r"gradient_clip_value=-1\.0 must be a number above 0"),
        ({"num_epochs": 1, "clip_norm": 0}, "clip_norm=0 must be a number above 0"),
        ({"num_epochs": 1, "clip_norm": float("nan")}, "clip_norm=nan must be a number above 0"),
        (
            {"num_epochs": 1, "eval_every": "often"},
            "eval_every='often' is not a valid interval; write a number of steps, '500 s",
        ),
        ({"num_epochs": 1, "eval_every": "0 steps"}, "eval_every='0 steps' is not a valid interval"),
        ({"num_epochs": 1, "eval_every": 0}, r"eval_every=0 is not a valid interval.*\(at least 1\)"),
        ({"num_epochs": 1, "log_every": "5 batches"}, "log_every='5 batches' is not a valid interval"),
        ({"num_epochs": 1, "log_every": None}, "log_every=None is not a valid interval"),
        ({"num_epochs": 1, "log_every": 2.5}, r"log_every=2\.5 is not a valid interval"),
        ({"num_epochs": 1, "save_every": "-1 epoch"}, "save_every='-1 epoch' is not a valid interval"),
        ({"num_epochs": 1, "scheduler_interval": "batch"}, "scheduler_interval='batch' is unknown; use 'step' or"),
        ({"num_epochs": 1, "create_scheduler_fn": "cosine"}, "create_scheduler_fn got 'cosine', which cannot be call"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_by_name_and_value(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer().train(DATA, **arguments)


def test_a_scheduler_instance_is_refused_with_the_factory_to_write_instead() -> None:
    trainer = make_trainer()
    instance = StepLR(trainer.optimizer, step_size=3)
    expected = r"an instance of StepLR; pass a factory instead: functools\.partial\(StepLR, step_size=\.\.\.\)"
    with pytest.raises(ConfigError, match=expected):
        trainer.train(DATA, 1, create_scheduler_fn=instance)


def test_evaluating_without_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\(\) has no data; pass a dataset"):
        make_trainer().evaluate()


def test_settings_are_asked_for_before_there_is_a_run() -> None:
    with pytest.raises(ConfigError, match=r"no run yet; call train\(\) first"):
        _ = make_trainer().settings


def test_something_without_state_cannot_be_tracked() -> None:
    with pytest.raises(ConfigError, match=r"track\(counter=\.\.\.\): a int has no state_dict and load_state_dict"):
        make_trainer().track(counter=3)


# Data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (EMPTY, "the data set TensorDataset is empty; give it at least one sample"),
        ([], "the data set list is empty; give it at least one sample"),
        (DataLoader(DATA, batch_size=20, drop_last=True), "the training data gives no batch; .* drop_last leaves"),
        (DataLoader(DATA, batch_sampler=[]), "the training data gives no batch"),
        (NoSamples(), "epoch 1 made no update: its data gave no batch"),
        (iter(()), "epoch 1 made no update: its data gave no batch"),
        (None, "a NoneType is no data; pass a data set, a DataLoader or an iterable of batches"),
        (7, "a int is no data; pass a data set, a DataLoader or an iterable of batches"),
    ],
)
def test_training_data_without_a_batch_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_trainer().train(data, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (EMPTY, "the data set TensorDataset is empty"),
        (DataLoader(EMPTY), "the evaluation data gave no sample; check the data set, its filter and its loader"),
        (NoSamples(), "the evaluation data gave no sample"),
    ],
)
def test_evaluation_data_without_a_sample_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_trainer().train(DATA, 1, eval_dataset=data)
    with pytest.raises(DataError, match=message):
        make_trainer().evaluate(data)


@pytest.mark.parametrize("data", [EMPTY, NoSamples(), iter(())])
def test_nothing_to_predict_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match=r"empty|no sample|no batch"):
        make_trainer().predict(data)


def test_a_function_that_makes_batches_is_refused_with_a_hint() -> None:
    def batches() -> Iterator[Any]:
        yield torch.ones(2, 2), torch.zeros(2, 1)

    with pytest.raises(DataError, match="a function is no data; pass a data set, a DataLoader or an iterable"):
        make_trainer().train(batches, 1)


def test_a_generator_that_is_exhausted_in_the_second_epoch_says_so() -> None:
    batches = ((torch.ones(2, 2), torch.zeros(2, 1)) for _ in range(3))
    with pytest.raises(DataError, match=r"epoch 2 made no update: .* an iterator lasts for one epoch only"):
        make_trainer().train(batches, 2)


@pytest.mark.parametrize("batch", [torch.ones(4, 2), (torch.ones(4, 2),), 5])
def test_a_batch_without_targets_is_refused(batch: Any) -> None:
    """A bare tensor has a first and a second row, which are no inputs and targets."""
    with pytest.raises(DataError, match=r"has no \(inputs, targets\); make the data set return pairs, or override"):
        make_trainer().train(DataLoader([batch] * 2, batch_size=None, collate_fn=lambda sample: sample), 1)


def test_a_dict_batch_without_a_target_is_refused_with_the_names_that_would_do() -> None:
    model = nn.Linear(2, 1)
    data = [{"input": torch.ones(2), "answer": torch.zeros(1)}] * 4

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, input: Any, answer: Any) -> Any:
            return self.layer(input)

    with pytest.raises(DataError, match=r"\['answer', 'input'\] has none of \('labels', 'label', 'targets', 'target'"):
        make_trainer(model=Takes()).train(data, 1)


class WrongShape(IterableDataset[Any]):
    """The second batch has three features where the model takes two."""

    def __iter__(self) -> Iterator[Any]:
        for features in (2, 3):
            for _ in range(4):
                yield torch.ones(features), torch.zeros(1)


def test_an_error_in_a_step_names_step_epoch_verb_and_shapes() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        make_trainer().train(WrongShape(), 1, per_device_batch_size=4)
    assert caught.value.__notes__ == [
        "at step 2, epoch 1, in calculate_train_batch_loss, for batches of [float32 (4, 3), float32 (4, 1)]"
    ]


def test_an_error_for_a_missing_key_names_its_place_as_well() -> None:
    class Keys(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            return {"loss": batch["no such key"].sum()}

    with pytest.raises(KeyError) as caught:
        make_trainer(kind=Keys).train([{"x": torch.ones(2)}] * 4, 1)
    assert "at step 1, epoch 1" in caught.value.__notes__[0]
    assert "{x: float32 (4, 2)}" in caught.value.__notes__[0]


def test_an_error_in_an_evaluation_names_its_place_as_well() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        make_trainer().evaluate(WrongShape(), per_device_batch_size=4)
    assert "calculate_eval_batch_loss" in caught.value.__notes__[0]
    assert "[float32 (4, 3), float32 (4, 1)]" in caught.value.__notes__[0]


# Losses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_loss", "message"),
    [
        (lambda trainer, output: output["loss"], "returned a Tensor; return a dict with 'loss', 'model_outputs'"),
        (lambda trainer, output: None, "returned a NoneType; return a dict with 'loss'"),
        (lambda trainer, output: {"los": output["loss"]}, r"returned a dict with \['los'\]; return a dict with 'loss'"),
        (
            lambda trainer, output: {**output, "loss": output["loss"].item()},
            r"returned a loss of type float; return a tensor, not its \.item\(\)",
        ),
        (
            lambda trainer, output: {**output, "loss": output["model_outputs"]},
            r"returned a loss of shape \(8, 1\); reduce it with \.mean\(\) or \.sum\(\)",
        ),
        (
            lambda trainer, output: {**output, "loss": output["loss"].detach()},
            "returned a loss without a graph; compute it from the model's outputs",
        ),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_refused_at_the_first_step(make_loss: Any, message: str) -> None:
    with pytest.raises(LossError, match=f"calculate_train_batch_loss {message}") as caught:
        with_loss(make_loss).train(DATA, 1)
    assert "at step 1, epoch 1" in caught.value.__notes__[0]


def test_an_unreduced_loss_function_is_refused() -> None:
    with pytest.raises(LossError, match=r"returned a loss of shape \(8, 1\); reduce it"):
        make_trainer(loss_func=nn.MSELoss(reduction="none")).train(DATA, 1)


def test_an_evaluation_loss_that_cannot_be_used_is_refused_as_well() -> None:
    class Losing(Trainer):
        def calculate_eval_batch_loss(self, batch: Any) -> Any:
            return super().calculate_eval_batch_loss(batch)["loss"]

    with pytest.raises(LossError, match="calculate_eval_batch_loss returned a Tensor; return a dict with 'loss'"):
        make_trainer(kind=Losing).evaluate(DATA)


def test_an_unreduced_evaluation_loss_is_refused_as_well() -> None:
    with pytest.raises(LossError, match=r"returned a loss of shape \(8, 1\); reduce it"):
        make_trainer(loss_func=nn.MSELoss(reduction="none")).evaluate(DATA)


def test_a_model_without_a_loss_of_its_own_needs_a_loss_function() -> None:
    trainer = make_trainer(loss_func=None)
    with pytest.raises(ConfigError, match=r"loss_func is None and Linear returned a Tensor without a loss; pass loss_"):
        trainer.train([torch.ones(2)] * 4, 1)


def test_a_frozen_model_says_that_nothing_can_be_trained() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.requires_grad_(False)
    with pytest.raises(LossError, match="give at least one parameter requires_grad=True"):
        make_trainer(model=model, optimizer=optimizer).train(DATA, 1)


# Errors at the end --------------------------------------------------------------------------------------------


def test_an_error_of_the_run_is_not_hidden_by_one_of_closing_a_callback() -> None:
    class FailsTwice(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            raise RuntimeError("the cause")

        def close(self) -> None:
            raise OSError("the consequence")

    with pytest.raises(RuntimeError, match="the cause"):
        make_trainer(FailsTwice).train(DATA, 1)


def test_an_error_of_closing_a_callback_is_raised_if_there_is_no_other() -> None:
    class FailsToClose(TrainerCallback):
        def close(self) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        make_trainer(FailsToClose).train(DATA, 1)
