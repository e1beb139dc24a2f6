"""What a plan is made of: numbers that fit the processes, pieces of weights, places in the data."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.interrupting import starts_of
from treadle import Trainer
from treadle.callbacks import SaveTrainingStateCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.format.shards import Piece, SavedTensor, merged
from treadle.checkpoint.format.tree import split
from treadle.errors import CheckpointError, ConfigError
from treadle.parallel import Plan
from treadle.parallel.fsdp import WeightShards
from treadle.parallel.local_shards import local_tensor
from treadle.parallel.pipeline.stages import assign_stages, require_apart, stage_modules
from treadle.parallel.plan import Degrees
from treadle.parallel.processes import Processes, leave_group
from treadle.parallel.state_dict import copy_model
from treadle.runs.elastic import Split, joined_losses, split_anew


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """Leaves the group of one process that sharding made."""
    yield
    leave_group()


# The numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "world", "degrees"),
    [
        (Plan(), 4, (1, 4, 1, 1)),
        (Plan(shard=2), 4, (1, 2, 2, 1)),
        (Plan(shard="all", tensor=2), 8, (1, 1, 4, 2)),
        (Plan(pipeline=2), 8, (2, 4, 1, 1)),
        (Plan(data=2, shard=2, tensor=2), 8, (1, 2, 2, 2)),
    ],
    ids=["data", "hybrid", "all", "pipeline", "three"],
)
def test_what_a_plan_leaves_open_is_what_remains(plan: Plan, world: int, degrees: tuple[int, ...]) -> None:
    assert plan.degrees(world) == Degrees(*degrees)


@pytest.mark.parametrize(
    ("plan", "world", "message"),
    [
        (Plan(data=2, shard=2), 3, "pipeline=1 x data=2 x shard=2 x tensor=1 is 4 processes, but 3 were started"),
        (
            Plan(tensor=3),
            4,
            "pipeline=1 x shard=1 x tensor=3 is 3 processes, but 4 were started; start a multiple of 3",
        ),
    ],
    ids=["too few", "no multiple"],
)
def test_numbers_that_do_not_fit_are_named(plan: Plan, world: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan.degrees(world)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shard": 0}, "shard=0 must be a whole number above 0"),
        ({"tensor": "2"}, "tensor='2' must be a whole number above 0"),
        ({"tensor": 2, "tensor_plan": {"a": "rows"}}, r"tensor_plan\['a'\]='rows' is unknown; did you mean 'row'\?"),
        ({"tensor_plan": {"a": "row"}}, "tensor_plan is for tensor= above 1"),
        ({"stage_of": [0, 1]}, "stage_of is for pipeline= above 1"),
        ({"blocks": ["*"]}, "blocks is for shard= above 1 or 'all'"),
        ({"shard": 2, "gathered": "fp8"}, "gathered='fp8' is unknown; use 'bf16' or None"),
        ({"shard": 2, "blocks": "*"}, r"blocks='\*' must be a list of patterns"),
        (
            {"pipeline": 2, "shard": 2, "cpu_offload": True},
            "pipeline=2 does not go with cpu_offload=True: stages are on the device, and are called by forward; leave",
        ),
        (
            {"pipeline": 2, "shard": 2, "forward_methods": ["score"]},
            r"pipeline=2 does not go with forward_methods=\['score'\]: stages are",
        ),
    ],
    ids=["zero", "text", "style", "tensor_plan", "stage_of", "blocks", "gathered", "pattern", "offload", "methods"],
)
def test_a_plan_that_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**settings)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def trainer_of(parallel: Any, kind: type[Trainer] = Trainer, **settings: Any) -> Trainer:
    model = network()
    optimizer = settings.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=0.05)
    return kind(model, nn.MSELoss(), optimizer, parallel=parallel, **{"callbacks": (), "seed": 1, **settings})


def data(count: int = 20) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randn(count, 3, generator=generator))


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ("ddp", "parallel='ddp' is unknown; use 'auto' or treadle.parallel.Plan"),
        (Plan(shard=2), "pipeline=1 x shard=2 x tensor=1 is 2 processes, but 1 were started; start a multiple of 2"),
    ],
    ids=["word", "processes"],
)
def test_a_trainer_checks_its_plan_when_it_is_built(parallel: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_of(parallel)


# Sharded on one process, which takes every path but the wire ------------------------------------------------------


def test_a_sharded_model_on_one_process_trains_to_the_same_weights() -> None:
    plain, sharded = trainer_of("auto"), trainer_of(Plan(shard="all"))
    for trainer in (plain, sharded):
        trainer.train(data(), num_epochs=2, per_device_batch_size=6, clip_norm=0.1, gradient_accumulation_steps=2)
    ours = [weight.full_tensor() for weight in sharded.model.parameters()]
    torch.testing.assert_close(ours, list(plain.model.parameters()), rtol=0, atol=1e-6)


def test_weights_may_be_gathered_in_bf16() -> None:
    plain, sharded = trainer_of("auto"), trainer_of(Plan(shard="all", gathered="bf16"), precision="bf16")
    for trainer in (plain, sharded):
        trainer.train(data(), max_steps=4, per_device_batch_size=6)
    ours = [weight.full_tensor() for weight in sharded.model.parameters()]
    assert {weight.dtype for weight in ours} == {torch.float32}
    torch.testing.assert_close(ours, list(plain.model.parameters()), rtol=0, atol=0.1)


class OwnLoop(Trainer):
    """Has an epoch of its own."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        raise NotImplementedError


