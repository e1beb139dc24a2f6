"""Placeholders: arithmetic without a value, and the value put in its place."""

import copy
import math
import operator
import pickle
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import OneCycleLR

from treadle.errors import ConfigError
from treadle.schedules.placeholders import TrainerPlaceholderValues as P
from treadle.schedules.placeholders import replace_placeholders, replace_trainer_placeholder_values
from treadle.trainer import Trainer

# The same examples in every run, and no example is too slow on a busy machine.
deterministic = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
VALUES = {
    "NUM_EPOCHS": 3,
    "NUM_UPDATE_STEPS_PER_EPOCH": 40,
    "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH": 40,
    "TRAIN_DATALOADER_LEN": 80,
    "EVAL_DATALOADER_LEN": None,
}
OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
]


def test_there_are_five_placeholders_and_they_can_be_iterated() -> None:
    assert [placeholder.name for placeholder in P] == [
        "NUM_EPOCHS",
        "NUM_UPDATE_STEPS_PER_EPOCH",
        "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH",
        "TRAIN_DATALOADER_LEN",
        "EVAL_DATALOADER_LEN",
    ]
    assert P.placeholder_set() == {placeholder.name for placeholder in P}
    assert len(P) == 5


@pytest.mark.parametrize("operate", OPERATORS)
def test_every_operator_works_with_the_placeholder_on_either_side(operate: Callable[[Any, Any], Any]) -> None:
    assert operate(P.NUM_EPOCHS, 2).resolve(VALUES) == operate(3, 2)
    assert operate(2, P.NUM_EPOCHS).resolve(VALUES) == operate(2, 3)
    assert operate(P.NUM_EPOCHS, P.TRAIN_DATALOADER_LEN).resolve(VALUES) == operate(3, 80)
    assert operate(0.5, -P.NUM_EPOCHS).resolve(VALUES) == operate(0.5, -3)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (-P.NUM_EPOCHS, -3),
        (+P.NUM_EPOCHS, 3),
        (abs(-P.NUM_EPOCHS), 3),
        (round(P.NUM_EPOCHS / 2), 2),
        (round(P.NUM_EPOCHS / 7, 2), 0.43),
        (math.ceil(P.NUM_EPOCHS / 2), 2),
        (math.floor(P.NUM_EPOCHS / 2), 1),
        (math.trunc(P.NUM_EPOCHS / 2), 1),
        ((P.NUM_EPOCHS / 2).as_int(), 1),
    ],
)
def test_functions_of_one_number_work(expression: Any, expected: float) -> None:
    result = expression.resolve(VALUES)
    assert result == expected
    assert type(result) is type(expected)


def test_whole_numbers_stay_whole() -> None:
    assert type((P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH // 2).resolve(VALUES)) is int


Expression = st.recursive(
    st.one_of(st.sampled_from([P.NUM_EPOCHS, P.TRAIN_DATALOADER_LEN]), st.integers(-4, 4)),
    lambda inner: st.builds(
        lambda operate, left, right: operate(left, right),
        st.sampled_from([operator.add, operator.sub, operator.mul]),
        inner,
        inner,
    ),
    max_leaves=8,
)


@deterministic
@given(Expression)
def test_the_repr_of_any_expression_calculates_the_same_value(expression: Any) -> None:
    # An independent reference: Python itself reads what the expression says it is.
    names = {"NUM_EPOCHS": 3, "TRAIN_DATALOADER_LEN": 80}
    read = eval(repr(expression), dict(names))  # noqa: S307
    assert replace_placeholders(expression, names) == read


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (P.NUM_EPOCHS * 2 + 1, "NUM_EPOCHS * 2 + 1"),
        ((P.NUM_EPOCHS + 1) * 2, "(NUM_EPOCHS + 1) * 2"),
        (1 - (P.NUM_EPOCHS - 2), "1 - (NUM_EPOCHS - 2)"),
        (P.NUM_EPOCHS - 2 - 1, "NUM_EPOCHS - 2 - 1"),
        (2 ** (P.NUM_EPOCHS**2), "2 ** NUM_EPOCHS ** 2"),
        ((2**P.NUM_EPOCHS) ** 2, "(2 ** NUM_EPOCHS) ** 2"),
        ((-P.NUM_EPOCHS) ** 2, "(-NUM_EPOCHS) ** 2"),
        (-(P.NUM_EPOCHS**2), "-NUM_EPOCHS ** 2"),
        (-(P.NUM_EPOCHS + 1), "-(NUM_EPOCHS + 1)"),
        (P.NUM_EPOCHS * -1, "NUM_EPOCHS * (-1)"),
        (round(P.NUM_EPOCHS / 7, 2), "round(NUM_EPOCHS / 7, 2)"),
        (P.NUM_EPOCHS.as_int(), "int(NUM_EPOCHS)"),
    ],
)
def test_the_repr_reads_as_it_was_written(expression: Any, text: str) -> None:
    assert repr(expression) == str(expression) == text


def test_numpy_numbers_on_the_left_make_an_expression_and_no_array() -> None:
    assert (numpy.float64(0.5) * P.NUM_EPOCHS).resolve(VALUES) == 1.5
    assert (numpy.int64(2) * P.NUM_EPOCHS).resolve(VALUES) == 6


def test_arithmetic_with_something_that_is_no_number_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        P.NUM_EPOCHS + "2"


