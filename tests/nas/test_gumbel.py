"""GDAS: noise that is shared, repeatable and cools down."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.nas.small import make, small
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError


class Twice(nn.Module):
    """Two choices with one label."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nas.LayerChoice([nn.Linear(4, 4), nn.Identity()], label="op")
        self.other = nas.LayerChoice([nn.Linear(4, 4), nn.Identity()], label="op")
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.other(self.one(inputs)))
        return output


class Rows(TrainerCallback):
    """Keeps the weights that every update summed candidates with."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []
        self.temperatures: list[float] = []

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.found.append(trainer.model.chooser.weights.detach().clone())
        self.temperatures.append(float(trainer.model.weights.temperature))


def rows(**options: Any) -> Rows:
    watch = Rows()
    make(nas.GumbelDartsTrainer, small(Twice), callbacks=(watch,), num_epochs=3, **options).fit()
    return watch


def test_choices_that_share_a_label_share_their_noise_which_is_new_in_every_step() -> None:
    watch = rows()
    assert all(one.shape == (1, 2) for one in watch.found)
    assert len({tuple(one.flatten().tolist()) for one in watch.found}) == len(watch.found)


def test_noise_follows_the_seed() -> None:
    first, again, other = rows(seed=3), rows(seed=3), rows(seed=4)
    assert all(torch.equal(one, two) for one, two in zip(first.found, again.found, strict=True))
    assert not torch.equal(first.found[0], other.found[0])


def test_the_temperature_goes_from_the_first_to_the_last_in_equal_steps() -> None:
    assert sorted(set(rows(temperature=(1.0, 0.2)).temperatures), reverse=True) == pytest.approx([1.0, 0.6, 0.2])
    with pytest.raises(ConfigError, match=r"temperature=\(1.0, 0\) must be two numbers above 0"):
        make(nas.GumbelDartsTrainer, temperature=(1.0, 0))


def test_weights_with_noise_are_drawn_as_often_as_they_weigh() -> None:
    trainer = make(nas.GumbelDartsTrainer, small(Twice))
    weights = trainer.supernet.weights
    with torch.no_grad():
        weights.alpha.copy_(torch.tensor([[0.8, 0.2]]).log())
    drawn = []
    for seed in range(4000):
        weights.draw(seed)
        drawn.append(weights.picked()[0])
    # Four standard deviations are 0.025.
    assert sum(drawn) / 4000 == pytest.approx(0.2, abs=0.025)


def test_drawn_hard_only_one_candidate_is_called_and_counts_fully() -> None:
    model = small(Twice)
    calls = {"linear": 0, "identity": 0}
    model.one[0].register_forward_hook(lambda *_: calls.__setitem__("linear", calls["linear"] + 1))
    model.one[1].register_forward_hook(lambda *_: calls.__setitem__("identity", calls["identity"] + 1))
    watch = Rows()
    trainer = make(nas.GumbelDartsTrainer, model, callbacks=(watch,), hard=True)
    start = trainer.supernet.weights.alpha.detach().clone()
    trainer.fit()
    assert sum(calls.values()) == 12
    assert min(calls.values()) > 0
    assert all(sorted(one.flatten().tolist()) == pytest.approx([0.0, 1.0]) for one in watch.found)
    assert not torch.equal(trainer.supernet.weights.alpha, start)


def test_an_evaluation_sees_the_mixture_without_noise() -> None:
    trainer = make(nas.GumbelDartsTrainer, small(Twice))
    trainer.fit()
    inputs = torch.randn(3, 4)
    share = list(trainer.probabilities()["op"].values())
    model = trainer.model.eval()
    hidden = share[0] * model.one[0](inputs) + share[1] * inputs
    expected = model.head(share[0] * model.other[0](hidden) + share[1] * hidden)
    torch.testing.assert_close(trainer.supernet.eval()(inputs), expected)
    torch.testing.assert_close(trainer.model(inputs), expected)