class OwnRun(Trainer):
    """Runs its epochs by itself."""

    def _run_training(self) -> None:
        raise NotImplementedError


class OwnEvaluation(Trainer):
    """Evaluates by itself."""

    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> Any:
        raise NotImplementedError


class InTurns(Trainer):
    """Has its optimizers take turns."""

    def phases(self, epoch: int) -> Any:
        raise NotImplementedError


def test_what_a_plan_cannot_do_is_refused_before_a_step() -> None:
    plan = Plan(shard="all")
    for kind, name in ((OwnRun, "_run_training"), (OwnEvaluation, "_run_eval_epoch")):
        with pytest.raises(ConfigError, match=f"{name} is your own, and may do anything; leave it to the trainer"):
            trainer_of(plan, kind)
    with pytest.raises(ConfigError, match="the loop of an epoch is your own, and may do anything"):
        trainer_of(plan, OwnLoop)
    model = network()
    with pytest.raises(ConfigError, match="Adafactor is not known to update each number by itself"):
        Trainer(model, nn.MSELoss(), torch.optim.Adafactor(model.parameters()), parallel=plan)
    first, second = (torch.optim.SGD([weight]) for weight in list(model.parameters())[:2])
    message = r"the optimizers \['a', 'b'\] take turns in phases of your own; those of a sharded model make one update"
    with pytest.raises(ConfigError, match=message):
        InTurns(model, nn.MSELoss(), {"a": first, "b": second}, parallel=plan)
    with pytest.raises(ConfigError, match="SaveTrainingStateCallback saves a folder by itself"):
        trainer_of(plan, callbacks=(SaveTrainingStateCallback(),))
    compiled = network()
    compiled._orig_mod = model  # as `torch.compile` leaves it
    with pytest.raises(ConfigError, match="the model is compiled already; pass the plain one, and compile=True"):
        Trainer(compiled, nn.MSELoss(), None, parallel=plan)
    bag = nn.Embedding(4, 2, sparse=True)
    with pytest.raises(ConfigError, match="an embedding has sparse gradients"):
        Trainer(bag, nn.MSELoss(), torch.optim.SGD(bag.parameters()), parallel=plan)
    stray = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(3))])
    with pytest.raises(ConfigError, match=r"the optimizer holds a weight of \(3,\) that is not in the model"):
        Trainer(model, nn.MSELoss(), stray, parallel=plan, callbacks=()).train(data(), num_epochs=1)
    with pytest.raises(ConfigError, match="Linear has no method 'score'"):
        Trainer(
            nn.Linear(4, 3), nn.MSELoss(), None, parallel=Plan(shard="all", forward_methods=["score"]), callbacks=()
        ).predict(data())


def test_muon_and_its_schedule_do_the_same_to_a_sharded_model() -> None:
    def trained(parallel: Any) -> nn.Module:
        model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
        model.load_state_dict({f"{place}.weight": torch.eye(4) + place for place in range(3)})
        optimizer = torch.optim.Muon(model.parameters(), lr=0.1)
        trainer = Trainer(model, nn.MSELoss(), optimizer, parallel=parallel, callbacks=(), seed=1)
        rows = TensorDataset(data().tensors[0], data().tensors[0])
        halving = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
        trainer.train(rows, max_steps=4, per_device_batch_size=5, create_scheduler_fn=halving)
        assert optimizer.param_groups[0]["lr"] == 0.1 / 16
        return model

    sharded, plain = trained(Plan(shard="all")), trained("auto")
    assert torch.equal(torch.stack(list(local_weights(sharded))), torch.stack(list(plain.parameters())))


