"""Every key of the packaged configs is read by this door and has an effect, and no other key is read."""

import ast
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

import treadle.engine
from examples.language_model.gpt import GPT
from tests.engine.parts import Classifier, make_config
from treadle.callbacks import GradientNormMonitor
from treadle.config import ConfigDict, LazyCall, get_config
from treadle.config.nodes import is_lazy
from treadle.engine import DefaultTrainer, EagerTrainer, GraphTrainer, default_argument_parser, default_setup, hooks
from treadle.engine.config.options import add_pipeline_stages, read_plan
from treadle.engine.evaluation import DatasetEvaluator
from treadle.errors import ConfigError, NonFiniteError
from treadle.parallel import Plan

READERS = ("treadle.engine", "treadle.config.resolution")
FILLED_IN = {"train.scheduler.max_iter", "train.scheduler.warmup_iter", "train.scheduler.milestones"}
"""Arguments of a schedule that the run works out."""


def tree() -> ConfigDict:
    """Return the packaged settings as the sections of one config."""
    return ConfigDict(
        {"train": get_config("common/train.py").train, "graph": get_config("common/models/graph.py").graph}
    )


def keys(node: Any, above: str) -> Iterator[str]:
    """Yield the dotted keys of the settings below `node`; a lazy call is one setting."""
    for name in node:
        value = node[name]
        if isinstance(value, DictConfig) and not is_lazy(value):
            yield from keys(value, f"{above}.{name}")
        else:
            yield f"{above}.{name}"


ALL = {key for section in tree() for key in keys(tree()[section], str(section))}


# What is read ---------------------------------------------------------------------------------------------------


def reads_for_the_door(frame: FrameType | None) -> bool:
    """Whether the nearest caller that is no config is a module of this door."""
    while frame is not None and frame.f_globals["__name__"] in ("treadle.config.selection", __name__):
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].startswith(READERS)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys that the door reads, added while it does."""
    found: set[str] = set()
    attribute, select = ConfigDict.__getattr__, OmegaConf.select

    def read(self: ConfigDict, key: str) -> Any:
        if not key.startswith("_") and reads_for_the_door(sys._getframe(1)):
            found.add(self._get_full_key(key))
        return attribute(self, key)

    def selected(config: Any, key: str, **options: Any) -> Any:
        if reads_for_the_door(sys._getframe(1)):
            found.add(config._get_full_key(key))
        return select(config, key, **options)

    monkeypatch.setattr(ConfigDict, "__getattr__", read)
    monkeypatch.setattr(OmegaConf, "select", staticmethod(selected))
    return found


def with_everything(folder: Path, **train: Any) -> ConfigDict:
    made = make_config(
        folder,
        train_epoch=2,
        evaluation={"enabled": True, "eval_after_n_epoch": 1},
        checkpointer={"save_model_after_n_epoch": 1},
        amp={"enabled": True},
        activation_checkpoint={"enabled": True, "modules": ["Linear"]},
        on_nonfinite="skip",
        zero_optimization={"enabled": True, "stage": 3},
        resume="auto",
        peak_flops=1e12,
        **train,
    )
    made.graph = get_config("common/models/graph.py").graph
    made.graph.backend = "eager"
    return made


def test_every_key_that_a_run_reads_is_in_the_packaged_configs(tmp_path: Path, reads: set[str]) -> None:
    made = with_everything(tmp_path)
    default_setup(made, default_argument_parser().parse_args([]))
    DefaultTrainer(made).train()
    known = ALL | {key.rpartition(".")[0] for key in ALL} | FILLED_IN
    settings = {key for key in reads if key.startswith(("train.", "graph."))}
    assert len(settings) > 40, "this test records nothing: it looks in the wrong place"
    assert settings - known == set()


def test_every_key_that_the_source_asks_for_is_in_the_packaged_configs() -> None:
    asked = set()
    for file in Path(treadle.engine.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "try_get_key":
                asked |= {part.value for part in node.args if isinstance(part, ast.Constant)}
    settings = {key for key in asked if key.startswith(("train.", "graph."))}
    assert len(settings) > 15, "this test finds nothing: it looks for the wrong call"
    assert settings - ALL - {"train.scheduler"} == set()


def test_every_key_is_read(tmp_path: Path, reads: set[str]) -> None:
    made = with_everything(tmp_path)
    default_setup(made, default_argument_parser().parse_args([]))
    DefaultTrainer(made).train()
    DefaultTrainer(make_config(tmp_path / "graph", execution=None))
    inner = {key for key in ALL if any(other.startswith(f"{key}.") for other in reads)}
    # One is read by the class that it builds, the other is written by the trainer.
    read = reads | inner | {"train.start_iter"}
    assert ALL - read == set()


# What has an effect ---------------------------------------------------------------------------------------------

Effect = Callable[[Path], None]
EFFECTS: dict[str, Effect] = {}


def effect_of(*names: str) -> Callable[[Effect], Effect]:
    """Name the keys whose effect a function shows."""

    def register(effect: Effect) -> Effect:
        for name in names:
            assert name not in EFFECTS, f"{name} is shown twice"
            EFFECTS[name] = effect
        return effect

    return register


class Seeing(Classifier):
    """Notes the size and the type of what it is given and computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, int, torch.dtype]] = []
        self.poisoned = False

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen.append((self.training, len(inputs), self.head(self.body(inputs)).dtype))
        outputs = super().forward(inputs, labels)
        return {name: value * float("nan") if self.poisoned else value for name, value in outputs.items()}


