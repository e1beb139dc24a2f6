"""`evaluate`: the same numbers by every way, the best model, and nothing disturbed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recsys.trainer.runs import ITEMS, interactions, make
from treadle.checkpoint import write_file
from treadle.errors import CheckpointError, ConfigError, DataError
from treadle.recsys import Interaction, ModelType, Trainer, create_dataset, data_preparation
from treadle.recsys.evaluation import groups_by_quantile
from treadle.recsys.models.general_recommender import BPR

MODES = ["full", "uni5", "pop5"]


class OnlyPairs(BPR):
    """Cannot score all items at once."""

    full_sort_predict = None  # type: ignore[assignment]

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.full_sort_predict = self._refuse  # type: ignore[method-assign]

    def _refuse(self, interaction: Interaction) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_scores_pairs_only_gets_the_same_metrics(tmp_path: Path, mode: str) -> None:
    given = {"eval_args": {"mode": mode}, "embedding_size": 8, "learning_rate": 0.05}
    whole, pairs = make(tmp_path, BPR, **given), make(tmp_path, OnlyPairs, **given)
    assert whole.fit(saved=False)[1].exact == pytest.approx(pairs.fit(saved=False)[1].exact, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_own_scores_by_batches_give_the_metrics_of_the_models_own(tmp_path: Path, mode: str) -> None:
    batches: list[int] = []

    class ByBatches(Trainer):
        def _full_sort_batch_eval(self, batched_data: Any) -> Any:
            batches.append(len(batched_data[0]))
            return super()._full_sort_batch_eval(batched_data)

        def _neg_sample_batch_eval(self, batched_data: Any) -> Any:
            batches.append(len(batched_data[0]))
            return super()._neg_sample_batch_eval(batched_data)

    given: dict[str, Any] = {"eval_args": {"mode": mode}, "learning_rate": 0.05, "eval_batch_size": 64}
    own, plain = make(tmp_path, kind=ByBatches, **given), make(tmp_path, **given)
    assert own.fit(saved=False)[1].exact == pytest.approx(plain.fit(saved=False)[1].exact, abs=1e-12)
    assert batches


def test_scores_that_an_override_changes_are_the_ones_that_are_ranked(tmp_path: Path) -> None:
    class Upside(Trainer):
        def _full_sort_batch_eval(self, batched_data: Any) -> Any:
            interaction, _, users, items = super()._full_sort_batch_eval(batched_data)
            scores = torch.zeros(len(interaction), ITEMS + 1)
            scores[users, items] = 1.0
            return interaction, scores, users, items

    run = make(tmp_path, kind=Upside)
    assert run.trainer.evaluate(run.test, load_best_model=False)["recall@5"] == 1.0


class Clicks(BPR):
    """Tells the probability that a row's label is 1."""

    from treadle.recsys import InputType

    type, input_type = ModelType.CONTEXT, InputType.POINTWISE

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        scores = super().predict(interaction)
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, interaction["label"])

    def predict(self, interaction: Interaction) -> Tensor:
        return super().predict(interaction).sigmoid()


LABELLED = {
    "threshold": {"rating": 3},
    "metrics": ["AUC", "LogLoss"],
    "valid_metric": "AUC",
    "embedding_size": 8,
    "learning_rate": 0.05,
}


def test_rows_with_labels_are_evaluated_by_their_values(tmp_path: Path) -> None:
    run = make(tmp_path, Clicks, **LABELLED)
    score, result = run.fit(saved=False)
    rows = [run.valid.batch_at(0, index)[0] for index in range(len(run.valid))]
    with torch.no_grad():
        run.trainer._load_best(None)
        scores = torch.cat([run.model.predict(row) for row in rows])
    labels = torch.cat([row["label"] for row in rows])
    chosen, others = scores[labels == 1].unsqueeze(1), scores[labels == 0]
    expected = ((chosen > others).double() + 0.5 * (chosen == others)).mean().item()
    assert score == pytest.approx(expected, abs=1e-12)
    assert set(result) == {"auc", "logloss"}


def test_own_scores_of_labelled_rows_are_used_too(tmp_path: Path) -> None:
    class Knowing(Trainer):
        def _neg_sample_batch_eval(self, batched_data: Any) -> Any:
            interaction, _, users, items = super()._neg_sample_batch_eval(batched_data)
            return interaction, interaction["label"], users, items

    run = make(tmp_path, Clicks, kind=Knowing, **LABELLED)
    assert run.trainer.evaluate(run.test, load_best_model=False)["auc"] == 1.0


def test_evaluation_changes_no_mode_and_no_random_generator(tmp_path: Path) -> None:
    run = make(tmp_path, "MultiVAE", mlp_hidden_size=[16], latent_dimension=8)
    run.model.train()
    run.model.encoder.eval()
    modes = [module.training for module in run.model.modules()]
    before = torch.get_rng_state()
    run.trainer.evaluate(run.test, load_best_model=False)
    assert [module.training for module in run.model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)


def test_how_often_one_evaluates_does_not_change_the_training(tmp_path: Path) -> None:
    given: dict[str, Any] = {"eval_args": {"mode": "uni5"}, "epochs": 4}
    often, seldom = make(tmp_path, eval_step=1, **given), make(tmp_path, eval_step=4, **given)
    often.fit()
    seldom.fit()
    assert torch.equal(often.model.user_embedding.weight, seldom.model.user_embedding.weight)


