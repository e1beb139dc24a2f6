"""Several optimizers in one update: clipped, stepped, scheduled, skipped, saved and resumed together."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from tests.interrupting import CutAt, CutError, Updates, assert_same_bits, samples, updates_of
from treadle import Trainer
from treadle.errors import ConfigError
from treadle.optim.combined import CombinedOptimizer
from treadle.optim.muon import muon_groups


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def two(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between, Adam for all others."""
    parts = muon_groups(model)
    return [torch.optim.Muon(parts.muon, lr=0.05), torch.optim.Adam(parts.others, lr=0.02)]


def halving(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 0.9**step)


def trainer_of(model: nn.Module, *callbacks: Any, by_name: bool = False, **options: Any) -> Trainer:
    optimizers: Any = two(model)
    if by_name:
        optimizers = {"matrices": optimizers[0], "others": optimizers[1]}
    callbacks = callbacks or (Updates(),)
    return Trainer(model, nn.MSELoss(), optimizers, callbacks=callbacks, seed=1, device="cpu", **options)


def by_hand(parts: int = 1) -> nn.Module:
    """Train as a loop written by hand does, in the order of the rows."""
    model, (inputs, targets) = network(), samples().tensors
    optimizers = two(model)
    schedulers = [halving(one) for one in optimizers]
    for _ in range(2):
        for begin in range(0, 24, 8):
            rows = slice(begin, begin + 8)
            for x, y in zip(inputs[rows].chunk(parts), targets[rows].chunk(parts), strict=True):
                (nn.functional.mse_loss(model(x), y) / parts).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for one in (*optimizers, *schedulers):
                one.step()
            model.zero_grad()
    return model


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_one_step_clips_steps_and_schedules_all_of_them(parts: int, by_name: bool) -> None:
    model = network()
    trainer_of(model, by_name=by_name).train(
        samples(),
        num_epochs=2,
        per_device_batch_size=8 // parts,
        gradient_accumulation_steps=parts,
        clip_norm=0.5,
        create_scheduler_fn=halving,
        train_dataloader_kwargs={"shuffle": False},
    )
    assert_same_bits(model.state_dict(), by_hand(parts).state_dict())


def test_a_list_gives_them_the_names_of_their_kinds() -> None:
    assert list(trainer_of(network()).optimizers()) == ["muon", "adam"]
    assert list(trainer_of(network(), by_name=True).optimizers()) == ["matrices", "others"]


def test_a_run_goes_on_in_the_middle_with_both_states(tmp_path: Path) -> None:
    def train(folder: str, *callbacks: Any) -> Trainer:
        trainer = trainer_of(network(), *callbacks, run_dir=tmp_path / folder)
        options: dict[str, Any] = {"per_device_batch_size": 8, "create_scheduler_fn": halving, "save_every": 2}
        trainer.train(samples(), num_epochs=3, resume="auto", **options)
        return trainer

    whole = train("whole")
    with pytest.raises(CutError):
        train("cut", CutAt(5))
    resumed = train("cut")
    assert updates_of(resumed) == (4, 5)
    assert_same_bits(whole.model.state_dict(), resumed.model.state_dict())
    for name, optimizer in whole.optimizers().items():
        assert_same_bits(optimizer.state_dict(), resumed.optimizers()[name].state_dict())


class BadOnce(Trainer):
    """Has one loss that is not a number."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        return {**output, "loss": output["loss"] * float("nan")} if self.progress.step == 2 else output


def test_a_bad_step_leaves_no_trace_in_either() -> None:
    taken: list[dict[str, Tensor]] = []

    class Look(Updates):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            super().on_update_end(trainer)
            state = [one.state_dict()["state"] for one in trainer.optimizers().values()]
            moments = {f"{n}{k}{m}": v.clone() for n, s in enumerate(state) for k, e in s.items() for m, v in e.items()}
            taken.append({**{k: v.clone() for k, v in trainer.model.state_dict().items()}, **moments})

    model = network()
    options: dict[str, Any] = {"callbacks": (Look(),), "seed": 1, "device": "cpu", "on_nonfinite": "skip"}
    trainer = BadOnce(model, nn.MSELoss(), two(model), **options)
    trainer.train(samples(), num_epochs=2, per_device_batch_size=8)
    assert_same_bits(taken[1], taken[2])
    assert any(not torch.equal(taken[2][name], taken[3][name]) for name in taken[2])


def test_a_weight_in_two_optimizers_is_refused() -> None:
    model = network()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model[0].parameters())]
    trainer = Trainer(model, nn.MSELoss(), optimizers, callbacks=(), device="cpu")
    with pytest.raises(ConfigError, match=r"a weight of shape \(8, 2\) is in two optimizers, SGD and Adam"):
        trainer.train(samples(), 1)


@pytest.mark.parametrize("wrong", [[], {}, [1], {"a": None}, [None]])
def test_what_is_no_optimizer_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="optimizer"):
        Trainer(network(), nn.MSELoss(), wrong, callbacks=(), device="cpu")


def test_a_group_is_added_to_one_of_them() -> None:
    members = two(network())
    combined, added = CombinedOptimizer(members), nn.Parameter(torch.zeros(3))
    with pytest.raises(ConfigError, match="call add_param_group of the one"):
        combined.add_param_group({"params": [added]})
    members[1].add_param_group({"params": [added]})
    assert combined.param_groups[-1]["params"] == [added]


# Which weights Muon is for -------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.norm = nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.convolution, self.head = nn.Conv1d(4, 4, 3), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def test_muon_gets_the_matrices_between_and_each_weight_is_in_one_part_once() -> None:
    model = Tied()
    parts = muon_groups(model)
    assert [id(one) for one in parts.muon] == [id(model.hidden.weight)]
    trained = [one for one in model.parameters() if one.requires_grad]
    assert sorted(map(id, (*parts.muon, *parts.others))) == sorted(map(id, trained))


def test_the_last_linear_layer_is_the_output_where_the_model_names_none() -> None:
    model = network()
    assert [id(one) for one in muon_groups(model).muon] == [id(model[0].weight), id(model[2].weight)]


def test_weights_can_be_kept_from_muon_by_name() -> None:
    model = network()
    assert [id(one) for one in muon_groups(model, others=("0.",)).muon] == [id(model[2].weight)]


def test_a_torch_without_muon_is_told_of_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.optim.muon.MUON", None)
    with pytest.raises(ConfigError, match=rf"torch {re.escape(torch.__version__)} has no torch.optim.Muon, which"):
        muon_groups(network())