def made_with(folder: Path, **train: Any) -> DefaultTrainer:
    made = make_config(folder, **{"train_iter": 4, **train})
    made.model = LazyCall(Seeing)()
    return DefaultTrainer(made)


def trained_with(folder: Path, **train: Any) -> DefaultTrainer:
    trainer = made_with(folder, **train)
    trainer.train()
    return trainer


def graph_with(folder: Path, **graph: Any) -> DefaultTrainer:
    made = make_config(folder, train_iter=2)
    made.graph = get_config("common/models/graph.py").graph
    made.graph.update({"backend": "eager", **graph})
    return DefaultTrainer(made)


def sizes(trainer: DefaultTrainer, *, training: bool = True) -> list[int]:
    return [size for mode, size, _ in trainer.model.seen if mode is training]


def lines(folder: Path) -> list[str]:
    return (folder / "metrics.json").read_text().splitlines()


def rates(trainer: DefaultTrainer) -> list[float]:
    return [value for value, _ in trainer.storage.history("lr").values()]


@effect_of("train.output_dir", "train.log_period")
def the_metrics_lie_in_the_folder_with_a_line_for_each_period(folder: Path) -> None:
    trained_with(folder / "here", log_period=2)
    assert len(lines(folder / "here")) == 2


@effect_of("train.train_micro_batch_size", "train.global_batch_size", "train.num_accumulation_steps")
def an_iteration_has_so_many_passes_of_so_many_samples(folder: Path) -> None:
    def passes(**settings: int) -> list[int]:
        return sizes(trained_with(folder / str(settings), train_iter=1, train_micro_batch_size=4, **settings))

    assert passes() == [4]
    assert passes(global_batch_size=12) == [4, 4, 4]
    assert passes(num_accumulation_steps=2) == [4, 4]


@effect_of("train.train_iter", "train.train_epoch")
def the_longer_of_the_two_is_run(folder: Path) -> None:
    assert trained_with(folder / "a", train_iter=3).iter == 3
    assert trained_with(folder / "b", train_iter=3, train_epoch=1).iter == 8


@effect_of("train.warmup_ratio", "train.scheduler")
def the_rate_warms_up_and_follows_the_schedule(folder: Path) -> None:
    assert rates(trained_with(folder / "a", warmup_ratio=0.5))[0] == pytest.approx(0.0001)
    assert rates(trained_with(folder / "b"))[0] == pytest.approx(0.1)
    assert made_with(folder / "c", scheduler=None).lr_scheduler is None


