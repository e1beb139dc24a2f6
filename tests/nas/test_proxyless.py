"""ProxylessNAS: two candidates at a time, and the gradient that comes of comparing them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.nas.small import make, small
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError


class Four(nn.Module):
    """One choice between four layers that count their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nas.LayerChoice([nn.Linear(4, 4) for _ in range(4)], label="layer")
        self.head = nn.Linear(4, 3)
        self.calls: list[int] = []
        for place, candidate in enumerate(self.layer):
            candidate.register_forward_hook(lambda *_, place=place: self.calls.append(place))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(inputs))
        return output


def test_the_gradient_is_that_of_the_two_gates() -> None:
    model = small(Four)
    trainer = make(nas.ProxylessTrainer, model)
    weights, chooser = trainer.supernet.weights, trainer.supernet.chooser
    with torch.no_grad():
        weights.alpha.copy_(torch.tensor([[0.3, -0.2, 0.5, 0.1]]))
        weights.pair.copy_(torch.tensor([[2, 0]]))
    chooser.active, chooser.other = [2], [0]
    inputs, targets = torch.randn(6, 4), torch.randint(3, (6,))
    (gradient,) = torch.autograd.grad(F.cross_entropy(trainer.supernet(inputs), targets), [weights.alpha])
    # The gradient of each gate is the product of what its candidate gives with the gradient of the sum.
    outputs = [candidate(inputs).detach() for candidate in model.layer]
    summed = outputs[2].clone().requires_grad_()
    (upstream,) = torch.autograd.grad(F.cross_entropy(model.head(summed), targets), [summed])
    gates = torch.stack([(upstream * outputs[place]).sum() for place in (2, 0)])
    shares = torch.tensor([0.5, 0.3]).softmax(0)
    expected = torch.zeros(1, 4)
    for number, place in enumerate((2, 0)):
        expected[0, place] = sum(
            gates[other] * shares[other] * (float(number == other) - shares[number]) for other in (0, 1)
        )
    torch.testing.assert_close(gradient, expected)


def test_one_candidate_is_called_for_the_weights_and_two_for_the_architecture() -> None:
    model = small(Four)
    trainer = make(nas.ProxylessTrainer, model, num_epochs=1)
    trainer.fit()
    # Three steps of each.
    assert len(model.calls) == 3 * 2 + 3 * 1


def test_the_output_is_exactly_that_of_the_candidate_in_use() -> None:
    model = small(Four)
    trainer = make(nas.ProxylessTrainer, model)
    trainer.supernet.chooser.active, trainer.supernet.chooser.other = [1], [3]
    trainer.supernet.weights.pair.copy_(torch.tensor([[1, 3]]))
    inputs = torch.randn(5, 4)
    assert torch.equal(trainer.supernet(inputs), model.head(model.layer[1](inputs)))


def test_an_update_leaves_what_all_others_weigh_as_it_is() -> None:
    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.before = torch.empty(0)
            self.seen = 0

        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            self.before = trainer.model.weights.probabilities().detach().clone()

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            weights = trainer.model.weights
            after = weights.probabilities().detach()
            if trainer.this_run.updater.phase.name != "architecture":
                assert torch.equal(after, self.before)
                return
            self.seen += 1
            pair = weights.pair[0].tolist()
            others = [place for place in range(4) if place not in pair]
            torch.testing.assert_close(after[0, others], self.before[0, others])
            torch.testing.assert_close(after[0, pair].sum(), self.before[0, pair].sum())
            assert not torch.equal(after[0, pair], self.before[0, pair])

    watch = Watch()
    make(nas.ProxylessTrainer, small(Four), callbacks=(watch,)).fit()
    assert watch.seen == 6


def test_pairs_are_different_and_drawn_by_weight() -> None:
    trainer = make(nas.ProxylessTrainer, small(Four))
    weights = trainer.supernet.weights
    with torch.no_grad():
        weights.alpha.copy_(torch.tensor([[0.7, 0.1, 0.1, 0.1]]).log())
    pairs = [weights.draw_pairs(seed)[0] for seed in range(2000)]
    assert all(one != other for one, other in pairs)
    assert sum(0 in pair for pair in pairs) / 2000 > 0.85
    # Among two it is in use as often as it weighs: 0.7 to 0.1.
    with_first = [pair for pair in pairs if 0 in pair]
    assert sum(pair[0] == 0 for pair in with_first) / len(with_first) == pytest.approx(0.875, abs=0.03)
    drawn = [weights.draw(seed)[0] for seed in range(2000)]
    assert drawn.count(0) / 2000 == pytest.approx(0.7, abs=0.04)


def test_a_choice_of_one_candidate_is_never_compared() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.single = nas.LayerChoice([nn.Linear(4, 4)], label="single")
            self.layer = nas.LayerChoice([nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)], label="layer")

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.layer(self.single(inputs))
            return output

    trainer = make(nas.ProxylessTrainer, small(One))
    assert trainer.supernet.weights.draw_pairs(0)[0] == (0, 0)
    trainer.fit()
    assert trainer.export()["single"] == 0


def test_depths_and_inputs_are_compared_too() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nas.Repeat(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (1, 3), label="depth")
            self.skip = nas.InputChoice(2, reduction="concat", label="skip")
            self.head = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.head(self.skip(self.blocks(inputs), inputs))
            return output

    trainer = make(nas.ProxylessTrainer, small(Deep), num_epochs=3)
    start = trainer.supernet.weights.alpha.detach().clone()
    trainer.fit()
    moved = (trainer.supernet.weights.alpha - start).abs().sum(-1)
    assert (moved > 0).all()
    assert trainer.export()["depth"] in (1, 2, 3)


def test_what_cannot_be_compared_two_by_two_is_refused() -> None:
    cell = nn.Module()
    cell.cell = nas.Cell({"a": nn.Identity()}, 1, label="cell")
    with pytest.raises(ConfigError, match="compares two candidates at a time, which the Cell at cell does not have"):
        make(nas.ProxylessTrainer, cell)
    value = nn.Module()
    value.rate = nas.ValueChoice([0.1, 0.2])
    with pytest.raises(ConfigError, match="cannot compare the values of 'rate', which is read in a forward"):
        make(nas.ProxylessTrainer, value)
    with pytest.raises(ConfigError, match="ProxylessTrainer: the model has no choices"):
        make(nas.ProxylessTrainer, nn.Linear(2, 2))
