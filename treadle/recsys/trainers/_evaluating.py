"""The verbs of a trainer that look at a model: evaluation, whole and by batches."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.checkpoint.tracked import telling_misfit
from treadle.errors import CheckpointError, DataError
from treadle.recsys.dataset import Dataset
from treadle.recsys.enums import EvaluatorType, ModelType
from treadle.recsys.evaluation import EvaluationResult, Groups
from treadle.recsys.evaluation.evaluator import Evaluator
from treadle.recsys.evaluation.scoring import own_scores
from treadle.recsys.interaction import Interaction
from treadle.recsys.loading import FullSortEvalDataLoader
from treadle.recsys.looking import looking
from treadle.recsys.model_scores import ModelScores
from treadle.recsys.trainers.abstract_trainer import AbstractTrainer
from treadle.recsys.trainers.evaluating import LoaderEvaluation, TrainingCounts, metric_plan
from treadle.recsys.trainers.model_file import ModelFiles, check_tokens, read_model_file
from treadle.recsys.trainers.other_parameters import OtherParameters
from treadle.recsys.trainers.results import Metrics, calculate_valid_score
from treadle.recsys.trainers.signatures import accepted, is_overridden

BATCH_VERBS = ("_full_sort_batch_eval", "_neg_sample_batch_eval")


class Evaluating(AbstractTrainer):
    """Evaluates the model of a trainer; `Trainer` adds the training.

    Attributes:
        eval_type: Whether the metrics look at ranks or at values.
        eval_collector: How often items are used in training; `data_collect(train_data)` counts. For an `evaluate` of
            one's own it collects what metrics need: see `Collector`.
        evaluator: For an `evaluate` of one's own: calculates the metrics from what is collected.
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
        self.eval_result = self._evaluation_of(eval_data)
        return Metrics.of(self.eval_result.metrics, int(self.config["metric_decimal_place"]))

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
            user_groups, item_groups: The groups; see `treadle.recsys.evaluation`.
            keep_per_user: Whether the values of single users are kept, for `compare_runs`.
        """
        options = {"user_groups": user_groups, "item_groups": item_groups, "keep_per_user": keep_per_user}
        self._processes.share_buffers(self.model)
        with looking(self.model):
            return self._prepare_evaluation(eval_data, **options).run()

    def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> tuple[float, Any]:
        """Return the score that decides, and all metrics, of the model as it is."""
        evaluate = self.evaluate
        options = accepted(evaluate, load_best_model=False, show_progress=show_progress)
        valid_result: Any = evaluate(valid_data, **options)
        return calculate_valid_score(valid_result, self.valid_metric), valid_result

    def _evaluation_of(self, loader: Any) -> EvaluationResult:
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
            self._know_items(loader.dataset)
        plan = metric_plan(self.config, loader.dataset, self.eval_collector)
        verb = BATCH_VERBS[not isinstance(loader, FullSortEvalDataLoader)]
        # The verbs of batches are what calls `_spilt_predict`.
        overridden = any(is_overridden(self, name, Evaluating) for name in (verb, "_spilt_predict"))
        own = getattr(self, verb) if overridden else None
        scores = ModelScores(self.model, loader.dataset, self.device)
        return LoaderEvaluation(loader, plan, scores, self._processes, batch_scores=own, **options)

    def check_scores(self, loader: Any) -> None:
        """Make sure, before anything is trained, that the metrics can be calculated of the model's scores.

        Nothing is asked of a model that is fitted in one pass, and has no scores before.

        Raises:
            ConfigError: They cannot, such as `LogLoss` of scores that are no probabilities.
        """
        fitted = getattr(self.model, "type", None) in (ModelType.TRADITIONAL, ModelType.DECISIONTREE)
        if fitted or is_overridden(self, "evaluate", Evaluating):
            return
        if loader not in self._evaluations:
            self._evaluations[loader] = self._prepare_evaluation(loader)
        with looking(self.model):
            self._evaluations[loader].check_scores()

    def _know_items(self, dataset: Any) -> None:
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
        scores = self._scores_of(interaction)
        scores[:, 0] = -torch.inf
        if history_index is not None:
            scores[history_index] = -torch.inf
        return interaction, scores, positive_u, positive_i

    def _scores_of(self, interaction: Interaction) -> Tensor:
        assert self.tot_item_num is not None, "an evaluation knows its items"
        try:
            scores = self.model.full_sort_predict(interaction)
        except NotImplementedError:
            assert self.item_tensor is not None
            pairs = interaction.repeat_interleave(self.tot_item_num)
            pairs.update(self.item_tensor.repeat(len(interaction)))
            scores = self._spilt_predict(pairs, len(pairs))
        users = torch.empty(len(interaction), device=self.device)
        return own_scores(scores.view(-1, self.tot_item_num), users, self.tot_item_num)

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
        with telling_misfit(f"the other parameters of the model in {path}"):
            OtherParameters(self.model, self.device).load_state_dict(state["other_parameter"])
