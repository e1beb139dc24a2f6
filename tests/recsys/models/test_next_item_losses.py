"""Losses of the next item against formulas that are written out item by item, in float64, with their gradients."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recsys.models.tiny_shop import ITEMS, build
from treadle.errors import ConfigError
from treadle.recsys.models import next_item_losses
from treadle.recsys.models.next_item_losses import NextItemLoss, SampledItems, gathered_scores, gbce_beta

CASES: dict[str, dict[str, Any]] = {
    "CE": {"loss_type": "CE"},
    "softmax": {"loss_type": "sampled_softmax"},
    "softmax, a sample for all": {"loss_type": "sampled_softmax", "negatives_per": "batch"},
    "softmax, corrected": {"loss_type": "sampled_softmax", "logq_correction": "negatives"},
    "softmax of popular items": {
        "loss_type": "sampled_softmax",
        "negative_distribution": "popularity",
        "popularity_alpha": 0.5,
        "negatives_per": "batch",
        "logq_correction": "negatives",
    },
    "softmax of the batch": {
        "loss_type": "sampled_softmax",
        "negative_distribution": "in_batch",
        "logq_correction": "all",
    },
    "BCE": {"loss_type": "BCE"},
    "BCE of popular items": {"loss_type": "BCE", "negative_distribution": "popularity"},
    "gBCE": {"loss_type": "gBCE", "gbce_t": 0.6},
    "gBCE, a sample for all": {"loss_type": "gBCE", "negatives_per": "batch"},
}
SEED, PLACES = torch.tensor(77), torch.tensor([4, 9])


def made(folder: Path, **given: Any) -> NextItemLoss:
    """Return the loss that settings name, with samples of the shop's items."""
    loss: NextItemLoss = build(folder, "gSASRec", n_negatives=5, **given).model.loss.double()
    return loss


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors, a table of items, and targets of which some are none."""
    generator = torch.Generator().manual_seed(3)
    output = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    table = torch.randn(ITEMS + 1, 6, generator=generator, dtype=torch.float64)
    return output, table, torch.tensor([[3, 7, 3, 0], [1, ITEMS, 0, 0]])


def shares_of(loss: NextItemLoss, counts: Tensor) -> Tensor:
    """Return how likely each item is drawn by popularity."""
    weights = counts.double() ** (0.5 if loss.correction == "negatives" else 1.0)
    return weights / weights.sum()


def written_out(loss: NextItemLoss, counts: Tensor, t: float, output: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss, one target after the other, with probabilities and no logarithm of a sum."""
    drawn = loss.samples.draw(targets, SEED, PLACES)
    number = int((targets != 0).sum())
    losses = []
    for row, column in (targets != 0).nonzero().tolist():
        target = int(targets[row, column])
        scores = table @ output[row, column]
        if loss.kind == "CE":
            losses.append(-torch.log(scores.exp()[target] / scores.exp()[1:].sum()))
            continue
        own = (drawn if drawn.dim() == 1 else drawn[row, column]).tolist()
        kept = [item for item in own if item not in (0, target)]
        if loss.kind == "sampled_softmax":
            expected, own_expected = torch.ones(ITEMS + 1, dtype=torch.float64), 1.0
            if loss.correction != "none":
                expected = {
                    "uniform": torch.full((ITEMS + 1,), 5 / (ITEMS - 1), dtype=torch.float64),
                    "popularity": 5 * shares_of(loss, counts),
                    "in_batch": number * shares_of(loss, counts),
                }[loss.samples.distribution]
            if loss.correction == "all":
                own_expected = float(expected[target])
            chosen = scores[target].exp() / own_expected
            losses.append(-torch.log(chosen / (chosen + sum(scores[item].exp() / expected[item] for item in kept))))
        else:
            share = 5 / (ITEMS - 1)
            beta = share * (t * (1 - 1 / share) + 1 / share) if loss.kind == "gBCE" else 1.0
            told = torch.sigmoid(scores[target]).pow(beta).log() + sum(
                torch.log(1 - torch.sigmoid(scores[item])) for item in kept
            )
            losses.append(-told / (1 + len(own)))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("case", CASES)
def test_a_loss_and_its_gradients_are_those_of_its_formula(tmp_path: Path, case: str) -> None:
    built = build(tmp_path, "gSASRec", n_negatives=5, **CASES[case])
    loss: NextItemLoss = built.model.loss.double()
    counts = torch.bincount(built.train.dataset.user_item_pairs()[1], minlength=ITEMS + 1)
    output, table, targets = inputs()
    leaves = [one.clone().requires_grad_() for one in (output, table)]
    found = loss(*leaves, targets, SEED, PLACES)
    own = [one.clone().requires_grad_() for one in (output, table)]
    expected = written_out(loss, counts, CASES[case].get("gbce_t", 0.75), own[0], own[1], targets)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    for one, other in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, own, allow_unused=True), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_a_batch_without_targets_has_no_loss_and_no_gradient(tmp_path: Path) -> None:
    output, table, targets = inputs()
    output.requires_grad_()
    loss = made(tmp_path)(output, table, torch.zeros_like(targets), SEED, PLACES)
    assert loss.item() == 0.0
    assert not torch.autograd.grad(loss, output)[0].any()