@effect_of("train.resume", "train.start_iter", "train.load_weight")
def a_run_goes_on_or_begins_with_given_weights(folder: Path) -> None:
    first = trained_with(folder)
    assert made_with(folder, train_iter=6, resume=True).cfg.train.start_iter == 4
    tuned = made_with(folder / "tuned", load_weight=str(folder))
    assert tuned.cfg.train.start_iter == 0
    assert torch.equal(tuned.model.head.weight, first.model.head.weight)


@effect_of("train.seed")
def another_seed_gives_other_weights(folder: Path) -> None:
    one, other = made_with(folder / "a", seed=1), made_with(folder / "b", seed=2)
    assert not torch.equal(one.model.head.weight, other.model.head.weight)


@effect_of("train.execution", "graph.enabled")
def the_model_is_compiled_if_one_of_them_says_so_and_the_first_wins(folder: Path) -> None:
    assert type(made_with(folder / "a")._trainer) is EagerTrainer
    assert type(graph_with(folder / "b")._trainer) is GraphTrainer
    assert type(graph_with(folder / "c", enabled=False)._trainer) is EagerTrainer
    for execution, kind in (("compile", GraphTrainer), ("eager", EagerTrainer), ("auto", GraphTrainer)):
        made = make_config(folder / execution, execution=execution)
        made.graph = {"enabled": execution != "compile", "backend": "eager"}
        assert type(DefaultTrainer(made)._trainer) is kind


@effect_of("graph.backend", "graph.mode", "graph.fullgraph", "graph.compile_budget")
def the_graph_is_compiled_as_they_say(folder: Path) -> None:
    with pytest.raises(Exception, match="no such backend"):
        graph_with(folder / "a", backend="no such backend")
    with pytest.raises(ConfigError, match="the mode 'no such mode' is unknown; use one of"):
        graph_with(folder / "b", backend="inductor", mode="no such mode")
    # What other tests had compiled of the same class counts against torch's own limit.
    torch.compiler.reset()
    broken = graph_with(folder / "c", fullgraph=True)
    broken.model.body.register_forward_hook(lambda *_: torch._dynamo.graph_break())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        broken.train()
    with pytest.raises(ConfigError, match=r"graph.compile_budget=0 must be at least 1"):
        graph_with(folder / "d", compile_budget=0)


@effect_of("graph.auto_parallel.enabled")
def a_placement_found_by_itself_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"graph\.auto_parallel\.enabled=True"):
        graph_with(folder, auto_parallel={"enabled": True})


@effect_of("train.amp.enabled", "train.amp.dtype")
def layers_compute_in_the_format(folder: Path) -> None:
    def formats(**amp: Any) -> set[torch.dtype]:
        trainer = trained_with(folder / str(sorted(amp.items())), amp=amp)
        return {dtype for _, _, dtype in trainer.model.seen}

    assert formats(enabled=False) == {torch.float32}
    assert formats(enabled=True) == {torch.bfloat16}
    assert formats(enabled=True, dtype="fp16") == {torch.float16}


@effect_of("train.amp.loss_scaling")
def the_loss_is_scaled_as_it_says(folder: Path) -> None:
    amp = {"enabled": True, "dtype": "fp16", "loss_scaling": {"initial": 8.0, "growth_interval": 2}}
    # Doubled after two and after four updates.
    assert trained_with(folder, amp=amp).storage.history("loss_scale").latest() == 32.0