def test_expressions_are_equal_by_what_they_say_and_can_be_hashed() -> None:
    assert P.NUM_EPOCHS * 2 == P.NUM_EPOCHS * 2
    assert P.NUM_EPOCHS * 2 != P.NUM_EPOCHS * 3
    assert P.NUM_EPOCHS != "NUM_EPOCHS"
    assert {P.NUM_EPOCHS: 1, P.NUM_EPOCHS * 2: 2}[P.NUM_EPOCHS * 2] == 2


@pytest.mark.parametrize("expression", [P.NUM_EPOCHS, round(0.1 * P.NUM_EPOCHS)])
def test_expressions_can_be_copied_and_pickled(expression: Any) -> None:
    assert copy.deepcopy(expression) == expression
    assert pickle.loads(pickle.dumps(expression)) == expression  # noqa: S301


def test_expressions_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="cannot assign"):
        (P.NUM_EPOCHS * 2).left = 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("misuse", "what"),
    [
        (bool, "is neither true nor false"),
        (int, "cannot become an int yet"),
        (float, "cannot become a float yet"),
        (range, "cannot count or index anything yet"),
        (lambda placeholder: [0] * placeholder, "cannot count or index anything yet"),
        (lambda placeholder: placeholder < 5, "cannot be compared"),
        (lambda placeholder: max(placeholder, 5), "cannot be compared"),
        (lambda placeholder: placeholder == 5, "cannot be compared with 5"),
    ],
)
def test_asking_a_placeholder_for_its_value_too_early_says_where_it_belongs(
    misuse: Callable[[Any], Any], what: str
) -> None:
    for placeholder in (P.NUM_EPOCHS, P.NUM_EPOCHS * 2):
        with pytest.raises(ConfigError, match=r"known only when training starts; pass it on inside functools") as error:
            misuse(placeholder)
        assert str(error.value).startswith(f"{placeholder!r} {what}")


def test_a_placeholder_without_a_value_is_named_with_its_remedy() -> None:
    with pytest.raises(ConfigError, match=r"placeholder EVAL_DATALOADER_LEN has no value.*pass eval_dataset= to train"):
        (P.EVAL_DATALOADER_LEN * 2).resolve(VALUES)
    with pytest.raises(ConfigError, match=r"placeholder NUM_EPOCHS has no value.*pass num_epochs= to train"):
        P.NUM_EPOCHS.resolve({})
    for placeholder in (P.NUM_UPDATE_STEPS_PER_EPOCH, P.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH, P.TRAIN_DATALOADER_LEN):
        with pytest.raises(ConfigError, match=f"placeholder {placeholder.name} has no value: the training data has no"):
            placeholder.resolve({placeholder.name: None})


def test_impossible_arithmetic_is_shown_with_its_numbers() -> None:
    with pytest.raises(ConfigError, match=r"^100 // \(NUM_EPOCHS - 3\) cannot be calculated as 100 // 0: "):
        (100 // (P.NUM_EPOCHS - 3)).resolve(VALUES)


def test_positional_and_keyword_arguments_of_a_partial_are_replaced() -> None:
    factory = replace_placeholders(partial(dict, [("epochs", P.NUM_EPOCHS)], steps=P.NUM_EPOCHS * 2, name="x"), VALUES)
    assert factory() == {"epochs": 3, "steps": 6, "name": "x"}


def test_placeholders_are_found_at_any_depth() -> None:
    inner = partial(tuple, [P.NUM_EPOCHS])
    Pair = namedtuple("Pair", ["left", "right"])
    value = [{"a": (P.NUM_EPOCHS, [P.NUM_EPOCHS + 1])}, partial(dict, f=inner), Pair(P.NUM_EPOCHS, "x")]
    replaced = replace_placeholders(value, VALUES)
    assert replaced[0] == {"a": (3, [4])}
    assert replaced[1]()["f"]() == (3,)
    assert replaced[2] == Pair(3, "x")


def test_what_holds_no_placeholder_is_returned_itself() -> None:
    for value in (partial(dict, a=[1]), [1, {"a": 2}], (1, 2), {"a": []}, "text", None):
        assert replace_placeholders(value, VALUES) is value


def test_a_factory_is_not_changed_by_replacing() -> None:
    factory = partial(dict, milestones=[P.NUM_EPOCHS])
    assert replace_placeholders(factory, VALUES)() == {"milestones": [3]}
    assert replace_placeholders(factory, {**VALUES, "NUM_EPOCHS": 9})() == {"milestones": [9]}


def test_a_torch_scheduler_is_built_with_the_numbers_of_the_run() -> None:
    factory = partial(
        OneCycleLR, max_lr=0.1, epochs=P.NUM_EPOCHS, steps_per_epoch=P.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH
    )
    scheduler = replace_placeholders(factory, VALUES)(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert scheduler.total_steps == 120


def trainer_in_a_run() -> Trainer:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=(), device="cpu")
    trainer.train([(torch.ones(1), torch.ones(1))] * 6, num_epochs=3, per_device_batch_size=2)
    return trainer


def test_a_trainer_in_a_run_gives_placeholders_their_values() -> None:
    factory = partial(dict, P.NUM_EPOCHS, total=P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH, other="kept")
    replaced = replace_trainer_placeholder_values(trainer_in_a_run(), factory)
    assert (replaced.func, replaced.args, replaced.keywords) == (dict, (3,), {"total": 9, "other": "kept"})


def test_a_trainer_without_a_run_has_no_values_to_give() -> None:
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(model, torch.nn.MSELoss(), None, callbacks=(), device="cpu")
    with pytest.raises(
        ConfigError, match=r"^the trainer has no run yet, .*; replace them in create_scheduler or later$"
    ):
        replace_trainer_placeholder_values(trainer, partial(dict, total=P.NUM_EPOCHS))
