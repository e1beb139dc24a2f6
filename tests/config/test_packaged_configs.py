"""The configs that come with Treadle, key by key, and the schedules and parameter groups that they name."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from treadle.config import ConfigDict, LazyConfig, get_config, instantiate
from treadle.errors import ConfigError
from treadle.optim.param_groups import get_default_optimizer_params
from treadle.schedules.warmup_lr import WarmupCosineLR, WarmupMultiStepLR, WarmupStepLR

DEFAULTS: dict[str, Any] = {
    "output_dir": "./output",
    "train_micro_batch_size": 32,
    "global_batch_size": None,
    "num_accumulation_steps": None,
    "train_iter": 10000,
    "train_epoch": 0,
    "warmup_ratio": 0,
    "lr_scaling.rule": "none",
    "lr_scaling.reference_batch_size": None,
    "start_iter": 0,
    "resume": False,
    "load_weight": "",
    "seed": 1234,
    "log_period": 20,
    "execution": None,
    "amp.enabled": False,
    "amp.dtype": "bf16",
    "amp.loss_scaling": None,
    "matmul_precision": None,
    "convolution_precision": None,
    "offload_optimizer": False,
    "activation_checkpoint.enabled": False,
    "activation_checkpoint.modules": None,
    "on_nonfinite": "raise",
    "deterministic": False,
    "callbacks": None,
    "max_rollbacks": None,
    "microbatch": None,
    "gradient_clip_value": None,
    "tokens_per_sample": None,
    "flops_per_sample": None,
    "peak_flops": None,
    "zero_optimization.enabled": False,
    "zero_optimization.stage": 1,
    "nccl_fusion_threshold_mb": 16,
    "nccl_fusion_max_ops": 24,
    "rdma_enabled": True,
    "checkpointer.period": 5000,
    "checkpointer.max_to_keep": 100,
    "checkpointer.save_model_after_n_epoch": None,
    "test_micro_batch_size": 32,
    "evaluation.enabled": True,
    "evaluation.evaluator._target_": "treadle.engine.evaluation.ClsEvaluator",
    "evaluation.evaluator.topk": (1, 5),
    "evaluation.eval_period": 5000,
    "evaluation.eval_after_n_epoch": None,
    "evaluation.eval_iter": 1e5,
    "evaluation.eval_metric": "Acc@1",
    "evaluation.eval_mode": "max",
    "scheduler._target_": "treadle.schedules.warmup_lr.WarmupCosineLR",
    "scheduler.warmup_factor": 0.001,
    "scheduler.alpha": 0.01,
    "scheduler.warmup_method": "linear",
    "dist.data_parallel_size": 1,
    "dist.tensor_parallel_size": 1,
    "dist.pipeline_parallel_size": 1,
    "dist.pipeline_num_layers": None,
    "dist.custom_pipeline_stage_id": None,
    "dist.num_nodes": None,
    "dist.num_gpus_per_node": None,
    "dist.device_type": "cuda",
    "dist.timeout": 1800,
    "input_placement_device": "cuda",
}


def leaves(node: ConfigDict, above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in node:
        value = node[key]
        found.update(leaves(value, f"{above}{key}.") if isinstance(value, ConfigDict) else {f"{above}{key}": value})
    return found


def test_the_train_settings_have_the_keys_and_defaults_that_users_know() -> None:
    assert leaves(get_config("common/train.py").train) == DEFAULTS


def test_the_settings_of_graph_mode_switch_it_on() -> None:
    assert leaves(get_config("common/models/graph.py").graph) == {
        "enabled": True,
        "backend": "inductor",
        "mode": None,
        "fullgraph": False,
        "compile_budget": 8,
        "auto_parallel.enabled": False,
    }


@pytest.mark.parametrize("key", ["debug", "global_mode", "train_graph", "eval_graph"])
def test_a_setting_of_graph_mode_that_nothing_would_read_is_refused(key: str) -> None:
    graph = get_config("common/models/graph.py").graph
    with pytest.raises(ConfigError, match=f"has no key '{key}'"):
        graph[key] = 1


def test_each_call_gives_a_config_of_its_own() -> None:
    get_config("common/train.py").train.train_iter = 1
    assert get_config("common/train.py").train.train_iter == 10000


def test_a_packaged_config_is_changed_as_the_documentation_shows() -> None:
    train = get_config("common/train.py").train
    train.update(train_iter=5000, evaluation={"eval_period": 500}, amp={"enabled": True})
    changed = {**DEFAULTS, "train_iter": 5000, "evaluation.eval_period": 500, "amp.enabled": True}
    assert leaves(train) == changed


def test_a_config_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^Treadle comes with no config 'common/trian\.py'; did you mean 'common/train\.py'"
    ):
        get_config("common/trian.py")
    with pytest.raises(ConfigError) as caught:
        get_config("../errors.py")
    assert str(caught.value) == (
        "Treadle comes with no config '../errors.py'; it has ['common/models/graph.py', 'common/optim.py', "
        "'common/schedule.py', 'common/train.py']"
    )


def test_the_default_optimizer_is_built_from_the_model_alone() -> None:
    optim = get_config("common/optim.py").optim
    LazyConfig.check(optim)
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    optimizer = instantiate(optim, params=instantiate(optim.params, model=model))
    assert isinstance(optimizer, torch.optim.AdamW)
    decay, rest = optimizer.param_groups
    assert (decay["param_names"], decay["weight_decay"]) == (["0.weight"], 0.01)
    assert (rest["param_names"], rest["weight_decay"]) == (["0.bias", "1.weight", "1.bias"], 0.0)
    assert (decay["lr"], decay["betas"], decay["eps"]) == (1e-4, (0.9, 0.999), 1e-8)
    assert (rest["clip_grad_max_norm"], rest["clip_grad_norm_type"]) == (1.0, 2.0)


def optimizer(lr: float = 5.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def rates(schedule: Any, steps: int = 31) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.step()
    return found


def from_config(name: str, **arguments: Any) -> Any:
    call = get_config("common/schedule.py")[name]
    return instantiate(call, optimizer=optimizer(), max_iter=30, warmup_iter=5, **arguments)


WARMUP = [0.005, 1.004, 2.003, 3.002, 4.001]


def test_multi_step_counts_milestones_from_the_first_update() -> None:
    found = rates(from_config("WarmupMultiStepLR", milestones=[10, 15, 20]))
    assert found == pytest.approx([*WARMUP, *[5.0] * 5, *[0.5] * 5, *[0.05] * 5, *[0.005] * 11])


def test_step_drops_at_every_multiple() -> None:
    assert rates(from_config("WarmupStepLR", step_size=10)) == pytest.approx(
        [*WARMUP, *[5.0] * 5, *[0.5] * 10, *[0.05] * 10, 0.005]
    )


def test_a_step_of_one_drops_at_every_update() -> None:
    found = rates(WarmupStepLR(optimizer(), 30, 0.001, 0, step_size=1, gamma=0.5), steps=4)
    assert found == pytest.approx([5.0, 2.5, 1.25, 0.625])


def test_cosine_after_the_warmup_is_the_cosine_of_the_full_length() -> None:
    found = rates(from_config("WarmupCosineLR", alpha=0.0), steps=33)
    full = [2.5 * (1.0 + math.cos(math.pi * step / 30)) for step in range(31)]
    assert found[5:31] == pytest.approx(full[5:])
    assert found[:5] == pytest.approx([0.005 + (full[5] - 0.005) * step / 5 for step in range(5)])
    assert found[31:] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert rates(from_config("WarmupCosineLR"), steps=31)[30] == pytest.approx(0.05)


def test_cosine_annealing_ends_at_an_absolute_rate() -> None:
    found = rates(from_config("WarmupCosineAnnealingLR", eta_min=1.0))
    assert found[15] == pytest.approx(3.0)
    assert found[30] == pytest.approx(1.0)


def test_exponential_multiplies_after_every_update() -> None:
    found = rates(from_config("WarmupExponentialLR", gamma=0.5), steps=8)
    assert found[5:] == pytest.approx([5 * 0.5**5, 5 * 0.5**6, 5 * 0.5**7])
    assert found[1] == pytest.approx(0.005 * 0.8 + 5 * 0.5**5 * 0.2)


def test_polynomial_ends_at_an_absolute_rate_and_may_cycle() -> None:
    found = rates(from_config("WarmupPolynomialLR", end_learning_rate=1.0, power=2.0), steps=40)
    assert found[15] == pytest.approx(2.0)
    assert found[30:] == pytest.approx([1.0] * 10)
    again = rates(from_config("WarmupPolynomialLR", end_learning_rate=1.0, cycle=True), steps=46)
    assert again[30] == pytest.approx(1.0)
    assert again[45] == pytest.approx(1.0 + 4.0 * 0.25)


def test_without_a_warmup_it_is_the_bare_schedule_and_a_constant_one_stays() -> None:
    bare = WarmupMultiStepLR(optimizer(), 30, 0.001, 0, milestones=[2])
    assert rates(bare, steps=4) == pytest.approx([5.0, 5.0, 0.5, 0.5])
    constant = WarmupStepLR(optimizer(), 30, 0.5, 2, step_size=10, warmup_method="constant")
    assert rates(constant, steps=4) == pytest.approx([2.5, 2.5, 5.0, 5.0])


def test_a_warmup_schedule_resumes_from_its_step_alone() -> None:
    first = from_config("WarmupCosineLR")
    expected = rates(first, steps=12)
    state = first.state_dict()
    second = from_config("WarmupCosineLR")
    second.load_state_dict(state)
    assert second.max_iter == 30
    assert rates(second, steps=3) == pytest.approx(rates(from_config("WarmupCosineLR"), steps=15)[12:])
    assert len(expected) == 12


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            lambda: WarmupCosineLR(optimizer(), 10, 0.1, 5, warmup_method="linar"),
            "WarmupCosineLR: there is no warmup_method 'linar'; did you mean 'linear'?",
        ),
        (
            lambda: WarmupCosineLR(optimizer(), 10, 0.1, 5, warmup_method="x"),
            "WarmupCosineLR: there is no warmup_method 'x'; choose one of ['linear', 'constant']",
        ),
        (
            lambda: WarmupCosineLR(optimizer(), 10, 0.1, 11),
            "WarmupCosineLR: warmup_iter=11 is longer than the whole run, max_iter=10",
        ),
        (
            lambda: WarmupMultiStepLR(optimizer(), 10, 0.1, 5, milestones=[7, 6]),
            "WarmupMultiStepLR: milestones must rise, got [7, 6]",
        ),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_refused(build: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert str(caught.value) == expected


def tied_model() -> nn.Module:
    model = nn.Module()
    model.embed = nn.Embedding(4, 2)
    model.head = nn.Linear(2, 4)
    model.head.weight = model.embed.weight
    model.norm = nn.BatchNorm1d(2)
    model.frozen = nn.Linear(2, 2)
    model.frozen.requires_grad_(False)
    return model


def summary(groups: list[dict[str, Any]]) -> list[tuple[list[str], dict[str, Any]]]:
    hidden = ("params", "param_names", "name")
    return [(group["param_names"], {k: v for k, v in group.items() if k not in hidden}) for group in groups]


def test_default_groups_leave_out_the_frozen_and_count_the_tied_once() -> None:
    groups = get_default_optimizer_params(tied_model(), base_lr=0.1, weight_decay=0.01, weight_decay_norm=0.0)
    assert summary(groups) == [
        (["embed.weight", "head.bias"], {"lr": 0.1, "weight_decay": 0.01}),
        (["norm.weight", "norm.bias"], {"lr": 0.1, "weight_decay": 0.0}),
    ]
    assert summary(get_default_optimizer_params(tied_model()))[0][1] == {}


def test_overrides_go_by_the_last_part_of_the_name_and_win() -> None:
    groups = get_default_optimizer_params(
        tied_model(), weight_decay=0.01, weight_decay_norm=0.5, overrides={"bias": {"weight_decay": 0.0, "lr": 1.0}}
    )
    assert summary(groups) == [
        (["embed.weight"], {"weight_decay": 0.01}),
        (["head.bias", "norm.bias"], {"weight_decay": 0.0, "lr": 1.0}),
        (["norm.weight"], {"weight_decay": 0.5}),
    ]
    assert [group["name"] for group in groups] == ["default", "bias", "norm"]


def test_clipping_is_written_only_with_both_its_settings() -> None:
    assert summary(get_default_optimizer_params(nn.Linear(1, 1), clip_grad_max_norm=1.0))[0][1] == {}
    both = get_default_optimizer_params(nn.Linear(1, 1), clip_grad_max_norm=1.0, clip_grad_norm_type=2.0)
    assert summary(both)[0][1] == {"clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0}


def test_overrides_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^biases are set twice: ") as caught:
        get_default_optimizer_params(nn.Linear(1, 1), weight_decay_bias=0.1, overrides={"bias": {"lr": 1.0}})
    assert str(caught.value) == (
        "biases are set twice: overrides['bias']={'lr': 1.0} and weight_decay_bias=0.1; give one of them"
    )
    with pytest.raises(ConfigError) as other:
        get_default_optimizer_params(nn.Linear(1, 1), overrides={"wieght": {"lr": 1.0}})
    assert str(other.value) == "overrides: no parameter of Linear is called 'wieght'; did you mean 'weight'?"
    with pytest.raises(ConfigError, match=r"is called 'xyz'; the names are 'weight', 'bias'$"):
        get_default_optimizer_params(nn.Linear(1, 1), overrides={"xyz": {"lr": 1.0}})


def test_the_documentation_lists_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")
    names = {key.partition("._target_")[0].partition(".topk")[0] for key in DEFAULTS}
    shown = {name for name in names if f"`{name}`" in page or f"`.{name.rpartition('.')[2]}`" in page}
    assert names - shown == {"scheduler.warmup_factor", "scheduler.alpha", "scheduler.warmup_method"}