@effect_of("train.matmul_precision", "train.convolution_precision")
def products_are_rounded_as_they_say_while_it_trains(folder: Path) -> None:
    seen: list[tuple[str, str]] = []
    for matmul, convolution in ((None, None), ("medium", "high")):
        trainer = made_with(folder / str(matmul), matmul_precision=matmul, convolution_precision=convolution)
        note = hooks.CallbackHook(
            before_train=lambda own: seen.append(
                (torch.get_float32_matmul_precision(), str(own.core.single_precision.convolution))
            )
        )
        trainer.register_hooks([note])
        trainer.train()
    assert seen == [("highest", "None"), ("medium", "high")]


@effect_of("train.offload_optimizer")
def the_state_of_the_optimizer_is_kept_on_the_host(folder: Path) -> None:
    assert len(trained_with(folder / "a", offload_optimizer=True).core.this_run.updater.offloaded) == 1
    assert trained_with(folder / "b").core.this_run.updater.offloaded == []


@effect_of("train.lr_scaling.rule", "train.lr_scaling.reference_batch_size")
def the_rates_follow_the_batch(folder: Path) -> None:
    def first(**scaling: Any) -> float:
        trainer = made_with(folder / str(sorted(scaling.items())), num_accumulation_steps=4, lr_scaling=scaling)
        assert trainer.cfg.optim.lr == 0.1, "what is saved would be scaled again"
        return float(trainer.optimizer.param_groups[0]["lr"])

    assert first(rule="none") == 0.1
    assert first(rule="linear", reference_batch_size=8) == pytest.approx(0.4)
    assert first(rule="sqrt", reference_batch_size=8) == pytest.approx(0.2)
    with pytest.raises(ConfigError, match=r"lr_scaling: rule='linear' needs reference_batch_size="):
        first(rule="linear")


@effect_of("train.activation_checkpoint.enabled", "train.activation_checkpoint.modules")
def the_blocks_that_match_are_computed_again(folder: Path) -> None:
    def recomputed(**settings: Any) -> bool:
        trainer = made_with(folder / str(sorted(settings.items())), activation_checkpoint=settings)
        return "forward" in vars(trainer.model.head)

    assert recomputed(enabled=True, modules=["head"])
    assert not recomputed(enabled=True, modules=["body"])
    assert not recomputed(enabled=False, modules=["head"])


@effect_of("train.on_nonfinite")
def a_loss_that_is_no_number_is_met_as_it_says(folder: Path) -> None:
    for policy in ("raise", "skip"):
        trainer = made_with(folder / policy, on_nonfinite=policy)
        before = trainer.model.head.weight.detach().clone()
        trainer.model.poisoned = True
        if policy == "raise":
            with pytest.raises(NonFiniteError):
                trainer.train()
        else:
            trainer.train()
            assert torch.equal(trainer.model.head.weight, before)


@effect_of("train.callbacks")
def callbacks_act_before_the_hooks(folder: Path) -> None:
    trainer = made_with(folder, callbacks=[LazyCall(GradientNormMonitor)(every=2)])
    trainer.train()
    assert isinstance(trainer._hooks[0], GradientNormMonitor)
    assert trainer.storage.series("gradient_norm").steps[0] == 1


@effect_of("train.deterministic")
def torch_is_deterministic_while_it_trains(folder: Path) -> None:
    seen: list[bool] = []
    for wanted in (True, False):
        trainer = made_with(folder / str(wanted), deterministic=wanted)
        note = hooks.CallbackHook(before_train=lambda _: seen.append(torch.are_deterministic_algorithms_enabled()))
        trainer.register_hooks([note])
        trainer.train()
    assert seen == [True, False]


@effect_of("train.tokens_per_sample", "train.flops_per_sample", "train.peak_flops")
def the_rates_are_computed_from_them(folder: Path) -> None:
    trainer = trained_with(folder, tokens_per_sample=7, flops_per_sample=50.0, peak_flops=1e6)
    latest = {name: value for name, (value, _) in trainer.storage.latest().items()}
    assert latest["tokens_per_second"] == pytest.approx(7 * latest["samples_per_second"])
    assert latest["mfu"] == pytest.approx(50.0 * latest["samples_per_second"] / 1e6)


