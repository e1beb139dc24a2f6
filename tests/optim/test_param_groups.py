"""Parameter groups by pattern, by class and by depth."""

from typing import Any

import pytest
import torch
from torch import nn

from treadle.errors import ConfigError
from treadle.optim.param_groups import layerwise_decay, parameter_groups
from treadle.schedules import CosineSchedule


class Net(nn.Module):
    """A backbone with a normalised block, a parameter of its own, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(2))
        self.backbone = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
        self.head = nn.Linear(2, 1)


def described(groups: list[dict[str, Any]], *fields: str) -> list[tuple[Any, ...]]:
    return [(group["param_names"], *(group.get(field) for field in fields)) for group in groups]


def test_rules_merge_in_order_and_the_later_wins_setting_by_setting() -> None:
    rules = {
        "backbone.*": {"lr": 1e-5, "weight_decay": 0.5},
        "*.bias": {"weight_decay": 0.0},
        "backbone.2.*": {"lr": 1e-4},
    }
    assert described(parameter_groups(Net(), rules, lr=1e-3), "lr", "weight_decay") == [
        (["token", "head.weight"], 1e-3, None),
        (["backbone.0.weight", "backbone.1.weight"], 1e-5, 0.5),
        (["backbone.0.bias", "backbone.1.bias"], 1e-5, 0.0),
        (["backbone.2.weight"], 1e-4, 0.5),
        (["backbone.2.bias"], 1e-4, 0.0),
        (["head.bias"], 1e-3, 0.0),
    ]


def test_parameters_with_equal_settings_share_a_group_whichever_rule_gave_them() -> None:
    groups = parameter_groups(Net(), {"head.*": {"lr": 0.5}, "token": {"lr": 0.5}}, lr=0.1)
    assert described(groups, "name") == [
        (["token", "head.weight", "head.bias"], "token"),
        (
            [
                "backbone.0.weight",
                "backbone.0.bias",
                "backbone.1.weight",
                "backbone.1.bias",
                "backbone.2.weight",
                "backbone.2.bias",
            ],
            "default",
        ),
    ]


def test_no_rules_make_one_group_in_the_order_of_the_model() -> None:
    model = Net()
    (group,) = parameter_groups(model, {}, lr=0.1)
    assert group["params"] == list(model.parameters())
    assert group["param_names"] == [name for name, _ in model.named_parameters()]


def test_a_class_of_modules_can_be_a_rule() -> None:
    groups = parameter_groups(Net(), {nn.LayerNorm: {"weight_decay": 0.0}}, weight_decay=0.1)
    assert described(groups, "name", "weight_decay")[1] == (
        ["backbone.1.weight", "backbone.1.bias"],
        "LayerNorm",
        0.0,
    )


def test_frozen_parameters_are_left_out_but_may_be_named_by_a_rule() -> None:
    model = Net()
    model.backbone.requires_grad_(False)
    groups = parameter_groups(model, {"backbone.*": {"lr": 1e-5}}, lr=0.1)
    assert described(groups, "lr") == [(["token", "head.weight", "head.bias"], 0.1)]


def test_a_tied_parameter_counts_once_and_answers_to_all_its_names() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "head": nn.Linear(2, 3, bias=False)})
    model["head"].weight = model["embedding"].weight
    groups = parameter_groups(model, {"head.*": {"lr": 0.5}}, lr=0.1)
    assert described(groups, "lr") == [(["embedding.weight"], 0.5)]


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_any_torch_optimizer_takes_the_groups_and_saves_their_names(optimizer_class: Any) -> None:
    model = Net()
    optimizer = optimizer_class(parameter_groups(model, {"head.*": {"lr": 0.5}}, lr=0.1))
    model.head(model.backbone(model.token)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()["param_groups"]
    assert [(group["name"], group["lr"], len(group["param_names"])) for group in saved] == [
        ("default", 0.1, 7),
        ("head.*", 0.5, 2),
    ]
    assert not torch.equal(model.token, torch.zeros(2))


def test_a_schedule_keeps_the_ratio_of_the_groups() -> None:
    groups = layerwise_decay(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), ["0", "1"], lr=0.4, decay=0.5)
    schedule = CosineSchedule(torch.optim.SGD(groups), total_steps=2)
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"backbon.*": {"lr": 1}}, r"the rule 'backbon.\*' matches no parameter of Net; did you mean 'backbone.\*'\?"),
        ({"*.bais": {"lr": 1}}, r"the rule '\*.bais' matches no parameter of Net; did you mean '\*.bias'\?"),
        (
            {"transformer": {"lr": 1}},
            "the rule 'transformer' matches no parameter of Net; it has 'token', 'backbone.0.weight', .* and 4 more",
        ),
        ({nn.Conv2d: {"lr": 1}}, "the rule 'Conv2d' matches no parameter of Net; it has 'token', "),
        ({"head.*": 1e-3}, r"the rule 'head.\*' needs a dict of settings, got 0.001"),
        ({"head.*": {"params": []}}, r"'head.\*' sets 'params', which the groups use themselves"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rules: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parameter_groups(Net(), rules)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="Linear has no trainable parameter; unfreeze some"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), {})


def test_the_rate_shrinks_with_each_block_towards_the_input() -> None:
    blocks = [["token"], "backbone.0", ["backbone.1", "backbone.2"], "head"]
    groups = layerwise_decay(Net(), blocks, lr=0.8, decay=0.5)
    assert described(groups, "name", "lr", "weight_decay") == [
        (["token"], "block 0", 0.1, None),
        (["backbone.0.weight", "backbone.0.bias"], "block 1", 0.2, None),
        (
            ["backbone.1.weight", "backbone.1.bias", "backbone.2.weight", "backbone.2.bias"],
            "block 2",
            0.4,
            None,
        ),
        (["head.weight", "head.bias"], "block 3", 0.8, None),
    ]


def test_biases_and_norms_get_no_weight_decay() -> None:
    groups = layerwise_decay(Net(), ["token", "backbone", "head"], lr=1.0, decay=0.5, weight_decay=0.1)
    assert described(groups, "name", "lr", "weight_decay") == [
        (["token"], "block 0", 0.25, 0.1),
        (["backbone.0.weight", "backbone.2.weight"], "block 1", 0.5, 0.1),
        (
            ["backbone.0.bias", "backbone.1.weight", "backbone.1.bias", "backbone.2.bias"],
            "block 1, no decay",
            0.5,
            0.0,
        ),
        (["head.weight"], "block 2", 1.0, 0.1),
        (["head.bias"], "block 2, no decay", 1.0, 0.0),
    ]


def test_the_biases_of_attention_and_recurrent_layers_are_biases_too() -> None:
    model = nn.ModuleList([nn.MultiheadAttention(2, 1), nn.LSTM(2, 2)])
    groups = layerwise_decay(model, ["0", "1"], lr=1.0, decay=0.5, weight_decay=0.1)
    decayed = [name for group in groups if group["weight_decay"] for name in group["param_names"]]
    assert decayed == ["0.in_proj_weight", "0.out_proj.weight", "1.weight_ih_l0", "1.weight_hh_l0"]


def test_what_is_spared_weight_decay_can_be_chosen() -> None:
    groups = layerwise_decay(
        Net(), ["token", "backbone", "head"], lr=1.0, decay=1.0, weight_decay=0.1, skip=["token", nn.LayerNorm]
    )
    assert described(groups, "weight_decay")[0] == (["token", "backbone.1.weight", "backbone.1.bias"], 0.0)


def test_the_longest_block_name_wins() -> None:
    groups = layerwise_decay(Net(), ["token", "backbone", ["backbone.2", "head"]], lr=1.0, decay=0.5)
    assert described(groups, "lr")[2] == (
        ["backbone.2.weight", "backbone.2.bias", "head.weight", "head.bias"],
        1.0,
    )


def test_a_block_is_named_whole_and_not_by_its_first_letters() -> None:
    model = nn.ModuleDict({str(index): nn.Linear(1, 1, bias=False) for index in range(11)})
    groups = layerwise_decay(model, [str(index) for index in range(11)], lr=1.0, decay=0.5)
    assert described(groups, "lr")[-1] == (["10.weight"], 1.0)
    assert described(groups, "lr")[1] == (["1.weight"], 0.5**9)


def test_a_function_can_give_the_depth() -> None:
    groups = layerwise_decay(Net(), lambda name: 1 if name.startswith("head") else 0, lr=1.0, decay=0.1)
    assert [(group["name"], group["lr"]) for group in groups] == [("block 0", 0.1), ("block 1", 1.0)]


@pytest.mark.parametrize(
    ("blocks", "arguments", "message"),
    [
        (["backbone", "head"], {}, "'token' of Net lie in none of the blocks; add them to the first block"),
        (["token", "bakbone", "head"], {}, "the block 'bakbone' matches no parameter of Net; did you mean 'backbone'"),
        (["token", "backbone", "head", "head"], {}, "'head' is in block 2 and in block 3"),
        ("head", {}, r"blocks must be a list of names, got 'head'; write \['head'\]"),
        (lambda name: -1, {}, "the depth of 'token' must be a whole number from 0 up, got -1"),
        (["token", "backbone", "head"], {"decay": 0.0}, "decay must be above 0 and at most 1, got 0.0"),
        (["token", "backbone", "head"], {"decay": 1.5}, "decay must be above 0 and at most 1, got 1.5"),
        (["token", "backbone", "head"], {"lr": -1.0}, "lr must be a number from 0 up, got -1.0"),
        (["token", "backbone", "head"], {"skip": ["*.gamma"]}, r"the rule '\*.gamma' matches no parameter of Net"),
    ],
)
def test_blocks_that_cannot_be_meant_are_refused(blocks: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layerwise_decay(Net(), blocks, **{"lr": 1.0, "decay": 0.5, **arguments})
