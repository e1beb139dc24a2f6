"""What a search returns; the numbers are those of the behaviours of the research page, section Export."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.nas.small import data, make, small
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError

KINDS = [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.ProxylessTrainer, nas.EnasTrainer, nas.SposTrainer]
every_trainer = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_trainer
def test_export_1_an_architecture_is_plain_json_data_with_one_entry_for_each_label(kind: Any) -> None:
    trainer = make(kind)
    trainer.fit()
    architecture = trainer.export()
    assert json.loads(json.dumps(architecture)) == architecture
    assert set(architecture) in ({"layer", "inner", "skip"}, {"layer", "skip"})


@every_trainer
def test_export_2_it_is_the_same_each_time(kind: Any) -> None:
    trainer = make(kind)
    trainer.fit()
    assert all(trainer.export() == trainer.export() for _ in range(3))
    assert trainer.export(top_k=2) == trainer.export(top_k=2)


def test_export_2_proxylessnas_exports_the_heaviest_candidates_and_not_a_draw() -> None:
    trainer = make(nas.ProxylessTrainer)
    with torch.no_grad():
        # Nearly even: a draw would be another one every other time.
        trainer.supernet.weights.alpha.copy_(torch.tensor([[0.0, 0.01, 0.0], [0.0, 0.01, 0.0], [0.01, 0.0, 0.0]]))
    assert [trainer.export() for _ in range(20)] == [{"layer": "flat", "skip": [0]}] * 20


@every_trainer
def test_export_3_the_space_becomes_a_network_without_search_modules(kind: Any) -> None:
    trainer = make(kind)
    trainer.fit()
    network = nas.freeze(small(), trainer.export())
    assert not [
        one
        for one in network.modules()
        if "treadle.nas" in type(one).__module__ and "fixed_modules" not in type(one).__module__
    ]
    assert network(torch.randn(2, 4)).shape == (2, 3)


class Celled(nn.Module):
    """A cell and a repeated block."""

    def __init__(self) -> None:
        super().__init__()
        candidates = {
            "linear": nn.Linear(4, 4),
            "normed": nn.Sequential(nn.BatchNorm1d(4), nn.Tanh()),
            "none": nn.Identity(),
        }
        self.cell = nas.Cell(candidates, num_nodes=2, num_ops_per_node=2, num_predecessors=2, label="cell")
        self.blocks = nas.Repeat(lambda number: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (0, 2), label="depth")
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.blocks(self.cell(inputs, inputs.flip(1))))
        return output


@pytest.mark.parametrize("kind", [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.EnasTrainer, nas.SposTrainer])
def test_export_4_a_network_with_weights_gives_what_the_supernet_gives_on_that_path(kind: Any) -> None:
    trainer = make(kind, small(Celled))
    trainer.fit()
    found = trainer.export(with_weights=True)
    inputs = torch.randn(6, 4)
    trainer.model.eval()
    with trainer.supernet.choosing(nas.Fixed(found.architecture)):
        expected = trainer.supernet(inputs)
    torch.testing.assert_close(found.network.eval()(inputs), expected, rtol=0, atol=1e-6)
    assert found.architecture == trainer.export()


@every_trainer
def test_export_5_training_the_network_leaves_the_supernet_alone(kind: Any) -> None:
    trainer = make(kind)
    trainer.fit()
    before = {name: value.clone() for name, value in trainer.supernet.state_dict().items()}
    network = trainer.export(with_weights=True).network
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in trainer.supernet.state_dict().items())
    trainer.export()["layer"] = "spoilt"
    assert trainer.export()["layer"] != "spoilt"


@pytest.mark.parametrize("kind", [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.ProxylessTrainer, nas.EnasTrainer])
def test_export_7_during_a_search_it_changes_nothing(kind: Any) -> None:
    class Exports(TrainerCallback):
        trainer: Any = None

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            self.trainer.export(top_k=2, with_weights=True)

    plain, watched = make(kind), make(kind, callbacks=(exports := Exports(),))
    exports.trainer = watched
    plain.fit()
    watched.fit()
    for (name, own), other in zip(
        plain.supernet.state_dict().items(), watched.supernet.state_dict().values(), strict=True
    ):
        assert torch.equal(own, other), name


@every_trainer
def test_export_8_the_best_five_are_different_and_in_order(kind: Any) -> None:
    trainer = make(kind, **({"population": 6, "generations": 1} if kind is nas.SposTrainer else {}))
    trainer.fit()
    found = trainer.export(top_k=5)
    assert len({nas.key_of(one.architecture) for one in found}) == 5
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert found[0].architecture == trainer.export()
    assert all(one.network is not None for one in trainer.export(top_k=2, with_weights=True))


def test_export_8_scores_are_the_logarithms_of_what_candidates_weigh_together() -> None:
    trainer = make(nas.DartsTrainer)
    with torch.no_grad():
        trainer.supernet.weights.alpha.copy_(torch.tensor([[0.5, 0.2, 0.3], [0.6, 0.4, 0.0], [0.9, 0.1, 0.0]]).log())
    found = trainer.export(top_k=7)
    assert found[0].architecture == {"layer": "deep", "inner": "relu", "skip": [0]}
    assert found[0].score == pytest.approx(torch.tensor(0.5 * 0.6 * 0.9).log().item(), rel=1e-5)
    # What is not there is not told apart: "flat" with either inner choice is one network.
    assert [one.architecture.get("inner") for one in found[:4]] == ["relu", "tanh", None, None]


@pytest.mark.parametrize("top_k", [0, -1, 1.5])
def test_export_8_a_number_that_cannot_be_meant_is_refused(top_k: Any) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 1"):
        make(nas.DartsTrainer).export(top_k=top_k)


@pytest.mark.parametrize("kind", [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.ProxylessTrainer])
def test_export_9_probabilities_sum_to_one_and_carry_no_noise(kind: Any) -> None:
    trainer = make(kind)
    trainer.fit()
    for row in trainer.probabilities().values():
        assert sum(row.values()) == pytest.approx(1.0)
    assert trainer.probabilities() == trainer.probabilities()
    assert set(trainer.probabilities()["layer"]) == {"deep", "flat", "none"}


def test_export_10_random_paths_export_the_result_of_a_ranked_search_or_nothing() -> None:
    trainer = make(nas.SposTrainer)
    with pytest.raises(ConfigError, match=r"has judged 0 networks and not come to the end of its search; call fit\(\)"):
        trainer.export()
    trainer.fit(max_steps=8)
    with pytest.raises(ConfigError, match="has judged 2 networks and not come to the end"):
        trainer.export()


def test_constraints_hold_in_what_is_exported() -> None:
    class Bound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nas.LayerChoice({"a": nn.Linear(4, 4), "b": nn.Identity()}, label="one")
            self.other = nas.LayerChoice({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}, label="other")
            self.rule = nas.Constraint(self.one.value != self.other.value)

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.other(self.one(inputs))
            return output

    for kind in KINDS:
        trainer = make(kind, small(Bound), dataset=data(32))
        trainer.fit()
        found = trainer.export(top_k=2)
        assert {(one.architecture["one"], one.architecture["other"]) for one in found} <= {("a", "b"), ("b", "a")}


def test_the_best_operations_of_a_node_come_from_different_states() -> None:
    trainer = make(nas.DartsTrainer, small(Celled))
    rows = list(trainer.supernet.weights.rows)
    assert rows[:5] == [f"cell/edge_{edge}" for edge in ("2_0", "2_1", "3_0", "3_1", "3_2")]
    with torch.no_grad():
        weights = {"cell/edge_3_0": [9.0, 8.0, 0.0], "cell/edge_3_1": [0.0, 1.0, 0.0], "cell/edge_3_2": [0.0, 0.0, 2.0]}
        for label, values in weights.items():
            trainer.supernet.weights.alpha[rows.index(label)] = torch.tensor(values)
    architecture = trainer.export()
    assert [architecture[f"cell/{what}_3_{slot}"] for slot in (0, 1) for what in ("input", "op")] == [
        [0], "linear", [2], "none",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind is not nas.SposTrainer], ids=lambda kind: kind.__name__
)
def test_nothing_is_exported_before_anything_was_trained(kind: Any) -> None:
    trainer = make(kind)
    with pytest.raises(
        ConfigError, match=r"has trained nothing yet, so there is nothing to export; call fit\(\) first"
    ):
        trainer.export()
    trainer.fit()
    assert trainer.export()