@effect_of("train.zero_optimization.enabled", "train.zero_optimization.stage")
def weights_are_sharded_over_all_processes(folder: Path) -> None:
    def plan(**settings: Any) -> Any:
        return read_plan(make_config(folder, zero_optimization=settings), world=4)

    assert plan(enabled=False) == "auto"
    assert plan(enabled=True, stage=3) == Plan(data=1, shard=4)
    assert plan(enabled=True, stage=2) == Plan(data=1, shard=4, reshard_after_forward=False)
    with pytest.raises(ConfigError, match=r"train\.zero_optimization\.stage=4 is unknown; use 1, 2 or 3"):
        plan(enabled=True, stage=4)


@effect_of("train.dist.tensor_parallel_size")
def layers_are_spread_over_so_many_processes(folder: Path) -> None:
    assert read_plan(make_config(folder, dist={"tensor_parallel_size": 2}), world=4) == Plan(tensor=2)
    with pytest.raises(ConfigError, match=r"train\.dist\.tensor_parallel_size=2, but 1 processes were started"):
        made_with(folder, dist={"tensor_parallel_size": 2})


@effect_of(
    "train.dist.pipeline_parallel_size",
    "train.dist.pipeline_num_layers",
    "train.dist.custom_pipeline_stage_id",
)
def the_model_is_cut_into_so_many_stages(folder: Path) -> None:
    stages = {"pipeline_parallel_size": 2, "pipeline_num_layers": 2, "custom_pipeline_stage_id": [0, 1]}
    made = make_config(folder, dist=stages)
    plan = read_plan(made, world=4)
    assert plan == Plan(pipeline=2)
    model = GPT(12, context=6, layers=2, heads=2, width=8)
    assert add_pipeline_stages(made, plan, model) == Plan(pipeline=2, stage_of=[0, 0, 1, 1, 1])
    with pytest.raises(ConfigError, match=r"train\.dist\.pipeline_parallel_size=2, but 1 processes were started"):
        made_with(folder, dist=stages)


@effect_of(
    "train.dist.data_parallel_size",
    "train.dist.num_nodes",
    "train.dist.num_gpus_per_node",
    "train.nccl_fusion_max_ops",
)
def what_this_version_or_this_launch_cannot_do_is_refused(folder: Path) -> None:
    refused: list[tuple[str, dict[str, Any]]] = [
        ("train.dist.data_parallel_size=3, but 1 processes", {"dist": {"data_parallel_size": 3}}),
        ("train.dist.num_nodes=2, but 1 processes", {"dist": {"num_nodes": 2}}),
        ("train.dist.num_gpus_per_node=2, but 1 processes", {"dist": {"num_gpus_per_node": 2}}),
        ("train.nccl_fusion_max_ops=8: torch joins gradients by size alone", {"nccl_fusion_max_ops": 8}),
    ]
    for message, change in refused:
        with pytest.raises(ConfigError, match=message):
            made_with(folder, **change)


@effect_of("train.dist.device_type")
def the_device_is_that_kind(folder: Path) -> None:
    assert trained_with(folder / "a", dist={"device_type": "cpu"}).device == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"train\.dist\.device_type='tpu' is unknown"):
        made_with(folder / "b", dist={"device_type": "tpu"})


@effect_of("train.dist.timeout")
def processes_wait_so_long_for_each_other(folder: Path) -> None:
    assert trained_with(folder / "a", dist={"device_type": "cpu", "timeout": 60}).core.options.timeout == 60
    with pytest.raises(ConfigError, match=r"timeout=0 must be a number of seconds above 0"):
        made_with(folder / "b", dist={"timeout": 0})


@effect_of("train.nccl_fusion_threshold_mb")
def gradients_are_averaged_in_buckets_of_that_size(folder: Path) -> None:
    assert trained_with(folder, nccl_fusion_threshold_mb=3).core.options.bucket_megabytes == 3


