"""ENAS: a controller that learns from rewards."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.nas.small import accuracy, data, make, small
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.nas.oneshot.controller import Controller


class Wide(nn.Module):
    """One decision of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nas.LayerChoice({"linear": nn.Linear(4, 4), "none": nn.Identity()}, label="layer")
        self.two = nas.InputChoice(3, 2, label="two")
        self.any = nas.InputChoice(3, None, label="any")
        self.blocks = nas.Repeat(nn.Linear(4, 4), (0, 2), label="depth")
        self.last = nas.Built(nn.Linear, 4, nas.ValueChoice([4, 8], label="width"))
        self.head = nas.Built(nn.Linear, nas.ValueChoice([4, 8], label="width"), 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layer(inputs)
        joined = self.two(hidden, inputs, 2 * inputs) + self.any(hidden, inputs, 2 * inputs)
        output: Tensor = self.head(self.last(self.blocks(joined)))
        return output


def noise(controller: Controller, seed: int) -> Tensor:
    uniform = torch.rand(len(controller.tokens), controller.most, generator=torch.Generator().manual_seed(seed))
    return -(-uniform.log()).log()


def test_a_controller_draws_valid_architectures_of_every_kind_of_decision() -> None:
    space = nas.Space(small(Wide))
    controller = Controller(space)
    for seed in range(30):
        drawn = controller.draw(noise(controller, seed))
        architecture = controller.decoded(drawn.places.tolist())
        assert space.complete(architecture) == architecture
        assert drawn.log_probability.item() < 0
        assert math.isfinite(drawn.entropy.item())
    assert [token.label for token in controller.tokens].count("any") == 3
    assert [token.label for token in controller.tokens].count("two") == 2


def test_a_draw_is_as_likely_as_the_controller_says() -> None:
    space = nas.Space(small(Wide))
    controller = Controller(space)
    best = controller.best(4)
    drawn = controller.draw(torch.zeros(len(controller.tokens), controller.most))
    # Without noise the draw takes the most likely outcome each time.
    assert controller.decoded(drawn.places.tolist()) in [architecture for _, architecture in best]
    scores = [score for score, _ in best]
    assert scores == sorted(scores, reverse=True)


def test_the_baseline_begins_at_the_first_reward_and_follows_slowly() -> None:
    controller = Controller(nas.Space(small()))
    found = [float(controller.expect(torch.tensor(reward), 0.9)) for reward in (0.5, 1.0, 0.0)]
    assert found == pytest.approx([0.5, 0.55, 0.495])


def test_the_loss_is_that_of_reinforce_with_a_baseline() -> None:
    trainer = make(nas.EnasTrainer, reward_function=lambda outputs, targets: 1.0, entropy_weight=0.0)
    core = trainer.core
    core._drawn = 0
    core.progress.step = 5
    core.search.seed = 7
    controller = core.controller
    controller.baseline.fill_(0.25)
    controller.started.fill_(1.0)
    core.storage.progress = core.progress
    output = core.architecture_loss(list(data(8).tensors))
    drawn = controller.draw(core._noise(0))
    baseline = 0.25 * 0.999 + 1.0 * 0.001
    assert output["loss"].item() == pytest.approx(-drawn.log_probability.item() * (1.0 - baseline), rel=1e-5)


def test_a_reward_that_prefers_a_candidate_is_learnt() -> None:
    class Rewarded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nas.LayerChoice(
                {"bad": Constant(0.0), "good": Constant(1.0), "fair": Constant(0.5)}, label="layer"
            )
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.layer(inputs) + 0 * self.weight
            return output

    class Constant(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.full((len(inputs), 3), self.value)

    trainer = make(
        nas.EnasTrainer,
        small(Rewarded),
        reward_function=lambda outputs, targets: outputs.mean(),
        loss=lambda outputs, targets: outputs.sum(),
        ctrl_lr=0.05,
        controller_steps=10,
        ctrl_steps_aggregate=4,
        baseline_decay=0.9,
        num_epochs=4,
    )
    trainer.fit()
    assert trainer.export() == {"layer": "good"}
    best, second = trainer.export(top_k=2)
    assert best.score > second.score


def test_validation_data_moves_no_statistics_and_the_network_is_evaluated() -> None:
    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.before: dict[str, Tensor] = {}
            self.compared = 0

        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            self.before = {name: value.clone() for name, value in trainer.model.space.state_dict().items()}

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.this_run.updater.phase.name == "architecture":
                self.compared += 1
                for name, value in trainer.model.space.state_dict().items():
                    assert torch.equal(value, self.before[name]), name

    watch = Watch()
    trainer = make(nas.EnasTrainer, callbacks=(watch,))
    result = trainer.fit()
    # In each epoch three updates of the weights, then three batches in windows of two.
    assert result.steps == 2 * (3 + 2)
    assert watch.compared == 4
    assert trainer.core.run_config.max_num_train_steps == result.steps


def test_the_controller_may_make_a_fixed_number_of_updates() -> None:
    assert make(nas.EnasTrainer, controller_steps=5).fit().steps == 2 * (3 + 5)


def test_every_kind_of_decision_can_be_searched() -> None:
    trainer = make(nas.EnasTrainer, small(Wide), reward_function=lambda o, t: accuracy(o, t)["accuracy"])
    trainer.fit()
    assert nas.Space(small(Wide)).complete(trainer.export()) == trainer.export()
    assert {"reward", "baseline"} <= set(trainer.storage.names())


def test_penalties_lower_the_reward() -> None:
    cost = nas.Cost.from_table(small(), {"layer": {"deep": 4.0, "flat": 2.0}})
    trainer = make(nas.EnasTrainer, penalties=nas.Penalty(cost, 0.5, target=2.0))
    assert trainer.core._price({"layer": "deep", "inner": "relu", "skip": [0]}) == pytest.approx(1.0)
    assert trainer.core._price({"layer": "none", "skip": [0]}) == 0.0
    trainer.fit()


def test_arguments_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"baseline_decay=1.0 must lie between 0 and 1"):
        make(nas.EnasTrainer, baseline_decay=1.0)
    with pytest.raises(ConfigError, match="EnasTrainer: the model has no choices"):
        make(nas.EnasTrainer, nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="a metric returned a str; return a number"):
        make(nas.EnasTrainer, reward_function=lambda outputs, targets: "good").fit()
