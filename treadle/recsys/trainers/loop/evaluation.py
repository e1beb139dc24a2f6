"""The verbs of a trainer that look at a model: evaluation, whole and by batches."""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.checkpoint.tracked import explaining_mismatch
from treadle.config.arguments import accepted
from treadle.errors import CheckpointError, ConfigError, DataError
from treadle.parallel import Processes
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader import FullSortEvalDataLoader, NegSampleEvalDataLoader
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.enums import EvaluatorType, ModelType
from treadle.recsys.evaluation import (
    EvaluationResult,
    FullRanking,
    Groups,
    LabelledEvaluation,
    MetricPlan,
    SampledRanking,
)
from treadle.recsys.evaluation.divisions import (
    by_query,
    item_categories,
    item_divisions,
    positive_relevance,
    user_divisions,
)
from treadle.recsys.evaluation.evaluator import Collector, Evaluator
from treadle.recsys.evaluation.scoring import writable_scores
from treadle.recsys.models.abstract_recommender import AbstractRecommender
from treadle.recsys.models.item_scores import ModelScores, looking
from treadle.recsys.trainers.abstract_trainer import AbstractTrainer, is_overridden
from treadle.recsys.trainers.loop.model_file import ModelFiles, OtherParameters, check_tokens, read_model_file
from treadle.recsys.trainers.results import Metrics, calculate_valid_score
from treadle.runs.preemption import after_evaluated_batch

