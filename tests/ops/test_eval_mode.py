"""A model that is looked at is afterwards in the modes that it was in."""

import pytest
from torch import nn

from treadle.ops.eval_mode import eval_mode, keep_modes


class Counting(nn.Sequential):
    """Counts how often it is told to train."""

    told = 0

    def train(self, mode: bool = True) -> "Counting":
        """Take note, and do it."""
        self.told += 1
        super().train(mode)
        return self


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_each_module_gets_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1).eval())
    with eval_mode(model):
        assert modes(model) == [False, False, False]
    assert modes(model) == [True, True, False]


def test_modes_come_back_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1).eval())

    @keep_modes(model)
    def fail() -> None:
        model.train()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert modes(model) == [True, True, False]


def test_a_train_of_the_models_own_is_called_on_the_way_in_only() -> None:
    model = Counting(nn.Dropout())
    with eval_mode(model):
        assert model.told == 1
    assert model.told == 1
