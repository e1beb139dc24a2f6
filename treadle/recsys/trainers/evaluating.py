"""Evaluation of a model on the data of a loader, on the device of the model."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError
from treadle.leaving import after_evaluated_batch
from treadle.parallel import Processes
from treadle.recsys.config import Config
from treadle.recsys.dataset import Dataset
from treadle.recsys.evaluation import (
    EvaluationResult,
    FullRanking,
    Groups,
    LabelledEvaluation,
    MetricPlan,
    SampledRanking,
)
from treadle.recsys.evaluation.collector import Collector
from treadle.recsys.loading import FullSortEvalDataLoader, NegSampleEvalDataLoader
from treadle.recsys.model_scores import ModelScores
from treadle.recsys.models.abstract_recommender import AbstractRecommender

BatchScores = Callable[[Any], Any]
PROBABILISTIC = "LogLoss"
"""The metric that takes scores for probabilities."""
TRIED = 512
"""How many rows are scored to see whether they are some."""
WORTH_ALL = 200
"""How many scores may be thrown away for each that is looked at: to score all items at once costs little a score."""


class TrainingCounts(Collector):
    """How often each item is used in training, and what else metrics need to know of the data.

    Args:
        config: The settings.

    Attributes:
        counts: How often, by item id; None until it is known.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.counts: Tensor | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the data, by RecBole's names."""
        names = ("data.num_items", "data.num_users", "data.count_items", "data.count_users")
        return {name: self.data_struct[name] for name in names if name in self.data_struct}

    def data_collect(self, train_data: Any) -> None:
        """Count the items of the data for training."""
        dataset = getattr(train_data, "dataset", None)
        if not isinstance(dataset, Dataset) or dataset.uid_field is None or dataset.iid_field is None:
            return
        super().data_collect(train_data)
        _, items = dataset.user_item_pairs()
        counts = torch.bincount(items.cpu(), minlength=dataset.item_num)
        counts[0] = 0
        self.counts = counts


def metric_plan(config: Config, dataset: Dataset, known: TrainingCounts) -> MetricPlan:
    """Return which metrics the settings ask for.

    Args:
        config: The settings.
        dataset: The data that is evaluated on.
        known: What is known of the data for training.

    Raises:
        ConfigError: A metric cannot be calculated, or a k is above the number of items.
        UnknownMetricError: `valid_metric` is not calculated.
    """
    plan = MetricPlan(
        config["metrics"],
        config["topk"],
        num_items=0 if dataset.iid_field is None else dataset.item_num,
        item_counts=known.counts,
        tail_ratio=config["tail_ratio"],
        gauc_weight=config["gauc_weight"],
        decimals=int(config["metric_decimal_place"]),
        config=config,
        facts=known.facts,
    )
    plan.check_valid_metric(config["valid_metric"])
    return plan


