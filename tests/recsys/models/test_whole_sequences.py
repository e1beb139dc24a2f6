"""Models that are trained on whole sequences: their formulas, and that rows may be shared."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.guards.no_sync import no_sync
from tests.recsys.models.building import assert_close_in_bf16, train_steps
from tests.recsys.models.tiny_shop import LENGTH, WHOLE, Built, build, fill
from treadle.errors import ConfigError
from treadle.recsys import Interaction, get_model
from treadle.recsys.models.layers.causal import GatedBlock, PointwiseBlock, PreNormBlock, alone_in_rows, sharing_rows


def made(folder: Path, name: str, **given: Any) -> Built:
    """Return a model in float64 whose weights all show, without dropout."""
    built = build(folder, name, loss_type="CE", **given)
    built.model.double()
    fill(built.model)
    built.model.eval()
    return built


def loss_of_epoch(built: Built) -> Tensor:
    """Return the sum of the losses of all targets of an epoch."""
    batches = [built.batch(index) for index in range(len(built.train))]
    return sum((built.loss(one) * built.model.loss_weight(one) for one in batches), torch.tensor(0.0))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("from_end", [False, True])
def test_sequences_that_share_rows_have_the_loss_of_those_that_do_not(
    tmp_path: Path, name: str, from_end: bool
) -> None:
    packed, padded = (
        made(tmp_path, name, sequence_layout=layout, positions_from_end=from_end) for layout in ("packed", "padded")
    )
    gradients = []
    for built in (packed, padded):
        loss = loss_of_epoch(built)
        gradients.append((loss, *torch.autograd.grad(loss, list(built.model.parameters()))))
    assert len(packed.train) < len(padded.train)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", WHOLE)
def test_an_item_sees_what_came_before_it_and_nothing_else(tmp_path: Path, name: str) -> None:
    model = made(tmp_path, name, positions_from_end=False).model
    history = torch.randint(1, 20, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    times = torch.tensor([[1.0, 5.0, 5.0, 90.0, 91.0, 400.0, 401.0, 402.0]])
    whole = model.position_outputs(Interaction({"item_id_list": history, "timestamp_list": times}))
    for length in (1, 3, LENGTH):
        cut = torch.arange(LENGTH) < length
        row = Interaction(
            {"item_id_list": history * cut, "timestamp_list": times * cut, "item_length": torch.tensor([length])}
        )
        torch.testing.assert_close(model.sequence_output(row), whole[:, length - 1])
    changed = history.clone()
    changed[0, 0] += 1
    other = model.position_outputs(Interaction({"item_id_list": changed, "timestamp_list": times}))
    assert not torch.isclose(whole, other).all(dim=-1).any()


@pytest.mark.parametrize("name", WHOLE)
def test_scores_of_pairs_are_those_of_all_items_whoever_shares_the_batch(tmp_path: Path, name: str) -> None:
    built = made(tmp_path, name)
    short, long = built.row(3, 5, target=7), built.row(1, 2, 3, 4, 5, 6, target=2)
    both = Interaction({key: torch.cat([short[key], long[key]]) for key in short.columns})
    both["timestamp_list"] = torch.arange(2 * LENGTH).view(2, LENGTH).double()
    scores = built.model.full_sort_predict(both)
    torch.testing.assert_close(built.model.predict(both), scores[[0, 1], [7, 2]])
    torch.testing.assert_close(built.model.full_sort_predict(both[:1]), scores[:1])
    torch.testing.assert_close(built.model.full_sort_predict(both[1:]), scores[1:])


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_learns_and_does_so_in_bf16(tmp_path: Path, name: str) -> None:
    built = build(tmp_path, name)
    assert_close_in_bf16(built)
    losses = train_steps(built, 30)
    assert losses[-1] < 0.8 * losses[0]
    assert not built.model.item_embedding.weight[0].any()


LOSSES: dict[str, dict[str, Any]] = {
    "gSASRec": {"loss_type": "gBCE"},
    "eSASRec": {"loss_type": "sampled_softmax", "negative_distribution": "in_batch", "logq_correction": "all"},
    "HSTU": {"loss_type": "sampled_softmax", "negative_distribution": "popularity", "negatives_per": "batch"},
}


@pytest.mark.parametrize("name", WHOLE)
def test_making_a_batch_and_its_loss_never_read_the_device(tmp_path: Path, name: str) -> None:
    built = build(tmp_path, name, **LOSSES[name])
    built.batch(1)
    with no_sync():
        loss = built.loss(built.batch())
        torch.autograd.grad(loss, list(built.model.parameters()), allow_unused=True)
        # A CPU leaves columns of padding out, which it looks for; what is behind that is as everywhere.
        with torch.no_grad():
            built.model.eval()._last_output(built.row(3, 5, timestamp_list=[[1.0] * LENGTH]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", WHOLE)
def test_a_gpu_has_the_loss_and_the_scores_of_the_cpu_without_waiting(tmp_path: Path, name: str) -> None:
    built = build(tmp_path, name, hidden_dropout_prob=0.0, attn_dropout_prob=0.0, **LOSSES[name])
    row = built.row(3, 5, timestamp_list=[[1.0] * LENGTH])
    loss, scores = built.loss(built.batch()), built.model.full_sort_predict(row)
    built.model.to("cuda")
    loader, row = built.train.to("cuda"), row.to("cuda")
    loader.epoch_order(0)
    with no_sync("cuda"):
        found, ranked = built.loss(loader.batch_at(0, 0)), built.model.full_sort_predict(row)
    torch.testing.assert_close(found.cpu(), loss, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ranked.cpu(), scores, rtol=1e-3, atol=1e-3)


# Blocks, against formulas written out place by place


def random_block(block: nn.Module) -> nn.Module:
    """Return a block in float64 with weights that all show, without dropout."""
    block.double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for one in block.parameters():
            one.copy_(0.4 * torch.randn(one.shape, generator=generator))
    return block


def attended(block: Any, read: Tensor, at: int) -> Tensor:
    """Return what the place `at` of a sequence `[length, size]` sees through a `CausalAttention`."""
    size = read.shape[1] // block.n_heads
    query, key, value = block.query_key_value(read).split(read.shape[1], dim=-1)
    heads = []
    for head in range(block.n_heads):
        own = slice(head * size, (head + 1) * size)
        weights = torch.stack([(query[at, own] * key[other, own]).sum() / size**0.5 for other in range(at + 1)]).exp()
        heads.append((weights.unsqueeze(1) * value[: at + 1, own]).sum(0) / weights.sum())
    found: Tensor = block.dense(torch.cat(heads))
    return found


def hidden_states() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def places() -> Any:
    return alone_in_rows(torch.ones(1, 5, dtype=torch.long))


def test_a_block_that_normalises_first_is_its_formula() -> None:
    block: Any = random_block(PreNormBlock(6, 2, 7, 0.5, 0.5, "relu", 1e-6))
    hidden = hidden_states()
    found = block(hidden.unsqueeze(0), places())[0]
    for at in range(5):
        own = hidden[at] + attended(block.attention, block.attention_norm(hidden), at)
        own = own + block.dense_2(block.dense_1(block.network_norm(own)).clamp(min=0))
        torch.testing.assert_close(found[at], own)


def test_a_gated_block_is_its_formula() -> None:
    block: Any = random_block(GatedBlock(6, 2, 7, 0.5, 0.5, 1e-6))
    hidden = hidden_states()
    found = block(hidden.unsqueeze(0), places())[0]
    for at in range(5):
        seen = attended(block.attention, block.attention_norm(hidden), at)
        own = hidden[at] + seen / (1 + torch.exp(-block.attention_gate(hidden[at])))
        gate, value = block.network_in(block.network_norm(own)).split(7)
        inner = block.network_out(gate / (1 + torch.exp(-gate)) * value)
        torch.testing.assert_close(found[at], own + inner / (1 + torch.exp(-block.network_gate(own))))


def test_a_pointwise_block_is_its_formula() -> None:
    block: Any = random_block(PointwiseBlock(6, 2, 3, 4, 0.5, 0.5, 9, 3, 1e-6))
    hidden, times = hidden_states(), torch.tensor([0.0, 1.0, 1.0, 3.0, 900.0], dtype=torch.float64)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    found = block(hidden.unsqueeze(0), mask, times.unsqueeze(0))[0]
    projected = block.projection(block.input_norm(hidden))
    gate, value, query, key = (projected / (1 + torch.exp(-projected))).split([8, 8, 6, 6], dim=-1)
    for at in range(5):
        seen = torch.zeros(8, dtype=torch.float64)
        for other in range(at + 1):
            bucket = min(int(torch.log((times[at] - times[other]).clamp(min=1)) / 0.301), 3)
            bias = block.bias.by_distance[at - other] + block.bias.by_time[bucket]
            for head in range(2):
                score = query[at, 3 * head : 3 * head + 3] @ key[other, 3 * head : 3 * head + 3] + bias
                own = slice(4 * head, 4 * head + 4)
                seen[own] += score / (1 + torch.exp(-score)) / 9 * value[other, own]
        torch.testing.assert_close(found[at], hidden[at] + block.dense(gate[at] * block.output_norm(seen)))


def test_places_of_shared_rows_are_those_of_rows_of_their_own() -> None:
    shared = sharing_rows(torch.tensor([[0, 1, 2, 0, 1, 0, 0]]), torch.tensor([[3, 3, 3, 2, 2, 0, 0]]))
    assert shared.from_end.tolist() == [[2, 1, 0, 1, 0, 0, 0]]
    assert shared.mask is not None
    assert shared.mask[0, 0].int().sum(1).tolist() == [1, 2, 3, 1, 2, 1, 1]


def test_hstu_wants_times_unless_it_goes_by_places_alone(tmp_path: Path) -> None:
    built = build(tmp_path, "HSTU")
    del built.train.dataset.inter_feat.interaction["timestamp"]
    with pytest.raises(
        ConfigError, match="time_buckets=128: the interactions of 'shop' have no times; load them, or set"
    ):
        get_model("HSTU")(built.config, built.train.dataset)
    built.config["time_buckets"] = 0
    assert get_model("HSTU")(built.config, built.train.dataset).calculate_loss(built.batch()).isfinite()
