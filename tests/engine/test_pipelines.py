"""Stages from a config: what the keys mean, how a model says that it can be cut, and what is refused beforehand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.language_model.gpt import GPT
from examples.vision.vit import VisionTransformer
from tests.engine.parts import Classifier, make_config
from treadle.config import get_config
from treadle.engine import DefaultTrainer
from treadle.engine.config.options import add_pipeline_stages, check_supported, read_plan
from treadle.engine.hooks import PreciseBN, Throughput
from treadle.engine.updater import LastStageLoss
from treadle.errors import ConfigError, DataError, LossError
from treadle.events import EventStorage
from treadle.parallel import Plan
from treadle.parallel.pipeline.loss import Entry, StageLoss, as_one
from treadle.parallel.pipeline.split import Cut, Stage, named_arguments
from treadle.parallel.pipeline.stages import assign_stages
from treadle.parallel.pipeline.strategy import PipelineStrategy, _tensor_facts


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process believe that it has a neighbour, which it never talks to."""
    monkeypatch.setenv("WORLD_SIZE", "2")


def config(**dist: Any) -> Any:
    return make_config(Path("unused"), dist={"pipeline_parallel_size": 2, "device_type": "cpu", **dist})


def gpt(layers: int = 4) -> GPT:
    return GPT(12, context=6, layers=layers, heads=2, width=8)


# What the keys mean ---------------------------------------------------------------------------------------------


def test_the_processes_that_stages_leave_share_the_data() -> None:
    plan = read_plan(config(), world=4)
    assert plan == Plan(pipeline=2)
    assert isinstance(plan, Plan)
    assert plan.degrees(4) == (2, 2, 1, 1)


def test_ids_are_the_stages_of_layers_and_the_rest_goes_to_both_ends() -> None:
    made = config(pipeline_num_layers=4, custom_pipeline_stage_id=[0, 1, 1, 1])
    plan = add_pipeline_stages(made, read_plan(made, world=2), gpt())
    # The embedding, the four blocks, the norm and the head.
    assert plan == Plan(pipeline=2, stage_of=[0, 0, 1, 1, 1, 1, 1])


def test_ids_may_also_be_given_for_every_module() -> None:
    made = config(custom_pipeline_stage_id=[0, 0, 0, 0, 0, 1, 1])
    assert add_pipeline_stages(made, read_plan(made, world=2), gpt()) == Plan(
        pipeline=2, stage_of=[0, 0, 0, 0, 0, 1, 1]
    )


def test_without_ids_stages_are_alike_in_weights() -> None:
    made, model = config(), gpt()
    plan = add_pipeline_stages(made, read_plan(made, world=2), model)
    assert isinstance(plan, Plan)
    assert plan.stage_of is None
    assert assign_stages(model.pipeline_blocks(), plan) == [0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("dist", "message"),
    [
        ({"pipeline_num_layers": 5}, r"train\.dist\.pipeline_num_layers=5, but GPT has 4; leave it out, or correct it"),
        (
            {"custom_pipeline_stage_id": [0, 1]},
            r"train\.dist\.custom_pipeline_stage_id has 2 numbers, but there are 4 layers; give one for each, or for "
            r"each of the 7 modules of pipeline_blocks\(\)",
        ),
        (
            {"custom_pipeline_stage_id": [0, 2, 2, 2]},
            r"train\.dist\.custom_pipeline_stage_id=\[0, 2, 2, 2\]: .* must go from 0 to 1 without a gap",
        ),
    ],
    ids=["layers", "length", "gap"],
)
def test_what_does_not_fit_the_model_is_refused(dist: dict[str, Any], message: str) -> None:
    made = config(**dist)
    with pytest.raises(ConfigError, match=message):
        add_pipeline_stages(made, read_plan(made, world=2), gpt())


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"dist": {"pipeline_parallel_size": 3}}, "pipeline_parallel_size=3, but 2 processes were started; start a mu"),
        (
            {"dist": {"pipeline_parallel_size": 2, "data_parallel_size": 2}},
            "data_parallel_size=2 times pipeline_parallel_size=2 is 4, but 2 processes were started",
        ),
        (
            {"dist": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}},
            "tensor_parallel_size=2 times pipeline_parallel_size=2 is 4, but 2 processes were started; start a mult",
        ),
        (
            {"dist": {"pipeline_parallel_size": 2}, "execution": "compile"},
            "stages run by torch's schedule, and are not compiled; set train.execution='eager'",
        ),
        (
            {"dist": {"custom_pipeline_stage_id": [0, 1]}},
            r"custom_pipeline_stage_id=\[0, 1\], but train.dist.pipeline_parallel_size=1; set that, or leave",
        ),
        (
            {"dist": {"custom_pipeline_stage_id": "01"}},
            "custom_pipeline_stage_id='01' must be a list of whole numbers, the stage of each layer, or None",
        ),
        ({"dist": {"pipeline_num_layers": 0}}, "pipeline_num_layers=0 must be the number of layers, or None"),
    ],
    ids=["processes", "data", "tensor", "compile", "one stage", "no list", "no layers"],
)
@pytest.mark.usefixtures("two_processes")
def test_settings_that_stages_do_not_go_with_are_refused(train: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_supported(make_config(Path("unused"), **train))


@pytest.mark.parametrize(
    ("train", "plan"),
    [
        ({"dist": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}}, Plan(pipeline=2, tensor=2)),
        (
            {"dist": {"pipeline_parallel_size": 2}, "zero_optimization": {"enabled": True, "stage": 3}},
            Plan(pipeline=2, data=1, shard=2),
        ),
        (
            {"dist": {"pipeline_parallel_size": 2}, "zero_optimization": {"enabled": True, "stage": 1}},
            Plan(pipeline=2, data=1, shard=2, reshard_after_forward=False),
        ),
    ],
    ids=["tensor", "zero 3", "zero 1"],
)
def test_stages_go_with_divided_layers_and_sharded_weights(train: dict[str, Any], plan: Plan) -> None:
    assert read_plan(make_config(Path("unused"), **train), world=4) == plan


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("execution", ["auto", "eager", None])
def test_execution_that_leaves_steps_as_they_are_goes_with_stages(execution: str | None) -> None:
    check_supported(make_config(Path("unused"), dist={"pipeline_parallel_size": 2}, execution=execution))


