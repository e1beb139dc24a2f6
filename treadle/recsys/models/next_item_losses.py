"""Losses of the next item, over all items or over sampled ones, and where samples come from."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError, check_choice
from treadle.ops.linear_cross_entropy import linear_cross_entropy
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.sampling.counter_random import random_below, random_bits, row_counters
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, number, whole

LOSSES = ("CE", "sampled_softmax", "BCE", "gBCE")
DISTRIBUTIONS = ("uniform", "popularity", "in_batch")
CORRECTIONS = ("none", "negatives", "all")
PADDING = -1
"""What stands for padding where items are numbered from 0."""
NEVER = -1e30
"""The score of a sampled item that is the target itself: finite, so that its gradient is 0 and not nan."""
POPULARITY_STEPS = 2**40
"""The sum of the weights of popularity as whole numbers, which every device draws by alike."""

# Losses of scores


def sampled_softmax_loss(
    positive: Tensor,
    negatives: Tensor,
    *,
    log_counts: Tensor | float = 0.0,
    positive_log_counts: Tensor | float = 0.0,
) -> Tensor:
    """Return the cross-entropy of each target among itself and sampled items, `[...]`.

    With `log_counts`, the logarithm of how often each negative is expected among the samples, the sum over samples
    estimates the sum over all items (Bengio and Senécal, "Quick training of probabilistic neural nets by importance
    sampling", 2003).

    >>> sampled_softmax_loss(torch.zeros(1), torch.zeros(1, 3)).exp().tolist()  # one of four alike
    [4.0]

    Args:
        positive: The scores of the targets, `[...]`.
        negatives: The scores of samples, `[..., n]`.
        log_counts: What is subtracted from the scores of samples; broadcasts to their shape.
        positive_log_counts: What is subtracted from the scores of targets.
    """
    target = (positive - positive_log_counts).unsqueeze(-1)
    everything = torch.cat([target, negatives - log_counts], dim=-1)
    return everything.logsumexp(dim=-1) - target.squeeze(-1)


def binary_loss(positive: Tensor, negatives: Tensor, *, beta: float = 1.0) -> Tensor:
    """Return the mean binary cross-entropy of each target and its samples, `[...]`.

    With `beta`, the power of the probability of the target, this is gBCE (Petrov and Macdonald, "gSASRec: reducing
    overconfidence in sequential recommendation trained with negative sampling", 2023).

    Args:
        positive: The scores of the targets, `[...]`.
        negatives: The scores of samples, `[..., n]`.
        beta: The power.
    """
    told_apart = functional.logsigmoid(-negatives).sum(dim=-1)
    return -(beta * functional.logsigmoid(positive) + told_apart) / (1 + negatives.shape[-1])


def gbce_beta(n_negatives: int, others: int, t: float) -> float:
    """Return the power of the target's probability in gBCE.

    With t = 0 it is 1, and the loss is the binary one; with t = 1 it is the share of items that is sampled, and scores
    become calibrated probabilities.

    >>> gbce_beta(256, 1024, 0.0), gbce_beta(256, 1024, 1.0)
    (1.0, 0.25)

    Args:
        n_negatives: How many items are sampled for a target.
        others: How many items there are beside the target; a share above 1 counts as 1.
        t: How much is calibrated, from 0 to 1.
    """
    alpha = min(n_negatives / others, 1.0)
    return alpha * (t * (1 - 1 / alpha) + 1 / alpha)


# Scores of some items for each vector, without all their embeddings in memory at once


GATHERED_BYTES = {"cuda": 2**29, "cpu": 2**23}
"""How much room the gathered embeddings of one chunk take at most, by the kind of device."""


class _GatheredScores(torch.autograd.Function):
    """The inner products of vectors and rows of a table, some vectors at a time."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, table: Tensor, items: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, table, items)
        scores = vectors.new_empty(items.shape)
        with torch.autocast(vectors.device.type, enabled=False):
            for part in _parts(table, items):
                scores[part] = torch.bmm(table[items[part]], vectors[part].unsqueeze(2)).squeeze(2)
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        vectors, table, items = ctx.saved_tensors
        of_vectors, of_table = torch.empty_like(vectors), torch.zeros_like(table)
        with torch.autocast(vectors.device.type, enabled=False):
            for part in _parts(table, items):
                own, place = gradient[part], items[part]
                of_vectors[part] = torch.bmm(own.unsqueeze(1), table[place]).squeeze(1)
                added = own.unsqueeze(2) * vectors[part].unsqueeze(1)
                of_table.index_add_(0, place.reshape(-1), added.flatten(0, 1))
        return of_vectors, of_table, None


def _parts(table: Tensor, items: Tensor) -> list[slice]:
    room = GATHERED_BYTES.get(table.device.type, GATHERED_BYTES["cpu"])
    rows = max(1, room // max(1, items.shape[1] * table.shape[1] * table.element_size()))
    return [slice(start, start + rows) for start in range(0, len(items), rows)]


def gathered_scores(vectors: Tensor, table: Tensor, items: Tensor) -> Tensor:
    """Return the inner products of each vector with some rows of a table, `[rows, n]`.

    The embeddings of all samples of a batch would be its largest tensor; here they are gathered for some rows at a
    time, and again for their gradient.

    Args:
        vectors: The vectors, `[rows, size]`.
        table: The rows to choose from, `[items, size]`.
        items: Which of them, `[rows, n]`.
    """
    scores: Tensor = _GatheredScores.apply(vectors, table, items)  # type: ignore[no-untyped-call]
    return scores


# Where samples come from


# One operator to torch.compile, which must not look into it: random bits come of products that overflow, and in the C++
# that torch 2.13 writes for a CPU that is undefined. The loop over them did not end, and the process crashed.
@torch.library.custom_op("treadle::sampled_items", mutates_args=())
def _drawn_items(
    targets: Tensor, seed: Tensor, places: Tensor, line: Tensor | None, items: int, number: int, shared: bool
) -> Tensor:
    """Return items for targets, `[rows, length, n]`, or `[n]` for all of them.

    Args:
        targets: The targets, `[rows, length]`.
        seed: The seed of the batch.
        places: The place of each row.
        line: Where on a line the weight of each item ends; None where all are alike.
        items: How many items there are.
        number: How many are drawn.
        shared: Whether all targets have the same.
    """
    columns = torch.arange(number, device=targets.device)
    if shared:
        bits = random_bits(seed, columns)
    else:
        steps = torch.arange(targets.shape[1], device=targets.device)
        cells = places.unsqueeze(1) * targets.shape[1] + steps
        bits = random_bits(seed, row_counters(cells.unsqueeze(2), columns))
    if line is not None:
        return torch.searchsorted(line, random_below(bits, line[-1]), right=True)
    if shared:
        return 1 + random_below(bits, torch.full_like(bits, items))
    # Among the others: those from the target on are one further. Where there is no target nothing counts.
    drawn = 1 + random_below(bits, torch.full_like(bits, items - 1))
    return drawn + (drawn >= targets.unsqueeze(2))


@_drawn_items.register_fake
def _(
    targets: Tensor, seed: Tensor, places: Tensor, line: Tensor | None, items: int, number: int, shared: bool
) -> Tensor:
    return targets.new_empty((number,) if shared else (*targets.shape, number))


class SampledItems(nn.Module):
    """Draws items for the targets of a batch, where the batch is, and says how often each is expected.

    What is drawn depends on the seed of a batch and the place of a target alone. The host is never asked.

    Args:
        distribution: "uniform" draws all items alike, "popularity" in proportion to a power of how often they are
            used in training; "in_batch" takes the targets of the batch.
        counts: How often each item is used in training; 0 for padding.
        number: How many items are drawn.
        alpha: The power of "popularity".
        shared: Whether all targets of a batch have the same samples.

    Raises:
        ConfigError: There are no two items.
    """

    def __init__(self, distribution: str, counts: Tensor, number: int, *, alpha: float, shared: bool) -> None:
        super().__init__()
        self.distribution, self.number = distribution, number
        self.shared = shared or distribution == "in_batch"
        self.items = len(counts) - 1
        if self.items < 2:
            raise ConfigError("there is one item only, so that there is nothing to tell a target from")
        weights = counts.double().clamp(min=0).pow(1.0 if distribution == "in_batch" else alpha)
        weights[counts == 0] = 0.0
        shares = weights / weights.sum().clamp(min=1e-300)
        steps = (shares * POPULARITY_STEPS).round().long()
        steps = torch.where(counts > 0, steps.clamp(min=1), 0)
        self.held = Constants(
            line=steps.cumsum(0), log_shares=(steps.double() / steps.sum().clamp(min=1)).clamp(min=1e-12).log()
        )

    def draw(self, targets: Tensor, seed: Tensor, places: Tensor) -> Tensor:
        """Return items `[rows, length, n]`, or `[n]` that all targets share; those of "in_batch" may be padding.

        Args:
            targets: The targets, `[rows, length]`, 0 for none.
            seed: The seed of the batch, a tensor of no dimension.
            places: The place of each row in its epoch, `[rows]`.
        """
        if self.distribution == "in_batch":
            return targets.reshape(-1)
        line = self.held.line if self.distribution == "popularity" else None
        drawn: Tensor = _drawn_items(targets, seed, places, line, self.items, self.number, self.shared)
        return drawn

    def log_counts(self, items: Tensor, targets: Tensor) -> Tensor:
        """Return the logarithm of how often each item is expected among the samples of a target it is not.

        Args:
            items: The items, of any shape.
            targets: The targets of the batch, 0 for none.
        """
        if self.distribution == "uniform":
            others = self.items if self.shared else self.items - 1
            return torch.full(items.shape, math.log(self.number / others), device=items.device)
        shares: Tensor = self.held.log_shares[items]
        if self.distribution == "popularity":
            return shares + math.log(self.number)
        return shares + (targets != 0).sum().clamp(min=1).double().log()


# What a model is trained with


class NextItemLoss(nn.Module):
    """The loss that the settings name: `loss_type` and what belongs to it.

    - `CE`: over all items, in chunks that fit into memory;
    - `sampled_softmax`: over the target and sampled items;
    - `BCE`, `gBCE`: the target and sampled items told apart, each for itself.

    Samples: `n_negatives`, `negative_distribution` with `popularity_alpha`, and `negatives_per` ("position" draws for
    each target, "batch" once). `logq_correction` is "negatives", where the sum over samples is to estimate that over
    all items, "all" where the target is corrected as if it was sampled, too, or "none". `gbce_t` is t of gBCE.

    Args:
        config: The settings.
        dataset: The data for training.

    Raises:
        ConfigError: The settings do not go together.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__()
        self.kind = choice(config, "loss_type", LOSSES)
        self.number = whole(config, "n_negatives")
        self.correction = choice(config, "logq_correction", CORRECTIONS)
        distribution = choice(config, "negative_distribution", DISTRIBUTIONS)
        per = config["negatives_per"]
        check_choice("negatives_per", per, ("position", "batch"), whose=f" for {config.model}")
        self._check(config, distribution)
        counts = torch.bincount(dataset.user_item_pairs()[1].cpu(), minlength=dataset.item_num)
        counts[0] = 0
        self.samples = SampledItems(
            distribution, counts, self.number, alpha=number(config, "popularity_alpha"), shared=per == "batch"
        )
        t = number(config, "gbce_t")
        if t > 1:
            raise ConfigError(f"gbce_t={t:g} must be a number from 0 to 1")
        self.beta = gbce_beta(self.number, self.samples.items - 1, t) if self.kind == "gBCE" else 1.0

    def _check(self, config: Config, distribution: str) -> None:
        if self.correction != "none" and self.kind != "sampled_softmax":
            raise ConfigError(
                f"logq_correction={self.correction!r} is for loss_type='sampled_softmax', not for {self.kind!r}; leave "
                "it out"
            )
        if self.kind == "gBCE" and distribution != "uniform":
            raise ConfigError(
                f"negative_distribution={distribution!r}: gBCE is calibrated for samples that are all equally likely; "
                "set it to 'uniform', or loss_type to 'BCE'"
            )
        if self.correction == "all" and distribution == "uniform":
            raise ConfigError(
                "logq_correction='all' changes nothing where all items are equally likely; set it to 'negatives' or "
                "'none'"
            )

    def forward(self, output: Tensor, table: Tensor, targets: Tensor, seed: Tensor, places: Tensor) -> Tensor:
        """Return the mean loss over the targets; 0 if there is none.

        Args:
            output: The vectors, `[rows, length, size]`.
            table: The vector of each item, padding included, `[n_items, size]`.
            targets: The next items, 0 for none, `[rows, length]`.
            seed: The seed of the batch's samples, of no dimension.
            places: The place of each row in its epoch, `[rows]`.
        """
        inside = targets != 0
        counted = inside.sum().clamp(min=1)
        if self.kind == "CE":
            # Padding is no class, so that its embedding stays zero.
            return linear_cross_entropy(output, table[1:], targets - 1, ignore_index=PADDING, reduction="sum") / counted
        output, table = at_least_float32(output), at_least_float32(table)
        positive = (output * functional.embedding(targets, table)).sum(dim=-1)
        negatives, items = self._scored(output, table, targets, seed, places)
        if self.kind == "sampled_softmax":
            losses = self._softmax(positive, negatives, items, targets)
        else:
            losses = binary_loss(positive, negatives, beta=self.beta)
        return losses.masked_fill(~inside, 0.0).sum() / counted

    def _scored(
        self, output: Tensor, table: Tensor, targets: Tensor, seed: Tensor, places: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the scores of samples, `[rows, length, n]`, and which items they are."""
        items = self.samples.draw(targets, seed, places)
        if self.samples.shared:
            scores = torch.matmul(output, functional.embedding(items, table).T)
        else:
            flat = gathered_scores(output.flatten(0, 1), table, items.flatten(0, 1))
            scores = flat.view(items.shape)
        # What is the target itself, or no item, is no sample.
        return at_least_float32(scores).masked_fill((items == targets.unsqueeze(2)) | (items == 0), NEVER), items

    def _softmax(self, positive: Tensor, negatives: Tensor, items: Tensor, targets: Tensor) -> Tensor:
        if self.correction == "none":
            return sampled_softmax_loss(positive, negatives)
        expected = self.samples.log_counts(items, targets).to(negatives.dtype)
        own: Tensor | float = 0.0
        if self.correction == "all":
            own = self.samples.log_counts(targets, targets).to(positive.dtype)
        return sampled_softmax_loss(positive, negatives, log_counts=expected, positive_log_counts=own)
