"""SPOS: random paths, then a ranked search among networks that share their weights."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from tests.nas.small import accuracy, data, make, small
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.nas.oneshot.evolution import Evolution
from treadle.nas.oneshot.spos import recalibrated


class Paths(TrainerCallback):
    """Keeps the path of every step of training."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.this_run.updater.phase.name == "weights":
            self.taken.append(dict(trainer.model.chooser.architecture))


def test_every_step_trains_another_path_drawn_evenly_and_by_the_seed() -> None:
    found = []
    for _ in range(2):
        paths = Paths()
        make(nas.SposTrainer, callbacks=(paths,), num_epochs=40).fit()
        found.append(paths.taken)
    assert found[0] == found[1]
    counts = Counter(path["layer"] for path in found[0])
    assert sum(counts.values()) == 120
    assert min(counts.values()) > 20


def test_what_is_not_on_the_path_gets_no_gradient_and_no_statistics() -> None:
    model = small()
    trainer = make(nas.SposTrainer, model, num_epochs=1, accept=lambda architecture: architecture["layer"] == "flat")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.fit()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[1] for name in moved if name.startswith("layer")} == {"flat"}
    assert trainer.export()["layer"] == "flat"


def test_networks_are_ranked_by_the_metric_with_batch_norms_of_their_own() -> None:
    trainer = make(nas.SposTrainer, population=8, generations=1, recalibration_batches=3)
    trainer.fit()
    found = trainer.export(top_k=8)
    # All eight networks of the space, each judged once.
    assert len({nas.key_of(one.architecture) for one in found}) == 8
    best = trainer.export(with_weights=True)
    network = best.network.eval()
    train = [torch.stack([trainer._train_data[i][0] for i in range(24)])]
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    # Three batches of eight are all the training data; their means average to its mean.
    order = torch.cat([batch[0] for batch in trainer.core._recalibration()])
    assert torch.equal(order.sort(0).values, train[0].sort(0).values)
    with torch.no_grad():
        for batch in trainer.core._recalibration():
            network(batch[0])
        network.eval()
        validation = trainer._plan.validation
        inputs = torch.stack([validation[i][0] for i in range(24)])
        targets = torch.stack([validation[i][1] for i in range(24)])
        expected = float(accuracy(network(inputs), targets)["accuracy"])
    assert best.score == pytest.approx(expected, abs=1e-6)


def test_judging_leaves_the_supernet_and_the_generators_as_they_are() -> None:
    trainer = make(nas.SposTrainer)
    trainer.fit()
    before = {name: value.clone() for name, value in trainer.supernet.state_dict().items()}
    random = torch.get_rng_state()
    modes = [module.training for module in trainer.supernet.modules()]
    first = trainer.core.judge({"layer": "deep", "inner": "tanh", "skip": [0]})
    assert trainer.core.judge({"layer": "deep", "inner": "tanh", "skip": [0]}) == first
    assert torch.equal(random, torch.get_rng_state())
    assert modes == [module.training for module in trainer.supernet.modules()]
    assert all(torch.equal(value, before[name]) for name, value in trainer.supernet.state_dict().items())


def test_recalibrated_batch_norms_have_the_statistics_of_the_passes() -> None:
    norm = nn.BatchNorm1d(2)
    batches = [torch.randn(8, 2) + 5, torch.randn(8, 2) - 1]
    with recalibrated(norm, (norm(batch) for batch in batches)):
        assert not norm.training
        torch.testing.assert_close(norm.running_mean, torch.stack([batch.mean(0) for batch in batches]).mean(0))
        torch.testing.assert_close(norm.running_var, torch.stack([batch.var(0) for batch in batches]).mean(0))
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert (norm.training, norm.momentum) == (True, 0.1)


class Wide(nn.Module):
    """Six decisions between five values."""

    def __init__(self) -> None:
        super().__init__()
        self.values = [nas.ValueChoice(range(5), label=f"v{number}") for number in range(6)]


def score(architecture: dict[str, int]) -> float:
    return float(sum(architecture.values()))


def evolve(**options: Any) -> Evolution:
    evolution = Evolution(nas.Space(Wide()), **options)
    while (proposed := evolution.propose()) is not None and len(evolution.judged) < evolution.total:
        evolution.tell(proposed, score(proposed))
    return evolution


def test_evolution_finds_better_architectures_than_chance() -> None:
    evolved = evolve(population=20, generations=10, parents=5)
    random = evolve(population=200, generations=1)
    assert evolved.ranked()[0][1] > random.ranked()[0][1]
    assert evolved.ranked()[0][1] >= 22
    assert len({nas.key_of(one) for one, _ in evolved.judged}) == 200


def test_evolution_goes_on_from_its_state_as_if_nothing_had_been() -> None:
    whole = evolve(population=8, generations=5)
    cut = Evolution(nas.Space(Wide()), population=8, generations=5)
    while len(cut.judged) < 40:
        again = Evolution(nas.Space(Wide()), population=8, generations=5)
        again.load_state_dict(cut.state_dict())
        proposed = again.propose()
        assert proposed is not None
        again.tell(proposed, score(proposed))
        cut = again
    assert cut.judged == whole.judged


def test_evolution_of_a_small_space_judges_each_network_once_and_ends() -> None:
    space = nas.Space(small())
    evolution = Evolution(space, population=5, generations=10)
    assert evolution.total == 8
    while len(evolution.judged) < evolution.total:
        proposed = evolution.propose()
        assert proposed is not None
        evolution.tell(proposed, 0.0)
    assert len({nas.key_of(one) for one, _ in evolution.judged}) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": 0}, "population=0 must be a whole number from 1"),
        ({"mutation_probability": 0.0}, "mutation_probability=0.0 must lie above 0"),
        ({"accept": lambda one: False}, "accept= refused 1000 random architectures"),
        ({"execution": "graph"}, "goes another way in every step, and a recorded step goes the same for ever"),
        ({"objective": "auc"}, r"there is no metric 'auc'; the function returned \['accuracy'\]"),
        ({"model": nn.Linear(2, 2)}, "SposTrainer: the model has no choices"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(nas.SposTrainer, **options).fit()


def test_penalties_and_torchmetrics_have_no_place_here() -> None:
    from torchmetrics.classification import MulticlassAccuracy

    with pytest.raises(ConfigError, match="has no gradients that a penalty could be a part of; use accept="):
        make(nas.SposTrainer, penalties=nas.Penalty(nas.parameters_of(small())))
    with pytest.raises(ConfigError, match="ranks networks by a function"):
        make(nas.SposTrainer, metrics=MulticlassAccuracy(3))


def test_a_limit_on_the_cost_is_a_function() -> None:
    cost = nas.parameters_of(small())
    trainer = make(nas.SposTrainer, accept=lambda architecture: cost.of(architecture) < 30, dataset=data(32))
    trainer.fit()
    assert all(cost.of(one.architecture) < 30 for one in trainer.export(top_k=10))