@pytest.mark.usefixtures("two_processes")
def test_graph_mode_is_refused_for_stages() -> None:
    made = config()
    made.graph = get_config("common/models/graph.py").graph
    with pytest.raises(ConfigError, match="stages run by torch's schedule, and are not compiled"):
        check_supported(made)


def test_a_hook_that_calls_the_whole_model_is_refused_for_stages() -> None:
    hook = PreciseBN(1, Classifier(), [], 1)
    hook.attach(SimpleNamespace(core=SimpleNamespace(parallel=SimpleNamespace(is_pipeline=True))))
    with pytest.raises(
        ConfigError, match="PreciseBN calls the model, which no process of a pipeline has all of; leave"
    ):
        hook.before_train()


def test_samples_that_processes_share_are_counted_once() -> None:
    hook, storage = Throughput(tokens_per_sample=3, flops_per_sample=10.0, peak_flops=4.0), EventStorage()
    # Four processes, in pairs that work on the same eight samples for two seconds.
    shares = SimpleNamespace(data_size=2, copies=2)
    core = SimpleNamespace(device=torch.device("cpu"), parallel=shares, processes=SimpleNamespace(size=4))
    hook.attach(trainer := SimpleNamespace(core=core, storage=storage))
    hook._steps, hook._samples, hook._seconds = 1, 8, 2.0
    with storage:
        hook._report()
    found = {name: value for name, (value, _) in trainer.storage.latest().items()}
    assert (found["samples_per_second"], found["tokens_per_second"]) == (8.0, 24.0)
    assert found["mfu"] == 5.0


# How a model says that it can be cut ------------------------------------------------------------------------------


class Headless(Classifier):
    """A model whose last module does not get the labels."""

    def pipeline_blocks(self) -> list[nn.Module]:
        return [self.body, self.head]


class Labelled(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"losses": nn.functional.cross_entropy(self.head(hidden), labels), "mode": torch.tensor(self.training)}


class Weighed(Classifier):
    """A model that takes an argument which none of its modules does."""

    def forward(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        raise NotImplementedError

    def pipeline_blocks(self) -> list[nn.Module]:
        return [self.body, Labelled(self.head)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Classifier(), r"Classifier does not say how it is cut; define pipeline_blocks\(\), which returns the modules"),
        (
            Headless(),
            r"Linear, the last of Headless.pipeline_blocks\(\), takes hidden states alone, so it cannot tell the loss; "
            "give its forward the labels too, and have it return what the model does",
        ),
        (Weighed(), r"Weighed takes \['weights'\], which none of its pipeline_blocks\(\) does; name it among the arg"),
    ],
    ids=["no blocks", "no labels", "idle argument"],
)
def test_a_model_that_does_not_say_how_it_is_cut_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.dist\.pipeline_parallel_size=2.* {message}"):
        add_pipeline_stages(config(), Plan(pipeline=2), model)


def test_it_is_refused_when_the_trainer_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_config(tmp_path, dist={"device_type": "cpu"})
    monkeypatch.setattr("treadle.engine.trainers.default.read_plan", lambda cfg, world: Plan(pipeline=2))
    with pytest.raises(ConfigError, match="Classifier does not say how it is cut"):
        DefaultTrainer(made)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_modules_of_the_examples_return_what_the_models_do(training: bool) -> None:
    tokens, images = torch.arange(12).reshape(2, 6), torch.randn(2, 1, 28, 28)
    labels = torch.tensor([1, 2])
    cases: list[tuple[nn.Module, dict[str, Tensor]]] = [
        (gpt(), {"tokens": tokens, "targets": tokens}),
        (VisionTransformer(layers=2, width=12, label_smoothing=0.1), {"images": images, "labels": labels}),
    ]
    for model, batch in cases:
        model.train(training)
        expected = model(**batch)
        found = in_one_process(model, batch)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