def test_without_data_an_evaluation_returns_none(tmp_path: Path) -> None:
    assert make(tmp_path).trainer.evaluate(None) is None


def test_a_model_file_is_evaluated_without_a_fit(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.fit()
    expected = run.trainer.evaluate(run.test)
    other = make(tmp_path)
    assert other.trainer.evaluate(other.test, model_file=run.trainer.saved_model_file).exact == expected.exact


def test_without_a_saved_model_the_error_says_what_to_do(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint file .*BPR-") as caught:
        run.trainer.evaluate(run.test)
    assert caught.value.__notes__ == [
        "evaluate looks for the best model of a fit: call fit first, or pass load_best_model=False to evaluate the "
        "model as it is"
    ]


def test_a_trainer_that_is_given_its_arguments_in_the_wrong_order_says_so(tmp_path: Path) -> None:
    run = make(tmp_path)
    config = run.trainer.config
    with pytest.raises(ConfigError, match=r"Trainer\(BPR, Config\): the settings come first, and the model second"):
        Trainer(run.model, config)
    with pytest.raises(ConfigError, match=r"Trainer: BPR is a class; build the model first: BPR\(config, train_data"):
        Trainer(config, type(run.model))


def test_arguments_in_the_wrong_place_are_told(tmp_path: Path) -> None:
    run = make(tmp_path)
    config, train = run.trainer.config, run.train
    for call, message in (
        (
            lambda: BPR(train.dataset, config),
            r"BPR\(Dataset, Config\): a model takes a Config, and a data set",
        ),
        (lambda: BPR(config, train), r"BPR\(Config, TrainDataLoader\): .*: BPR\(config, train_data\.dataset\)"),
        (lambda: BPR({"epochs": 1}, train.dataset), r"BPR\(dict, Dataset\): a model takes a Config"),
        (lambda: create_dataset("toy"), r"create_dataset takes settings, not 'toy': create_dataset\(Config\("),
        (
            lambda: data_preparation(train.dataset, config),
            r"data_preparation\(Dataset, Config\): the settings come first",
        ),
        (
            lambda: Trainer({"epochs": 1}, run.model),
            r"Trainer: settings are a Config, and this is a dict; write C",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(DataError, match=r"a Dataset is no loader to evaluate on; pass one of those that data_prep"):
        run.trainer.evaluate(run.test.dataset, load_best_model=False)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path)
    write_file(tmp_path / "other.pth", {"weights": 1})
    with pytest.raises(CheckpointError, match=r"other\.pth is no model of a recommender"):
        run.trainer.evaluate(run.test, model_file=tmp_path / "other.pth")


def test_a_training_loader_cannot_be_evaluated_on(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(DataError, match="a TrainDataLoader cannot be evaluated on; pass a loader of data_preparation"):
        run.trainer.evaluate(run.train, load_best_model=False)


def test_metrics_that_need_training_counts_get_them_from_fit(tmp_path: Path) -> None:
    run = make(tmp_path, metrics=["NDCG", "AveragePopularity"])
    _, result = run.fit()
    assert result["averagepopularity@5"] > 0


def test_metrics_that_need_training_counts_can_be_told_them(tmp_path: Path) -> None:
    run = make(tmp_path, metrics=["NDCG", "AveragePopularity"])
    with pytest.raises(ConfigError, match="look at how often items were used in training"):
        run.trainer.evaluate(run.test, load_best_model=False)
    run.trainer.eval_collector.data_collect(run.train)
    assert run.trainer.evaluate(run.test, load_best_model=False)["averagepopularity@5"] > 0


def test_an_evaluation_can_be_broken_down_by_groups_of_users(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.fit()
    counts = torch.bincount(run.train.dataset.inter_feat["user_id"], minlength=run.train.dataset.user_num)
    groups = groups_by_quantile("activity", counts, 2)
    found = run.trainer.evaluate_in_detail(run.test, user_groups=[groups], keep_per_user=True)
    assert found.metrics == run.trainer.evaluate(run.test, load_best_model=False).exact
    assert set(found.groups) == {"activity"}
    assert found.per_user is not None


def test_the_last_evaluation_can_be_asked_for_all_it_found(tmp_path: Path) -> None:
    run = make(tmp_path)
    result = run.trainer.evaluate(run.test, load_best_model=False)
    assert run.trainer.eval_result.metrics == result.exact
    assert result["recall@5"] == round(result.exact["recall@5"], 4)


def test_several_negatives_and_hard_ones_train(tmp_path: Path) -> None:
    hard = {"distribution": "uniform", "sample_num": 1, "dynamic": True, "candidate_num": 3}
    run = make(tmp_path, train_neg_sample_args=hard)
    run.fit()
    easy = make(tmp_path)
    easy.fit()
    assert run.trainer.train_loss_dict[0] > easy.trainer.train_loss_dict[0]


def test_a_sequential_model_trains_and_is_evaluated(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "hidden_size": 16,
        "inner_size": 16,
        "n_layers": 1,
        "n_heads": 2,
        "MAX_ITEM_LIST_LENGTH": 8,
    }
    for mode in ("full", "uni5"):
        run = make(tmp_path, "SASRec", table=interactions(), eval_args={"mode": mode}, epochs=2, **given)
        score, _ = run.fit()
        assert 0 < score <= 1
