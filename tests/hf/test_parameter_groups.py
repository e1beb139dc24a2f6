"""Weight decay goes to the parameters that transformers' Trainer gives it to."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hf.models import build
from treadle.optim.param_groups import transformers_parameter_groups


def wrapped() -> nn.Module:
    """A model whose norms are known by their class, by their names, or not at all."""

    class Scale(nn.LayerNorm):
        def __init__(self) -> None:
            super().__init__(4)
            self.inner = nn.Linear(4, 4)

    model = nn.Module()
    model.bn, model.scale, model.input_norm = nn.BatchNorm1d(4), Scale(), nn.RMSNorm(4)
    model.normal, model.blocks = nn.Linear(4, 4), nn.ModuleList([nn.MultiheadAttention(4, 2)])
    model.bias_table, model.frozen = nn.Parameter(torch.ones(4)), nn.Linear(4, 4).requires_grad_(False)
    model.head = nn.Linear(4, 4)
    model.head.weight = model.normal.weight
    return model


@pytest.mark.parametrize("kind", ["llama", "gemma", "gpt2", "bert", "t5", "vit", "of one's own"])
def test_groups_are_those_of_transformers_own_trainer(kind: str, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    model = wrapped() if kind == "of one's own" else build(kind)
    arguments = TrainingArguments(str(tmp_path), weight_decay=0.1, report_to="none", use_cpu=True)
    theirs = Trainer(model, arguments).create_optimizer()
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def decays(groups: list[Any]) -> dict[str, float]:
        return {names[id(one)]: group["weight_decay"] for group in groups for one in group["params"]}

    ours = transformers_parameter_groups(model, weight_decay=0.1)
    assert decays(ours) == decays(theirs.param_groups)
    assert set(decays(ours).values()) == {0.0, 0.1}
    assert [len(group["params"]) == len(group["param_names"]) for group in ours] == [True, True]