class LoaderEvaluation:
    """The evaluation of one loader's data; made once, with everything sorted, and run as often as wanted.

    Args:
        loader: What to evaluate on, on the device.
        plan: The metrics.
        scores: The scores of the model.
        processes: The processes, each of which takes its share.
        batch_scores: A method of the user's that returns the scores of a batch of the loader, the second of what it
            returns; None for the model's own.
        user_groups, item_groups: Divisions to break the result down by.
        keep_per_user: Whether the values of single users are kept.
    """

    def __init__(
        self,
        loader: Any,
        plan: MetricPlan,
        scores: ModelScores,
        processes: Processes,
        *,
        batch_scores: BatchScores | None = None,
        user_groups: Sequence[Groups] = (),
        item_groups: Sequence[Groups] = (),
        keep_per_user: bool = False,
    ) -> None:
        if not isinstance(loader, (FullSortEvalDataLoader, NegSampleEvalDataLoader)):
            raise DataError(
                f"a {type(loader).__name__} cannot be evaluated on; pass a loader of data_preparation for validation "
                "or test, or override evaluate"
            )
        self._loader: Any = loader
        self._plan, self._scores, self._processes = plan, scores, processes
        self._batch_scores = batch_scores
        options: dict[str, Any] = {"user_groups": user_groups, "item_groups": item_groups}
        options |= {"keep_per_user": keep_per_user, "processes": processes}
        self._full: FullRanking | None = None
        self._sampled: SampledRanking | None = None
        if isinstance(loader, FullSortEvalDataLoader):
            self._full = FullRanking(plan, loader.positives, seen=loader.seen, **options)
        elif loader.negatives is not None:
            self._sampled = SampledRanking(
                plan, loader.positives, loader.negatives, logits=self._gives_logits(), **options
            )
        elif user_groups or item_groups or keep_per_user:
            raise ConfigError("evaluation by labels has no users to group; use full ranking or sampled negatives")

    def run(self) -> EvaluationResult:
        """Return the metrics over the data of all processes."""
        if self._full is not None:
            return self._full.evaluate(self._score_queries)
        if self._sampled is not None:
            return self._run_sampled(self._sampled)
        return self._run_labelled()

    def _score_queries(self, queries: Tensor) -> Tensor:
        """Return the scores of all items for some queries."""
        if self._batch_scores is None:
            return self._scores.all_items(self._loader.interaction(queries))
        return self._own_scores(queries)

    def _own_scores(self, queries: Tensor) -> Tensor:
        """Return the scores that a method of the user's gives the batch of these queries."""
        assert self._batch_scores is not None
        rows = torch.searchsorted(self._loader.queries, queries)
        batch = self._loader.make_batch(rows, rows, 0)
        scores: Tensor = self._batch_scores(batch)[1]
        return scores.view(len(queries), -1)

    def _run_sampled(self, ranking: SampledRanking) -> EvaluationResult:
        if self._batch_scores is not None or self._scores_all_at_once():
            return ranking.evaluate(self._score_queries)
        return ranking.evaluate(pair_scorer=self._score_pairs)

    def _scores_all_at_once(self) -> bool:
        """Whether to score all items and pick the candidates, and not each candidate by itself.

        A model of sequences would go through a history once for each candidate. Metrics of probabilities need what
        `predict` returns.
        """
        loader = self._loader
        if self._plan.of_kind("labelled") or not _scores_all(self._scores.model):
            return False
        candidates = len(loader.positives) + len(loader.negatives)
        return bool(loader.by_row or loader.positives.num_items * len(loader.queries) <= WORTH_ALL * candidates)

    def _score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        rows = self._loader._candidates(queries, torch.arange(len(queries), device=queries.device), items)
        scores: Tensor = self._scores.model.predict(rows)
        return scores.reshape(-1)

    def _gives_logits(self) -> bool:
        """Whether a sigmoid makes the scores probabilities, as the settings say, or the model itself."""
        asked = self._loader.config["predicts_logits"]
        return bool(getattr(self._scores.model, "predicts_logits", False) if asked is None else asked)

    @torch.no_grad()
    def check_scores(self) -> None:
        """Make sure, by a few rows, that the metrics can be calculated of the model's scores.

        Raises:
            ConfigError: `LogLoss` is asked for, and the scores are no probabilities.
        """
        wanted = any(one.metric.name == PROBABILISTIC for one in self._plan.measures)
        if not wanted or self._gives_logits() or self._batch_scores is not None or self._full is not None:
            return
        least, most = self._processes.share([float(one) for one in self._some_scores().aminmax()])
        if least < 0 or most > 1:
            name = type(self._scores.model).__name__
            raise ConfigError(
                f"metrics has {PROBABILISTIC}, which takes probabilities, but {name} gives rows scores from "
                f"{least:.4g} to {most:.4g}; set predicts_logits: true if a sigmoid makes them probabilities, or leave "
                "it out of metrics"
            )

    def _some_scores(self) -> Tensor:
        """Return the scores of some rows, the same in every process."""
        interaction = self._loader.batch_at(0, 0)[0]
        scores: Tensor = self._scores.model.predict(interaction[: min(TRIED, len(interaction))])
        return scores.float().reshape(-1)

    @torch.no_grad()
    def _run_labelled(self) -> EvaluationResult:
        loader, processes = self._loader, self._processes
        users, label = loader.dataset.uid_field, str(loader.config["LABEL_FIELD"])
        rows = LabelledEvaluation(self._plan, logits=self._gives_logits())
        for index in range(len(loader)):
            batch = loader.batch_at(0, index, rank=processes.rank, size=processes.size)
            interaction = batch[0]
            if not len(interaction):
                continue
            if self._batch_scores is not None:
                scores = self._batch_scores(batch)[1]
            else:
                scores = self._scores.model.predict(interaction)
            owners = interaction[users] if users is not None and users in interaction else None
            rows.update(scores, interaction[label], owners)
            after_evaluated_batch()
        rows.reduce(processes)
        return rows.result()


def _scores_all(model: Any) -> bool:
    """Whether a model defines how to score all items, which the parent of all models only refuses."""
    own = getattr(type(model), "full_sort_predict", None)
    return own is not None and own is not AbstractRecommender.full_sort_predict
