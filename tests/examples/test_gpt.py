"""The GPT of the examples: its size, its start, what each place sees, and the parts that can be changed."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.language_model.gpt import GPT, PlainHead
from treadle.engine.hooks.throughput import FlopsCounter
from treadle.errors import ConfigError


def small(**settings: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(**{"vocabulary_size": 11, "context": 8, "layers": 2, "heads": 2, "width": 16, **settings})


def tokens(length: int = 8, seed: int = 1) -> Tensor:
    return torch.randint(11, (3, length), generator=torch.Generator().manual_seed(seed))


def test_the_published_setting_has_the_published_size() -> None:
    with torch.device("meta"):
        model = GPT(vocabulary_size=65, context=256, layers=6, heads=6, width=384, bias=False)
    # 12 w^2 in each of 6 blocks, 13 norms, 65 characters; nanoGPT says 10.65M, and does not count the 256 positions.
    matrices, norms, characters, positions = 6 * 12 * 384**2, 13 * 384, 65 * 384, 256 * 384
    assert model.count_parameters(positions=False) == matrices + norms + characters == 10_646_784
    assert model.count_parameters() == 10_646_784 + positions


def test_gpt2_has_its_124_million_parameters() -> None:
    with torch.device("meta"):
        model = GPT(vocabulary_size=50257)
    assert model.count_parameters() == 124_439_808


def test_the_formula_of_operations_is_what_is_counted() -> None:
    model = GPT(vocabulary_size=65, context=64, layers=2, heads=2, width=128, bias=False)
    batch = torch.zeros(2, 64, dtype=torch.long)
    counter = FlopsCounter()
    counter.count(model, (), {"tokens": batch, "targets": batch})
    norms = 6 * 5 * 128  # parameters too, but no matrices
    assert counter.flops_per_sample == 64 * (model.flops_per_token() - norms)
    assert counter.tokens_per_sample == 64


@torch.no_grad()
def test_a_place_sees_what_came_before_it_and_nothing_after() -> None:
    model, text = small().eval(), tokens()
    changed = text.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    scores, others = model(text), model(changed)
    assert torch.equal(scores[:, :5], others[:, :5])
    assert (scores[:, 5:] != others[:, 5:]).flatten(1).any(dim=1).all()


@torch.no_grad()
def test_attention_is_that_of_a_calculation_by_hand() -> None:
    attention = small().trunk.blocks[0].attention.eval()
    hidden = torch.randn(1, 4, 16)
    parts = attention.inputs(hidden)[0].view(4, 2, 3, 8)
    rows = []
    for head in range(2):
        query, key, value = parts[:, head].unbind(1)
        weights = (query @ key.T / math.sqrt(8)).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf).softmax(dim=1)
        rows.append(weights @ value)
    expected = attention.residual(torch.cat(rows, dim=1))
    torch.testing.assert_close(attention(hidden)[0], expected)


def test_what_is_added_over_the_blocks_begins_smaller() -> None:
    model = small(layers=8, width=128, vocabulary_size=64)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            expected = 0.02 / math.sqrt(16) if "residual" in name else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.1)


def test_a_new_model_knows_nothing() -> None:
    loss = small(vocabulary_size=65)(tokens(), tokens(seed=2))["loss"]
    assert loss.item() == pytest.approx(math.log(65), abs=0.1)


def test_targets_give_the_cross_entropy_of_the_scores() -> None:
    model, text, targets = small(), tokens(), tokens(seed=2)
    scores = model(text)
    assert scores.shape == (3, 8, 11)
    expected = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
    assert torch.equal(model(text, targets)["loss"], expected)


def test_tied_weights_are_one_parameter_and_others_two() -> None:
    tied, apart = small(), small(tie_weights=False)
    assert tied.head.weight is tied.trunk.tokens.weight
    assert apart.count_parameters() - tied.count_parameters() == 11 * 16


def test_another_head_gets_hidden_states_and_targets() -> None:
    class Summing(PlainHead):
        def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
            assert hidden.shape == (3, 8, 16)
            return super().forward(hidden, targets) * 2

    model, plain = small(head=Summing), small()
    loss, half = model(tokens(), tokens(seed=2))["loss"], plain(tokens(), tokens(seed=2))["loss"]
    assert torch.equal(loss, 2 * half)


def test_without_bias_no_layer_has_one() -> None:
    assert not [name for name, _ in small(bias=False).named_parameters() if "bias" in name]


def test_dropout_acts_in_training_only() -> None:
    model, text = small(dropout=0.5), tokens()
    assert not torch.equal(model(text), model(text))
    model.eval()
    assert torch.equal(model(text), model(text))


def formats(model: nn.Module, *, autocast: bool) -> set[torch.dtype]:
    found: set[torch.dtype] = set()
    for block in model.trunk.blocks:
        block.register_forward_hook(lambda _, __, output: found.add(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model(tokens(), tokens(seed=2))["loss"]
    loss.backward()
    assert loss.dtype == torch.float32
    return found


def test_between_blocks_the_format_is_the_chosen_one_under_autocast() -> None:
    assert formats(small(), autocast=True) == {torch.float32}
    assert formats(small(residual_dtype="bfloat16"), autocast=True) == {torch.bfloat16}
    assert formats(small(residual_dtype="bfloat16"), autocast=False) == {torch.float32}


def test_the_tanh_curve_is_the_other_gelu() -> None:
    exact, tanh = small(), small(gelu="tanh")
    assert tanh.trunk.blocks[0].feed_forward.activation.approximate == "tanh"
    torch.testing.assert_close(exact(tokens()), tanh(tokens()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "GPT: width=16 is no multiple of heads=3"),
        ({"gelu": "fast"}, "GPT: gelu='fast' is unknown; use 'none' or 'tanh'"),
        ({"residual_dtype": "bf16"}, "GPT: residual_dtype='bf16' is no floating-point format of torch"),
        ({"residual_dtype": "int8"}, "GPT: residual_dtype='int8' is no floating-point format of torch"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        small(**settings)


def test_a_text_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="a sequence of 9 tokens is longer than context=8"):
        small()(tokens(9))