def in_one_process(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what the modules of a model make of a batch, handed on as stages do."""
    parts = model.pipeline_blocks()
    cut = Cut(model, parts, Stage(parts[:-1], first=True))
    cut.follow(model)
    entry = cut.route(batch)
    hidden = cut.own(*entry.args, **{f"batch_{name}": value for name, value in entry.kwargs.items()})
    outputs: dict[str, Tensor] = cut.last(hidden, **entry.ending)
    return outputs


class Cuttable(Classifier):
    def pipeline_blocks(self) -> list[nn.Module]:
        return [self.body, Labelled(self.head)]


def test_the_first_module_may_have_another_name_for_what_the_model_takes_first() -> None:
    model, batch = Cuttable(), {"inputs": torch.randn(3, 2), "labels": torch.tensor([0, 1, 1])}
    cut = Cut(model, parts := model.pipeline_blocks(), Stage(parts[:-1], first=True))
    entry = cut.route(batch)
    assert [value is batch["inputs"] for value in entry.args] == [True]
    assert list(entry.kwargs) == list(entry.ending) == ["labels"]
    assert in_one_process(model, batch)["losses"] == model(**batch)["losses"]


def test_modules_that_only_the_cut_knows_are_in_the_mode_of_the_model() -> None:
    model, batch = Cuttable(), {"inputs": torch.randn(3, 2), "labels": torch.tensor([0, 1, 1])}
    assert in_one_process(model, batch)["mode"]
    model.eval()
    assert not in_one_process(model, batch)["mode"]


def test_what_no_module_takes_of_a_batch_is_named() -> None:
    cut = Cut(model := Cuttable(), parts := model.pipeline_blocks(), Stage(parts[:-1], first=True))
    with pytest.raises(DataError, match=r"the batch has \['age'\], which no module of pipeline_blocks\(\) takes; name"):
        cut.require_taken(Entry((torch.zeros(1),), {"age": torch.zeros(1)}, {}))


def test_batches_that_are_tuples_get_the_names_of_the_model() -> None:
    model = Cuttable()
    assert named_arguments(model, (1, 2), {}) == {"inputs": 1, "labels": 2}
    with pytest.raises(DataError, match=r"a batch has 3 parts, but Cuttable.forward takes \['inputs', 'labels'\]"):
        named_arguments(model, (1, 2, 3), {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "a batch holds a str; stages take batches of tensors"),
        (torch.tensor(1.0), "a batch holds a single number; stages take tensors with a row for each sample"),
    ],
    ids=["text", "number"],
)
def test_what_cannot_be_cut_into_micro_batches_is_refused(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_one([Entry((torch.zeros(2),), {"extra": value}, {})] * 2)


# The end ----------------------------------------------------------------------------------------------------------


def test_the_losses_of_the_last_module_are_summed_and_its_numbers_reported() -> None:
    class End(nn.Module):
        def forward(self, hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"a_loss": hidden.mean(), "b_loss": labels.mean(), "hits": hidden.sum(), "num_items_in_batch": 3}

    end = LastStageLoss(lambda batch: Entry((), {}, batch))
    found = end.finish(End(), torch.tensor([1.0, 3.0]), {"labels": torch.tensor([0.5])})
    assert found["loss"] == 2.5
    assert found["numbers"] == {"a_loss": 2.0, "b_loss": 0.5, "hits": 4.0, "num_items_in_batch": 3}
    assert found["num_items_in_batch"] == 3


def test_a_last_module_of_the_core_door_may_return_its_loss_in_a_dict() -> None:
    model = gpt()
    hidden, targets = torch.randn(2, 6, 8), torch.arange(12).reshape(2, 6)
    last = model.pipeline_blocks()[-1]
    expected = model.head(hidden, targets)
    assert StageLoss(None).finish(last, hidden, {"targets": targets})["loss"] == expected
    assert StageLoss(None).finish(model.head, hidden, {"targets": targets})["loss"] == expected


def test_numbers_that_come_and_go_are_refused_on_the_last_stage() -> None:
    strategy = PipelineStrategy.__new__(PipelineStrategy)
    strategy.is_last, strategy._reported = True, ["loss"]
    message = r"the last stage reported \['loss'\] first and \['accuracy', 'loss'\] now; under a pipeline every step"
    with pytest.raises(LossError, match=message):
        strategy.from_last({"loss": 1.0, "accuracy": 0.5})


def test_what_cannot_be_sent_from_a_stage_is_refused() -> None:
    with pytest.raises(
        DataError, match="a stage returned a tuple; modules return a tensor, the last one may return a d"
    ):
        _tensor_facts((torch.zeros(1), torch.zeros(1)))