@effect_of("train.rdma_enabled")
def infiniband_is_switched_off(folder: Path) -> None:
    for wanted in (True, False):
        os.environ.pop("NCCL_IB_DISABLE", None)
        default_setup(make_config(folder / str(wanted), rdma_enabled=wanted), default_argument_parser().parse_args([]))
        assert ("NCCL_IB_DISABLE" in os.environ) is not wanted


@effect_of("train.checkpointer.period", "train.checkpointer.max_to_keep")
def checkpoints_are_taken_so_often_and_so_many_are_kept(folder: Path) -> None:
    def kept(name: str, **settings: Any) -> list[int]:
        return trained_with(folder / name, train_iter=9, checkpointer=settings).checkpointer.store.steps()

    assert kept("all", period=2) == [2, 4, 6, 8, 9]
    assert kept("few", period=2, max_to_keep=1) == [9]


@effect_of("train.checkpointer.save_model_after_n_epoch")
def a_checkpoint_is_taken_after_so_many_epochs(folder: Path) -> None:
    settings = {"save_model_after_n_epoch": 1}
    assert made_with(folder, checkpointer=settings).cfg.train.checkpointer.period == 8  # 64 samples in batches of 8


class Counting(DatasetEvaluator):
    """Reports how many samples it saw."""

    def reset(self) -> None:
        self.samples = 0

    def process(self, inputs: Any, outputs: Any) -> None:
        self.samples += len(inputs["labels"])

    def evaluate(self) -> dict[str, Any]:
        return {"samples": self.samples}


@effect_of("train.evaluation.enabled", "train.evaluation.evaluator", "train.evaluation.eval_iter")
def the_evaluator_sees_so_many_batches(folder: Path) -> None:
    settings = {"enabled": True, "evaluator": LazyCall(Counting)(), "eval_metric": "samples"}
    assert trained_with(folder / "a", evaluation=settings)._last_eval_results == {"samples": 20}
    assert trained_with(folder / "b", evaluation={**settings, "eval_iter": 2})._last_eval_results == {"samples": 16}
    assert trained_with(folder / "c", evaluation={**settings, "enabled": False})._last_eval_results is None
    with pytest.raises(ConfigError, match=r"train.evaluation.evaluator builds a dict, which has no process\(\)"):
        trained_with(folder / "d", evaluation={"enabled": True, "evaluator": {"topk": (1,)}})


@effect_of("train.test_micro_batch_size")
def an_evaluation_has_passes_of_so_many_samples(folder: Path) -> None:
    trainer = trained_with(folder, test_micro_batch_size=10, evaluation={"enabled": True})
    assert sizes(trainer, training=False) == [10, 10]


@effect_of("train.evaluation.eval_period", "train.evaluation.eval_after_n_epoch")
def evaluations_come_so_often(folder: Path) -> None:
    def passes(**settings: Any) -> int:
        made = {"enabled": True, **settings}
        return len(sizes(trained_with(folder / str(settings), train_iter=9, evaluation=made), training=False)) // 3

    assert passes(eval_period=3) == 3
    assert passes(eval_period=3, eval_after_n_epoch=1) == 2  # after 8 iterations, and at the end


@effect_of("train.evaluation.eval_metric", "train.evaluation.eval_mode")
def the_best_checkpoint_is_judged_by_them(folder: Path) -> None:
    def best(**settings: Any) -> tuple[str, float | None]:
        trainer = trained_with(folder / str(settings), evaluation={"enabled": True, "eval_period": 1, **settings})
        hook = next(hook for hook in trainer._hooks if isinstance(hook, hooks.BestCheckpointer))
        return hook._metric, hook.best_metric

    assert best(eval_metric="Acc@5") == ("Acc@5", 100.0)
    highest, lowest = best(eval_mode="max")[1], best(eval_mode="min")[1]
    assert highest is not None
    assert lowest is not None
    assert highest >= lowest