def local_weights(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weights of a model that is sharded over one process."""
    yield from (local_tensor(weight).detach() for weight in model.parameters())


def test_a_model_is_spread_by_one_trainer_only() -> None:
    first = trainer_of(Plan(shard="all"))
    first.train(data(), max_steps=1)
    second = Trainer(first.model, nn.MSELoss(), None, parallel=Plan(shard="all"), callbacks=())
    with pytest.raises(ConfigError, match="the model is sharded over the processes already"):
        second.evaluate(data())


def test_an_optimizer_that_came_after_the_model_was_spread_is_refused() -> None:
    trainer = trainer_of(Plan(shard="all"))
    trainer.train(data(), max_steps=1)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    message = r"parallel=Plan\(data=1\): this SGD was not the trainer's when the model was sharded over the processes"
    with pytest.raises(ConfigError, match=message):
        trainer.train(data(), max_steps=1)
    evaluating = Trainer(network(), nn.MSELoss(), None, parallel=Plan(shard="all"), callbacks=())
    evaluating.evaluate(data())
    evaluating.optimizer = torch.optim.SGD(evaluating.model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="this SGD was not the trainer's"):
        evaluating.train(data(), max_steps=1)


def test_weights_that_an_optimizer_gets_after_the_model_was_spread_are_refused() -> None:
    trainer = trainer_of(Plan(shard="all"))
    trainer.train(data(), max_steps=1)
    trainer.optimizer.add_param_group({"params": [trainer.model.get_submodule("0").weight]})
    with pytest.raises(ConfigError, match=r"was given a weight of \(6, 4\) after the model was sharded"):
        trainer.train(data(), max_steps=1)


def test_a_model_that_came_after_another_was_spread_is_refused_and_a_copy_of_that_is_not() -> None:
    trainer = trainer_of(Plan(shard="all"))
    trainer.train(data(), max_steps=1)
    expected = trainer.predict(data())
    trainer.model = copy_model(trainer.model)
    assert torch.equal(trainer.predict(data()), expected)
    trainer.model = network()
    with pytest.raises(ConfigError, match="another model is sharded over the processes; build a new trainer"):
        trainer.train(data(), max_steps=1)


def test_a_training_state_of_a_sharded_model_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(Plan(shard="all"))
    trainer.train(data(), max_steps=1)
    with pytest.raises(CheckpointError, match="give the trainer a run_dir= and save_every="):
        trainer.save_training_state(tmp_path)


def test_a_sharded_run_is_exported_and_taken_up_without_its_plan(tmp_path: Path) -> None:
    trainer_of(Plan(shard="all"), run_dir=tmp_path).train(data(), max_steps=3, per_device_batch_size=4)
    state = CheckpointStore(tmp_path / "checkpoints", Policy()).read(3, rank=0)
    plain = trainer_of("auto", run_dir=tmp_path)
    plain.train(data(), max_steps=6, per_device_batch_size=4, resume="auto")
    assert starts_of(tmp_path) == [0, 3]
    whole = trainer_of("auto")
    whole.train(data(), max_steps=6, per_device_batch_size=4)
    torch.testing.assert_close(list(plain.model.parameters()), list(whole.model.parameters()), rtol=0, atol=1e-6)
    assert {name: tuple(value.shape) for name, value in state["tracked"]["model"].items()} == {
        "0.weight": (6, 4), "0.bias": (6,), "2.weight": (3, 6), "2.bias": (3,)
    }  # fmt: skip


# Stages ---------------------------------------------------------------------------------------------------------


def test_modules_are_shared_out_by_their_weights_or_as_the_plan_says() -> None:
    parts = stage_modules(network(), Plan(pipeline=2))
    assert assign_stages(parts, Plan(pipeline=2)) == [0, 0, 1]
    assert assign_stages(parts, Plan(pipeline=2, stage_of=[0, 1, 1])) == [0, 1, 1]
    with pytest.raises(ConfigError, match="stage_of has 2 numbers for 3 modules"):
        assign_stages(parts, Plan(pipeline=2, stage_of=[0, 1]))
    with pytest.raises(ConfigError, match=r"stage_of=\[1, 1, 0\] must go from 0 to 1 without a gap"):
        assign_stages(parts, Plan(pipeline=2, stage_of=[1, 1, 0]))
    with pytest.raises(ConfigError, match=r"pipeline=2, but Linear has no pipeline_blocks\(\); pass stages="):
        stage_modules(nn.Linear(2, 2), Plan(pipeline=2))
    with pytest.raises(ConfigError, match="pipeline=4, but there are 3 modules to share out"):
        stage_modules(network(), Plan(pipeline=4))


class Tied(nn.Module):
    """Has a head with the weights of its embedding, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle, self.head = nn.Embedding(6, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"head": "column"},
            "the weight of head is that of another layer, too, and would be cut for one of them",
        ),
        ({"middle": "row"}, "middle is a Conv1d; only nn.Linear and nn.Embedding can be sharded"),
    ],
)
def test_layers_that_cannot_be_divided_are_refused(plan: dict[str, str], message: str) -> None:
    shards = WeightShards(Processes("cpu"), Plan(tensor=2, tensor_plan=plan), Degrees(1, 1, 1, 2), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        shards.check_layers(Tied())


def test_an_embedding_is_divided_by_what_its_style_shards() -> None:
    for style, message in (("row", "does not divide the 7 inputs"), ("column", "does not divide the 3 outputs")):
        plan = Plan(tensor=2, tensor_plan={"0": style})
        shards = WeightShards(Processes("cpu"), plan, Degrees(1, 1, 1, 2), None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            shards.check_layers(nn.Sequential(nn.Embedding(7, 3)))


def test_a_weight_of_the_last_module_and_of_another_in_its_stage_is_refused_with_shards() -> None:
    model = Tied()
    require_apart([model.middle, model.head])
    message = "weight of the last module is the weight of another module of its stage, too, and shard= would cut it"
    with pytest.raises(ConfigError, match=message):
        require_apart([model.embedding, model.head])


# Pieces ---------------------------------------------------------------------------------------------------------


def saved(pieces: list[tuple[tuple[int, int], torch.Tensor]], shape: tuple[int, int]) -> SavedTensor:
    tensor = SavedTensor(shape, "weight")
    for offset, piece in pieces:
        tensor.add(offset, piece.shape, lambda piece=piece: piece)
    return tensor


def test_any_part_is_read_from_whichever_pieces_hold_it() -> None:
    whole = torch.arange(24).reshape(4, 6)
    tensor = saved([((0, 0), whole[:2]), ((2, 0), whole[2:, :4]), ((2, 4), whole[2:, 4:])], (4, 6))
    assert torch.equal(tensor.whole(), whole)
    assert torch.equal(tensor.part((1, 3), (2, 3)), whole[1:3, 3:])
    assert tensor.part((4, 0), (0, 6)).shape == (0, 6)


def test_a_part_that_nobody_wrote_is_missed() -> None:
    with pytest.raises(CheckpointError, match=r"the checkpoint lacks a part of weight, at \(0, 0\) of \(4, 6\)"):
        saved([((0, 0), torch.zeros(2, 6))], (4, 6)).whole()


def test_ranks_write_parts_of_one_state(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    for rank in (1, 0):
        store = CheckpointStore(tmp_path, Policy(), rank=rank, size=2)
        piece = Piece(whole[3 * rank : 3 * rank + 3], (6,), (3 * rank,))
        state = {"processes": 2, "sharded": True, "weight": piece, **({"only": 7} if rank else {"first": 5})}
        store.write(1, *split(state), {}, "attempt")
    assert torch.equal(store.read(1)["weight"], whole)
    assert (store.read(1)["first"], store.read(1)["only"]) == (5, 7)
    assert torch.equal(store.read_lazily(1)["weight"].part((2,), (2,)), whole[2:4])


def test_the_first_of_several_states_counts_where_they_differ() -> None:
    assert merged([{"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"d": 4}}]) == {"a": 1, "b": {"c": 2, "d": 4}}


# Places in the data ---------------------------------------------------------------------------------------------


def state_after(drawn: int, **place: Any) -> dict[str, Any]:
    stream = {"seed": 0, "epoch": 1, "drawn": drawn, "last": 1, **place}
    return {"processes": 4, "tracked": {"stream_train": stream, "progress": {"samples": 8 * drawn}}}


def test_a_place_in_the_data_is_counted_in_samples() -> None:
    anew = split_anew(state_after(6), Split(4, 4, 2), Split(2, 2, 8))
    assert anew["tracked"]["stream_train"]["drawn"] == 3
    assert anew["tracked"]["progress"]["samples"] == 96


def test_a_place_inside_a_batch_or_that_cannot_be_counted_is_refused() -> None:
    with pytest.raises(CheckpointError, match="after 40 samples of epoch 1, inside a batch of 16 on 2 processes"):
        split_anew(state_after(5), Split(4, 4, 2), Split(2, 2, 8))
    with pytest.raises(CheckpointError, match="the place in 'train' cannot be counted in samples; start 4"):
        split_anew(state_after(5, source={}), Split(4, 4, 2), Split(2, 2, 8))


def test_sums_of_losses_go_on_in_one_place() -> None:
    states = [{"total": 4.0, "count": 2.0, "latest": 1.0, "taken": [2.0, 1.0], "bad": None}] * 2
    assert joined_losses(states, 1, mine=True)["total"] == 8.0
    assert joined_losses(states, 2, mine=True)["taken"] == [2.0, 1.0]
    assert joined_losses(states, 1, mine=False)["count"] == 0.0