def test_gathered_scores_are_inner_products_however_few_rows_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(next_item_losses.GATHERED_BYTES, "cpu", 2 * 3 * 4 * 8)
    generator = torch.Generator().manual_seed(0)
    vectors, table = torch.randn(5, 4, generator=generator).double(), torch.randn(7, 4, generator=generator).double()
    items = torch.randint(0, 7, (5, 3), generator=generator)
    leaves = [one.clone().requires_grad_() for one in (vectors, table)]
    assert torch.autograd.gradcheck(lambda one, other: gathered_scores(one, other, items), leaves)
    torch.testing.assert_close(gathered_scores(vectors, table, items), (table[items] * vectors.unsqueeze(1)).sum(-1))


COUNTS = torch.tensor([0, 1, 2, 0, 5, 12])


@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
@pytest.mark.parametrize("shared", [False, True])
def test_items_are_drawn_as_often_as_expected(distribution: str, shared: bool) -> None:
    samples = SampledItems(distribution, COUNTS, 40_000, alpha=0.5, shared=shared)
    drawn = samples.draw(torch.tensor([[4]]), SEED, torch.tensor([2])).reshape(-1)
    found = torch.bincount(drawn, minlength=6).double()
    expected = samples.log_counts(torch.arange(6), torch.tensor([[4]])).exp().double()
    if distribution == "uniform" and not shared:
        assert found[4] == 0
        found[4] = expected[4]
    assert found[0] == 0
    drawable = COUNTS > 0 if distribution == "popularity" else torch.arange(6) > 0
    torch.testing.assert_close(found[drawable], expected[drawable], rtol=0.05, atol=0)
    assert not found[~drawable].any()


def test_corrected_samples_estimate_the_sum_over_all_other_items() -> None:
    scores = torch.tensor([0.0, 1.0, -1.0, 0.0, 2.0, 0.5], dtype=torch.float64)
    target = torch.tensor([[1]])
    samples = SampledItems("popularity", torch.tensor([0, 2, 3, 1, 6, 13]), 50_000, alpha=1.0, shared=True)
    drawn = samples.draw(target, SEED, torch.tensor([0]))
    others = drawn[drawn != 1]
    estimate = (scores[others] - samples.log_counts(others, target)).exp().sum()
    assert estimate.item() == pytest.approx(scores[2:].exp().sum().item(), rel=0.02)


def test_samples_depend_on_the_place_of_a_row_alone() -> None:
    samples = SampledItems("uniform", torch.ones(50), 8, alpha=1.0, shared=False)
    targets = torch.arange(1, 13).view(4, 3)
    whole = samples.draw(targets, SEED, torch.tensor([5, 6, 7, 8]))
    assert torch.equal(whole[2:], samples.draw(targets[2:], SEED, torch.tensor([7, 8])))
    assert not torch.equal(whole, samples.draw(targets, SEED + 1, torch.tensor([5, 6, 7, 8])))
    assert not (whole == targets.unsqueeze(2)).any()


@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_compiler_sees_one_operator_where_items_are_drawn(distribution: str, shared: bool) -> None:
    samples = SampledItems(distribution, COUNTS, 8, alpha=1.0, shared=shared)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    asked = torch.tensor([[1, 4]]), SEED, torch.tensor([3])
    torch._dynamo.reset()
    drawn = torch.compile(samples.draw, backend=backend)(*asked)
    assert len(seen) == 1, seen
    assert "treadle.sampled_items" in seen[0]
    assert torch.equal(drawn, samples.draw(*asked))


def test_more_samples_than_items_make_gbce_the_binary_loss() -> None:
    assert gbce_beta(256, 10, 0.75) == 1.0
    assert gbce_beta(256, 3415, 0.75) == pytest.approx(0.75 * 256 / 3415 + 0.25)
    assert math.isclose(gbce_beta(1, 100, 1.0), 0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss_type": "BPR"}, "loss_type='BPR' does not exist for gSASRec"),
        ({"negatives_per": "row"}, "negatives_per='row' does not exist for gSASRec"),
        ({"logq_correction": "negatives"}, "logq_correction='negatives' is for loss_type='sampled_softmax', not for"),
        ({"negative_distribution": "popularity"}, "gBCE is calibrated for samples that are all equally likely; set it"),
        (
            {"loss_type": "sampled_softmax", "logq_correction": "all"},
            "logq_correction='all' changes nothing where all items are equally likely; set it to 'negatives'",
        ),
        ({"gbce_t": 1.5}, "gbce_t=1.5 must be a number from 0 to 1"),
        ({"temperature": 0}, "temperature=0: cosines are divided by it; give a number above 0, or none for products"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(tmp_path, "gSASRec", **given)


def test_a_single_item_cannot_be_told_from_others() -> None:
    with pytest.raises(ConfigError, match="there is one item only, so that there is nothing to tell a target from"):
        SampledItems("uniform", torch.tensor([0, 5]), 4, alpha=1.0, shared=False)