@effect_of("train.gradient_clip_value")
def no_element_of_the_gradient_is_larger_than_asked(folder: Path) -> None:
    def largest(**settings: Any) -> float:
        trainer = made_with(folder / str(settings), **settings)
        found: list[float] = []
        gradients = [one for group in trainer.optimizer.param_groups for one in group["params"]]
        trainer.optimizer.register_step_pre_hook(
            lambda *arguments: found.append(max(float(one.grad.abs().max()) for one in gradients))
        )
        trainer.train()
        return max(found)

    assert largest() > 0.01
    assert largest(gradient_clip_value=0.01) == pytest.approx(0.01)


@effect_of("train.max_rollbacks")
def a_run_goes_back_no_more_often_than_it_may(folder: Path) -> None:
    trainer = made_with(folder, on_nonfinite="rollback", max_rollbacks=0, checkpointer={"period": 1})
    trainer.model.poisoned = True
    with pytest.raises(NonFiniteError, match="after 0 rollbacks"):
        trainer.train()


@effect_of("train.microbatch")
def a_micro_batch_for_which_there_is_no_room_is_calculated_in_parts(folder: Path) -> None:
    def no_room(module: Any, given: Any, kwargs: Any) -> None:
        if len(kwargs["inputs"]) > 4:
            raise torch.OutOfMemoryError("no room")

    def run(**settings: Any) -> DefaultTrainer:
        trainer = made_with(folder / str(settings), train_iter=2, **settings)
        trainer.model.register_forward_pre_hook(no_room, with_kwargs=True)
        trainer.train()
        return trainer

    whole = trained_with(folder / "whole", train_iter=2)
    cut = run(microbatch="auto")
    assert sizes(whole) == [8, 8]
    assert sizes(cut) == [4, 4, 4, 4]
    torch.testing.assert_close(cut.model.head.weight, whole.model.head.weight)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        run()


@effect_of("train.input_placement_device")
def it_is_handed_to_get_batch(folder: Path) -> None:
    seen: list[Any] = []

    class Own(DefaultTrainer):
        @classmethod
        def get_batch(cls, data: Any, input_placement_device: Any = None, mixup_func: Any = None) -> Any:
            seen.append(input_placement_device)
            return super().get_batch(data)

    Own(make_config(folder, train_iter=1, input_placement_device="cpu")).train()
    assert seen == ["cpu"]


def test_an_effect_is_shown_for_every_key() -> None:
    assert set(EFFECTS) == ALL


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, where it loads its compiler
@pytest.mark.parametrize("effect", dict.fromkeys(EFFECTS.values()), ids=lambda effect: effect.__name__)
def test_each_key_has_an_effect_or_fails_clearly(effect: Effect, tmp_path: Path, monkeypatch: Any) -> None:
    # Put back afterwards, whatever the run sets.
    monkeypatch.setenv("NCCL_IB_DISABLE", "0")
    effect(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("compiled", "train.execution='compiled' is unknown; did you mean 'compile'?"),
        ("fast", r"train.execution='fast' is unknown; use one of \('eager', 'compile', 'graph', 'auto'\), or None"),
    ],
)
def test_an_execution_that_there_is_not_is_refused(tmp_path: Path, chosen: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message.replace('?', '[?]')}"):
        made_with(tmp_path, execution=chosen)


@pytest.mark.parametrize(
    ("amp", "message"),
    [
        ({"loss_scaling": {"initial": 8.0}}, "train.amp.loss_scaling is set, but only fp16 scales the loss"),
        (
            {"enabled": True, "dtype": "fp16", "loss_scaling": {"inital": 8.0}},
            "train.amp.loss_scaling has no 'inital'; did you mean 'initial'?",
        ),
    ],
)
def test_a_scaling_of_the_loss_that_cannot_be_is_refused(tmp_path: Path, amp: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made_with(tmp_path, amp=amp)
    assert str(caught.value).startswith(message)