# Evaluation of a model on the data of a loader, on the device of the model


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
        user_counts: How many interactions each user has; None until it is known.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.counts: Tensor | None = None
        self.user_counts: Tensor | None = None
        self._history: Callable[[], UserItems] | None = None

    @property
    def history(self) -> UserItems | None:
        """What each user has in training; None until it is known."""
        return None if self._history is None else self._history()

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
        users, items = (ids.cpu() for ids in dataset.user_item_pairs())
        real = items > 0
        users, items = users[real], items[real]
        self.counts = torch.bincount(items, minlength=dataset.item_num)
        self.user_counts = torch.bincount(users, minlength=dataset.user_num)
        numbers = {"num_users": dataset.user_num, "num_items": dataset.item_num}
        self._history = cache(lambda: UserItems(users, items, **numbers))


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
        item_categories=item_categories(config["item_category_field"], dataset),
        first_stage=config["first_stage_topk"],
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
        history: What each query has in training, for metrics that need it.
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
        history: UserItems | None = None,
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
        options |= {"keep_per_user": keep_per_user, "processes": processes, "history": history}
        if plan.requiring("relevance"):
            options["relevance"] = positive_relevance(loader)
        self._full: FullRanking | None = None
        self._sampled: SampledRanking | None = None
        if isinstance(loader, FullSortEvalDataLoader):
            self._full = FullRanking(plan, loader.positives, seen=loader.seen, **options)
        elif loader.negatives is not None:
            self._sampled = SampledRanking(
                plan, loader.positives, loader.negatives, logits=self._outputs_logits(), **options
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
        return self._model_scores(queries)

    def _model_scores(self, queries: Tensor) -> Tensor:
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

    def _outputs_logits(self) -> bool:
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
        if not wanted or self._outputs_logits() or self._batch_scores is not None or self._full is not None:
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
        rows = LabelledEvaluation(self._plan, logits=self._outputs_logits())
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


BATCH_VERBS = ("_full_sort_batch_eval", "_neg_sample_batch_eval")


class EvaluationTrainer(AbstractTrainer):
    """Evaluates the model of a trainer; `Trainer` adds the training.

    Attributes:
        eval_type: Whether the metrics look at ranks or at values.
        eval_collector: How often items are used in training; `data_collect(train_data)` counts. For an `evaluate` of
            one's own it collects what metrics need: see `Collector`.
        evaluator: For an `evaluate` of your own: calculates the metrics from what is collected.
        valid_metric: The metric that decides which model is best.
        valid_metric_bigger: Whether a higher value of it is better.
        test_batch_size: How many rows are scored at a time by `_spilt_predict`.
        item_tensor: What is known of each item; None until an evaluation begins.
        tot_item_num: How many item ids there are; None until an evaluation begins.
        eval_result: All that the last evaluation found out.
    """

    saved_model_file: str

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.logger = logging.getLogger("treadle.recsys")
        self.eval_type: EvaluatorType = config["eval_type"]
        self.eval_collector = TrainingCounts(config)
        self.evaluator = Evaluator(config)
        self.valid_metric = str(config["valid_metric"]).lower().replace(" ", "")
        self.valid_metric_bigger = config["valid_metric_bigger"]
        self.test_batch_size = int(config["eval_batch_size"])
        self.item_tensor: Interaction | None = None
        self.tot_item_num: int | None = None
        self.eval_result: EvaluationResult | None = None
        self._evaluations: WeakKeyDictionary[Any, LoaderEvaluation] = WeakKeyDictionary()
        self._files = ModelFiles()
        self._best: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def evaluate(
        self,
        eval_data: Any,
        load_best_model: bool = True,
        model_file: Any = None,
        show_progress: bool = False,
    ) -> Metrics | None:
        """Evaluate the model; modes of modules and random generators are afterwards as they were.

        Args:
            eval_data: A loader for validation or test; without one, None is returned.
            load_best_model: Whether to evaluate the best model of the training, which the trainer then keeps.
            model_file: The file of the model to evaluate instead.
            show_progress: Taken for the sake of those who override it: an evaluation is over too soon to be watched.

        Returns:
            The metrics by name, rounded as `metric_decimal_place` says; `.exact` has them as they are.

        Raises:
            CheckpointError: The file of the model is not there, or is of another model.
            DataError: It was trained with other users or items than the data has.
        """
        if not eval_data:
            return None
        if load_best_model:
            self._load_best(model_file, getattr(eval_data, "dataset", None))
        self.eval_result = self._evaluate_loader(eval_data)
        found = Metrics.of(self.eval_result.metrics, int(self.config["metric_decimal_place"]))
        found.groups, found.group_users = self.eval_result.groups, self.eval_result.group_users
        return found

    def evaluate_in_detail(
        self,
        eval_data: Any,
        *,
        user_groups: Sequence[Groups] = (),
        item_groups: Sequence[Groups] = (),
        keep_per_user: bool = False,
    ) -> EvaluationResult:
        """Evaluate the model as it is, broken down by groups of users or items.

        Args:
            eval_data: A loader for validation or test.
            user_groups, item_groups: The groups, beside those of the settings; see `treadle.recsys.evaluation`.
            keep_per_user: Whether the values of single users are kept, for `compare_runs`.
        """
        options: dict[str, Any] = {"user_groups": user_groups, "item_groups": item_groups}
        options["keep_per_user"] = keep_per_user
        self._processes.share_buffers(self.model)
        with looking(self.model):
            return self._prepare_evaluation(eval_data, **options).run()

    def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> tuple[float, Any]:
        """Return the score that decides, and all metrics, of the model as it is."""
        evaluate = self.evaluate
        options = accepted(evaluate, load_best_model=False, show_progress=show_progress)
        valid_result: Any = evaluate(valid_data, **options)
        return calculate_valid_score(valid_result, self.valid_metric), valid_result

    def _evaluate_loader(self, loader: Any) -> EvaluationResult:
        if loader not in self._evaluations:
            self._evaluations[loader] = self._prepare_evaluation(loader)
        self._processes.share_buffers(self.model)
        with looking(self.model):
            return self._evaluations[loader].run()

    def _prepare_evaluation(self, loader: Any, **options: Any) -> LoaderEvaluation:
        """Get ready to evaluate on a loader's data; what cannot be calculated is refused here."""
        if isinstance(loader, Dataset):
            got = type(loader).__name__
            raise DataError(f"a {got} is no loader to evaluate on; pass one of those that data_preparation returns")
        dataset = getattr(loader, "dataset", None)
        if dataset is not None:
            loader.to(self.device)
            self._set_item_count(loader.dataset)
        plan = metric_plan(self.config, loader.dataset, self.eval_collector)
        verb = BATCH_VERBS[not isinstance(loader, FullSortEvalDataLoader)]
        # The verbs of batches are what calls `_spilt_predict`.
        overridden = any(is_overridden(self, name, EvaluationTrainer) for name in (verb, "_spilt_predict"))
        own = getattr(self, verb) if overridden else None
        scores = ModelScores(self.model, loader.dataset, self.device)
        options |= self._by_settings(loader, plan, **options)
        return LoaderEvaluation(loader, plan, scores, self._processes, batch_scores=own, **options)

    def _by_settings(
        self,
        loader: Any,
        plan: MetricPlan,
        *,
        user_groups: Sequence[Groups] = (),
        item_groups: Sequence[Groups] = (),
        **others: Any,
    ) -> dict[str, Any]:
        """Return the divisions that the settings name, and then those that are given; and histories, if needed.

        Raises:
            ConfigError: They need what is known of the training, and that is not known yet.
        """
        config, known = self.config, self.eval_collector
        asked = [name for name in ("user_groups", "item_groups") if config[name]]
        if (asked or plan.requiring("history")) and known.counts is None:
            raise ConfigError(
                f"{asked or plan.requiring('history')} go by the data for training, which this trainer has not seen: "
                "call fit first, or trainer.eval_collector.data_collect(train_data)"
            )
        made: dict[str, Any] = {"user_groups": user_groups, "item_groups": item_groups}
        if known.counts is None or known.user_counts is None or not hasattr(loader, "by_row"):
            return made
        history = known.history if plan.requiring("history") else None
        by_user = user_divisions(config["user_groups"], loader.dataset, known.user_counts)
        queries, made["history"] = by_query(loader, by_user, history)
        made["user_groups"] = [*queries, *user_groups]
        made["item_groups"] = [*item_divisions(config["item_groups"], loader.dataset, known.counts), *item_groups]
        return made

    def check_scores(self, loader: Any) -> None:
        """Make sure, before anything is trained, that the metrics can be calculated of the model's scores.

        Nothing is asked of a model that is fitted in one pass, and has no scores before.

        Raises:
            ConfigError: They cannot, such as `LogLoss` of scores that are no probabilities.
        """
        fitted = getattr(self.model, "type", None) in (ModelType.TRADITIONAL, ModelType.DECISIONTREE)
        if fitted or is_overridden(self, "evaluate", EvaluationTrainer):
            return
        if loader not in self._evaluations:
            self._evaluations[loader] = self._prepare_evaluation(loader)
        with looking(self.model):
            self._evaluations[loader].check_scores()

    def _set_item_count(self, dataset: Any) -> None:
        if dataset.iid_field is not None:
            self.tot_item_num = dataset.item_num
            self.item_tensor = dataset.get_item_feature().to(self.device)

    # By batches ---------------------------------------------------------------------------------------------

    def _full_sort_batch_eval(self, batched_data: Any) -> tuple[Interaction, Tensor, Tensor, Tensor]:
        """Return the interaction of a batch, the scores of all items, and what is to be found.

        Override it to score in another way: the scores it returns, of the shape `[rows, items]`, are then ranked.
        """
        interaction, history_index, positive_u, positive_i = batched_data
        interaction = interaction.to(self.device)
        scores = self._score_interaction(interaction)
        scores[:, 0] = -torch.inf
        if history_index is not None:
            scores[history_index] = -torch.inf
        return interaction, scores, positive_u, positive_i

    def _score_interaction(self, interaction: Interaction) -> Tensor:
        assert self.tot_item_num is not None, "an evaluation knows its items"
        try:
            scores = self.model.full_sort_predict(interaction)
        except NotImplementedError:
            assert self.item_tensor is not None
            pairs = interaction.repeat_interleave(self.tot_item_num)
            pairs.update(self.item_tensor.repeat(len(interaction)))
            scores = self._spilt_predict(pairs, len(pairs))
        users = torch.empty(len(interaction), device=self.device)
        return writable_scores(scores.view(-1, self.tot_item_num), users, self.tot_item_num)

    def _neg_sample_batch_eval(self, batched_data: Any) -> tuple[Interaction, Tensor, Any, Any]:
        """Return the rows of a batch, their scores, and what is to be found.

        Scores of rows with labels are one for each row; where items are ranked they are a table of the shape
        `[users, items]`, with -inf for items that are no candidates. Override it to score in another way.
        """
        interaction, row_idx, positive_u, positive_i = batched_data
        interaction = interaction.to(self.device)
        scores = self._spilt_predict(interaction, len(interaction))
        if row_idx is None:
            return interaction, scores, positive_u, positive_i
        assert self.tot_item_num is not None, "an evaluation knows its items"
        table = scores.new_full((int(positive_u[-1]) + 1, self.tot_item_num), -torch.inf)
        table[row_idx, interaction[str(self.config["ITEM_ID_FIELD"])]] = scores
        return interaction, table, positive_u, positive_i

    def _spilt_predict(self, interaction: Interaction, batch_size: int) -> Tensor:
        """Return the scores of rows, `eval_batch_size` at a time."""
        step = self.test_batch_size
        parts = [self.model.predict(interaction[start : start + step]) for start in range(0, batch_size, step)]
        return torch.cat([part.reshape(-1) for part in parts])

    # The model to look at -----------------------------------------------------------------------------------

    def _load_best(self, model_file: Any, dataset: Any = None) -> None:
        """Take the weights of a file, which must be of this data, or of the best model of the training."""
        if model_file is None and self._best is not None:
            weights, others = self._best
            load_plain_state_dict(self.model, weights, where="the best model")
            OtherParameters(self.model, self.device).load_state_dict(others)
            self.logger.info("Loading the parameters of the best model of the training, which is in no file")
            return
        self._files.wait()
        self._processes.barrier()
        path = self.saved_model_file if model_file is None else str(model_file)
        try:
            state = read_model_file(path)
        except CheckpointError as error:
            if model_file is None:
                first = "" if Path(path).exists() else "evaluate looks for the best model of a fit: call fit first, or "
                error.add_note(f"{first}pass load_best_model=False to evaluate the model as it is")
            raise
        check_tokens(state, dataset, path)
        self._take_weights(state, path)
        self.logger.info("Loading model structure and parameters from %s", path)

    def _take_weights(self, state: dict[str, Any], path: str) -> None:
        load_plain_state_dict(self.model, state["state_dict"], where=path)
        with explaining_mismatch(f"the other parameters of the model in {path}"):
            OtherParameters(self.model, self.device).load_state_dict(state["other_parameter"])
