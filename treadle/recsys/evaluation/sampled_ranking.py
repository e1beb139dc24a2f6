"""Ranking of each user's positives among negatives that were drawn beforehand."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.parallel import Processes
from treadle.recsys.data.sampling.negative_samplers import PairScorer
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.evaluation.breakdown import Groups, RankedBlock
from treadle.recsys.evaluation.full_ranking import (
    AMONG,
    RankingFacts,
    RowItems,
    check_groups,
    check_plan,
    fingerprints,
    first_items,
    users_to_rank,
)
from treadle.recsys.evaluation.inputs import NO_ITEM, OrderedPairs, Ranking
from treadle.recsys.evaluation.labelled import LabelledEvaluation
from treadle.recsys.evaluation.plan import MetricPlan
from treadle.recsys.evaluation.ranking_state import RankingState
from treadle.recsys.evaluation.result import EvaluationResult
from treadle.recsys.evaluation.scoring import Scorer, pairs_in_order, true_fp32, users_at_once, writable_scores
from treadle.runs.preemption import after_evaluated_batch

PAIRS_AT_ONCE = 2**20
"""How many pairs of a user and a candidate are scored at a time."""


class SampledRanking:
    """Ranks each user's positives among the negatives drawn for this user, in one list for each user.

    Metrics that need labels can be calculated as well: positives have the label 1, negatives 0. Of equal scores the
    lower item id comes first, so a model that cannot tell items apart is not favoured by its positives' place.

    Args:
        plan: The metrics.
        positives: What is to be found; users without any are left out.
        negatives: What they are ranked among: of `evaluation_negatives`, or read from a file of a published protocol.
        users: Whom to rank for; by default everybody who has positives.
        user_groups: Divisions of users to break the result down by.
        item_groups: Divisions of items: each group counts its own positives only.
        keep_per_user: Whether the result has the values of single users.
        logits: Whether a sigmoid makes the scores probabilities; `LogLoss` needs to know.
        pairs_at_once: How many pairs are scored at a time.
        processes: The processes of the run; each takes its share of the users.
        history: What each user has in training; metrics such as `Miscalibration` need it.
        relevance: How relevant each positive is, in the order of `positives.keys`, for `GradedNDCG`.

    Raises:
        ConfigError: A metric needs something that is not given, or a k is above the number of candidates.
        DataError: No user has a positive.
    """

    def __init__(
        self,
        plan: MetricPlan,
        positives: UserItems,
        negatives: UserItems,
        *,
        users: Tensor | None = None,
        user_groups: Sequence[Groups] = (),
        item_groups: Sequence[Groups] = (),
        keep_per_user: bool = False,
        logits: bool = False,
        pairs_at_once: int = PAIRS_AT_ONCE,
        processes: Processes | None = None,
        history: UserItems | None = None,
        relevance: Tensor | None = None,
    ) -> None:
        plan.check_given(user_groups=user_groups, item_groups=item_groups)
        check_plan(plan, positives)
        check_groups(user_groups, item_groups, positives)
        self.plan, self.device = plan, positives.device
        self._catalogue = plan.catalogue.to(self.device)
        self._groups = {
            "user_groups": [groups.to(self.device) for groups in user_groups],
            "item_groups": [groups.to(self.device) for groups in item_groups],
        }
        self._keep_per_user, self._logits, self._processes = keep_per_user, logits, processes
        self._pairs_at_once = pairs_at_once
        candidates = positives | negatives.to(self.device)
        chosen = users_to_rank(positives, users, processes)
        # Lists of like lengths stand together, so that hardly anything is padded.
        self.users = chosen[candidates.counts[chosen].argsort(stable=True)]
        self._candidates = RowItems(candidates, self.users)
        self._positives = RowItems(positives, self.users)
        self._labels = positives.contains(self.users[self._candidates.rows], self._candidates.items)
        self._positive_at = self._labels.nonzero().flatten()
        self._by_group = [self._positives.by_group(groups) for groups in item_groups]
        self._split = fingerprints(keep_per_user, positives, {AMONG: candidates})
        self._facts = RankingFacts(plan, positives, self._positives, self.users, history, relevance)
        # Of all users and not of this process's share: every process must come to the same answer.
        _check_cutoffs(plan, int(candidates.counts[positives.counts > 0].max()))

    def evaluate(self, scorer: Scorer | None = None, *, pair_scorer: PairScorer | None = None) -> EvaluationResult:
        """Return the metrics over the users of all processes.

        Args:
            scorer: Scores all items for some users; the candidates' scores are picked from it.
            pair_scorer: Scores pairs; the better one to give where scoring all items costs more.
        """
        if (scorer is None) == (pair_scorer is None):
            raise ConfigError("evaluate() takes either a scorer of all items or a pair_scorer")
        state, rows = self.accumulate(scorer, pair_scorer)
        if self._processes is not None:
            state.reduce(self._processes)
            rows.reduce(self._processes)
        result = state.result()
        if not self.plan.of_kind("labelled"):
            return result
        found = result.metrics | rows.values()
        return replace(result, metrics={key: found[key] for key in self.plan.keys})

    @torch.no_grad()
    def accumulate(
        self, scorer: Scorer | None, pair_scorer: PairScorer | None
    ) -> tuple[RankingState, LabelledEvaluation]:
        """Return the sums over the users of this process, and their rows where a metric needs labels."""
        state = RankingState(
            self.plan, self.device, keep_per_user=self._keep_per_user, split=self._split, **self._groups
        )
        rows = LabelledEvaluation(self.plan, logits=self._logits)
        with true_fp32(self.device):
            for start, stop in self._chunks(self._most_users() if pair_scorer is None else len(self.users)):
                stretch = self._candidates.stretch(start, stop)
                scores = self._scores(scorer, pair_scorer, start, stop)
                state.add(self._ranked(scores, start, stop))
                if self.plan.of_kind("labelled"):
                    users = self.users[self._candidates.rows[stretch]]
                    rows.update(scores, self._labels[stretch], users)
                after_evaluated_batch()
        return state, rows

    def _most_users(self) -> int:
        """Return for how many users all items can be scored at a time."""
        return users_at_once(self._catalogue.num_items, self.device)

    def _chunks(self, most_users: int) -> Iterator[tuple[int, int]]:
        """Yield stretches of users, one at least, with as many pairs as are scored at a time, padding counted."""
        bounds, start = self._candidates.bounds, 0
        for stop in range(1, len(self.users) + 1):
            after = min(stop + 1, len(self.users))
            pairs = (after - start) * (bounds[after] - bounds[after - 1])
            if after == stop or pairs > self._pairs_at_once or after - start > most_users:
                yield start, stop
                start = stop

    def _scores(self, scorer: Scorer | None, pair_scorer: PairScorer | None, start: int, stop: int) -> Tensor:
        """Return the scores of the candidates of these users, one user after the other."""
        stretch = self._candidates.stretch(start, stop)
        users, items = self.users[start:stop], self._candidates.items[stretch]
        rows = self._candidates.rows[stretch] - start
        if scorer is not None:
            return writable_scores(scorer(users), users, self._catalogue.num_items)[rows, items]
        assert pair_scorer is not None
        scores = pair_scorer(users[rows], items)
        if scores.shape != items.shape:
            raise ConfigError(
                f"the pair_scorer returned the shape {tuple(scores.shape)} for {len(items)} pairs; it has to return a "
                "score for each"
            )
        return scores if scores.dtype == torch.float64 else scores.float()

    def _ranked(self, scores: Tensor, start: int, stop: int) -> RankedBlock:
        """Return the lists of these users, from the scores of their candidates."""
        bounds, stretch = self._candidates.bounds, self._candidates.stretch(start, stop)
        width = max(bounds[stop] - bounds[stop - 1], self.plan.longest)
        counts = self._candidates.counts[start:stop]
        rows = self._candidates.rows[stretch] - start
        columns = torch.arange(len(rows), device=self.device) - (counts.cumsum(0) - counts)[rows]
        places = rows * width + columns
        table = scores.new_full((stop - start, width), -torch.inf)
        table.view(-1)[places] = scores
        ranking, nan_users = self._ranking(table, places, start, stop)
        by_group = [one[start:stop] for one in self._by_group]
        pairs = self._pairs(table, places, start, stop) if self.plan.needs_pairs else None
        return RankedBlock(self.users[start:stop], ranking, pairs, by_group, nan_users)

    def _ranking(self, table: Tensor, places: Tensor, start: int, stop: int) -> tuple[Ranking, Tensor]:
        stretch = self._candidates.stretch(start, stop)
        columns, nan_users = first_items(table, self.plan.longest)
        there, columns = columns != NO_ITEM, columns.clamp(min=0)
        items = torch.full_like(table, NO_ITEM, dtype=torch.int64)
        items.view(-1)[places] = self._candidates.items[stretch]
        labels = torch.zeros_like(table, dtype=torch.bool)
        labels.view(-1)[places] = self._labels[stretch]
        shown = items.gather(1, columns).masked_fill(~there, NO_ITEM)
        hits = labels.gather(1, columns) & there
        gains = None
        if self._facts.gains is not None:
            own = self._positives.stretch(start, stop)
            worth = torch.zeros_like(table, dtype=torch.float64)
            at = self._positive_at[own] - self._candidates.bounds[start]
            worth.view(-1)[places[at]] = self._facts.gains.values[own]
            gains = worth.gather(1, columns) * hits
        counts, best = self._positives.counts[start:stop], self._facts.best_gains(start, stop)
        histories = self._facts.histories(start, stop)
        return Ranking(hits, counts, shown, self._catalogue, gains, best, histories), nan_users

    def _pairs(self, table: Tensor, places: Tensor, start: int, stop: int) -> OrderedPairs:
        own = self._positive_at[self._positives.stretch(start, stop)] - self._candidates.bounds[start]
        empty = table.shape[1] - self._candidates.counts[start:stop]
        counts = self._positives.counts[start:stop]
        return pairs_in_order(table, places[own], counts, empty, weight=self.plan.gauc_weight)


def _check_cutoffs(plan: MetricPlan, longest: int) -> None:
    if plan.longest > longest:
        name, lengths = ("topk", plan.topk) if plan.longest in plan.topk else ("first_stage", plan.first_stage)
        raise ConfigError(
            f"{name}={list(lengths)}: {plan.longest} is more than the {longest} candidates that any user has; choose a "
            "smaller k, or more negatives"
        )
