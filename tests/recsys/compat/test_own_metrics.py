"""Metrics that are classes, and evaluations written for RecBole's `Collector` and `Evaluator`."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tests.recsys.trainer.runs import make
from treadle.errors import ConfigError
from treadle.recsys import Config, Trainer, compat
from treadle.recsys.evaluation import metrics as registry

with compat.recbole_names():
    import recbole.evaluator.metrics as recbole_metrics
    from recbole.data.dataloader import FullSortEvalDataLoader
    from recbole.evaluator import AbstractMetric, Collector, DataStruct, Evaluator, LossMetric, Register, TopkMetric
    from recbole.evaluator.metrics import NDCG, Recall
    from recbole.evaluator.register import cluster_info, metrics_dict
    from recbole.utils import EvaluatorType

RANKED = ["Recall", "MRR", "NDCG", "Hit", "Precision", "MAP", "GAUC", "ItemCoverage", "GiniIndex", "ShannonEntropy"]
RANKED += ["AveragePopularity", "TailPercentage"]
LABELLED = ["AUC", "LogLoss", "MAE", "RMSE"]


class TestedHit(TopkMetric):  # type: ignore[misc]
    """Whether a positive is among the first k, written as RecBole writes its own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    def calculate_metric(self, dataobject: Any) -> Any:
        pos_index, _ = self.used_info(dataobject)
        return self.topk_result("testedhit", self.metric_info(pos_index))

    def metric_info(self, pos_index: Any, pos_len: Any = None) -> Any:
        result = np.cumsum(pos_index, axis=1)
        return (result > 0).astype(int)


class TestedArea(AbstractMetric):  # type: ignore[misc]
    """The mean rank of positives among all items; the smaller, the better."""

    metric_type = EvaluatorType.RANKING
    metric_need: ClassVar[list[str]] = ["rec.meanrank", "data.num_users"]
    smaller = True

    def calculate_metric(self, dataobject: Any) -> Any:
        ranks, items, positives = dataobject.get("rec.meanrank").numpy().T
        assert (items > positives).all()
        assert dataobject.get("data.num_users") == 25
        return {"testedarea": float((ranks / positives).mean())}


class TestedItems(TopkMetric):  # type: ignore[misc]
    """How many training rows the recommended items have."""

    metric_need: ClassVar[list[str]] = ["rec.items", "data.count_items", "data.num_items"]

    def calculate_metric(self, dataobject: Any) -> Any:
        items, counts = dataobject.get("rec.items").numpy(), dataobject.get("data.count_items")
        values = np.array([[counts[item] for item in row] for row in items], dtype=float)
        return self.topk_result("testeditems", np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1))


class TestedError(LossMetric):  # type: ignore[misc]
    """The mean absolute error."""

    smaller = True

    def calculate_metric(self, dataobject: Any) -> Any:
        return self.output_metric("testederror", dataobject)

    def metric_info(self, preds: Any, trues: Any) -> Any:
        return np.abs(preds - trues).mean()


for metric in (TestedHit, TestedArea, TestedItems, TestedError):
    metric.__test__ = False  # pytest takes what begins with Test for tests


@pytest.mark.parametrize("mode", ["full", "uni20"])
def test_a_metric_of_ones_own_is_known_by_its_name_and_decides(mode: str, tmp_path: Path) -> None:
    given = {"metrics": ["Hit", "TestedHit", "AveragePopularity", "TestedItems", "TestedArea"], "topk": [3, 5]}
    run = make(tmp_path, valid_metric="TestedHit@5", metric_decimal_place=6, eval_args={"mode": mode}, **given)
    score, result = run.fit()
    assert list(result)[:4] == ["hit@3", "hit@5", "testedhit@3", "testedhit@5"]
    assert result["testedhit@3"] == result["hit@3"]
    assert score == result["testedhit@5"] == result["hit@5"]
    assert result["testeditems@5"] == pytest.approx(result["averagepopularity@5"], abs=1e-5)
    assert 1 <= result["testedarea"] <= 30
    assert run.trainer.evaluate(run.test)["testedhit@5"] > 0


def test_a_smaller_value_of_ones_own_metric_can_be_the_better_one(tmp_path: Path) -> None:
    run = make(tmp_path, metrics=["TestedArea"], valid_metric="TestedArea")
    assert run.trainer.valid_metric_bigger is False
    score, _ = run.fit()
    assert score == min(run.trainer.valid_scores())


def test_a_metric_of_labels_is_calculated_over_all_rows(tmp_path: Path) -> None:
    given: dict[str, Any] = {"threshold": {"rating": 3}, "load_col": {"inter": "*"}, "epochs": 1}
    run = make(tmp_path, "FM", metrics=["MAE", "TestedError"], valid_metric="TestedError", embedding_size=4, **given)
    _, result = run.fit()
    assert result["testederror"] == pytest.approx(result["mae"], abs=1e-4)


def test_what_a_metric_needs_and_returns_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric 'Scored' needs 'rec\.score'; a metric of .* has \['rec\.topk', "):

        class Scored(TopkMetric):  # type: ignore[misc]
            metric_need: ClassVar[list[str]] = ["rec.score"]

            def calculate_metric(self, dataobject: Any) -> Any: ...

    with pytest.raises(ConfigError, match="metric 'Bare' does not say with metric_need what it is calculated from"):

        class Bare(AbstractMetric):  # type: ignore[misc]
            def calculate_metric(self, dataobject: Any) -> Any: ...

    with pytest.raises(ConfigError, match="there is a metric 'NDCG' already; choose another name, or replace=True"):
        type("NDCG", (TestedHit,), {})
    type("Misnamed", (TestedHit,), {})
    run = make(tmp_path, metrics=["Misnamed"], valid_metric="Misnamed@5")
    with pytest.raises(ConfigError, match=r"metric 'Misnamed' returned \['testedhit@5'\], and is known as \['misnamed"):
        run.fit()


def test_a_metric_can_take_the_place_of_one_that_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_metrics", dict(registry._metrics))

    class MRR(NDCG, replace=True):  # type: ignore[misc,call-arg]
        def calculate_metric(self, dataobject: Any) -> Any:
            return self.topk_result("mrr", self.metric_info(*self.used_info(dataobject)))

    _, result = make(tmp_path, metrics=["NDCG", "MRR"]).fit()
    assert result["mrr@5"] == result["ndcg@5"]


# Evaluations by hand ------------------------------------------------------------------------------------------


class ByBatches(Trainer):
    """Evaluates batch by batch, as RecBole's own trainer does."""

    @torch.no_grad()
    def evaluate(
        self, eval_data: Any, load_best_model: bool = True, model_file: Any = None, show_progress: bool = False
    ) -> Any:
        self.model.eval()
        if isinstance(eval_data, FullSortEvalDataLoader):
            eval_func: Any = self._full_sort_batch_eval
            if self.item_tensor is None:
                self.item_tensor = eval_data._dataset.get_item_feature().to(self.device)
        else:
            eval_func = self._neg_sample_batch_eval
        if self.config["eval_type"] == EvaluatorType.RANKING:
            self.tot_item_num = eval_data._dataset.item_num
        for batched_data in eval_data:
            interaction, scores, positive_u, positive_i = eval_func(batched_data)
            self.eval_collector.eval_batch_collect(scores, interaction, positive_u, positive_i)
        self.eval_collector.model_collect(self.model)
        return self.evaluator.evaluate(self.eval_collector.get_data_struct())


@pytest.mark.parametrize("mode", ["full", "uni5"])
def test_an_evaluation_by_batches_finds_what_the_trainer_finds(mode: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"metrics": [*RANKED, "TestedHit"], "topk": [3, 5], "eval_args": {"mode": mode}}
    plain, own = make(tmp_path, **given), make(tmp_path, kind=ByBatches, **given)
    expected, found = plain.fit(saved=False), own.fit(saved=False)
    assert list(found[1]) == list(expected[1])
    assert dict(found[1]) == pytest.approx(dict(expected[1]), abs=1.01e-4)
    assert own.trainer.train_loss_dict == plain.trainer.train_loss_dict


def test_an_evaluation_of_labels_by_batches_finds_what_the_trainer_finds(tmp_path: Path) -> None:
    given: dict[str, Any] = {"threshold": {"rating": 3}, "load_col": {"inter": "*"}, "embedding_size": 4, "epochs": 2}
    given |= {"metrics": LABELLED, "valid_metric": "AUC"}
    plain, own = make(tmp_path, "FM", **given), make(tmp_path, "FM", kind=ByBatches, **given)
    assert dict(own.fit(saved=False)[1]) == pytest.approx(dict(plain.fit(saved=False)[1]), abs=1.01e-4)


def test_a_collector_collects_what_the_register_names(tmp_path: Path) -> None:
    config = Config("BPR", "toy", config_dict={"metrics": ["Recall", "NDCG"], "topk": [2], "valid_metric": "NDCG@2"})
    register = Register(config)
    assert register.has_metric("recall")
    assert (register.need("rec.topk"), register.need("rec.items")) == (True, False)
    collector = Collector(config)
    scores = torch.tensor([[-torch.inf, 0.1, 0.9, 0.5], [-torch.inf, 0.3, -torch.inf, -torch.inf]])
    collector.eval_batch_collect(scores, None, torch.tensor([0, 0, 1]), torch.tensor([3, 1, 2]))
    struct = collector.get_data_struct()
    assert struct.get("rec.topk").tolist() == [[0, 1, 2], [0, 0, 1]]
    assert "rec.topk" not in collector.data_struct
    result = Evaluator(config).evaluate(struct)
    gain = 1 / np.log2(3) / (1 + 1 / np.log2(3)) / 2
    assert result == {"recall@2": 0.25, "ndcg@2": round(gain, 4)}
    with pytest.raises(IndexError, match=r"'rec\.items' is not collected; name it in metric_need"):
        struct.get("rec.items")


def test_the_metrics_are_classes_that_can_be_asked_and_built_upon() -> None:
    config = Config("BPR", "toy")
    hits = np.array([[True, False, True], [False, False, False]])
    assert Recall(config).metric_info(hits, np.array([2, 1])).tolist() == [[0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]
    smaller, needs, kinds, classes = cluster_info("recbole.evaluator.metrics")
    assert "giniindex" in smaller
    assert needs["recall"] == ["rec.topk"]
    assert kinds["auc"] is EvaluatorType.VALUE
    assert classes["ndcg"] is metrics_dict["ndcg"] is NDCG is recbole_metrics.NDCG
    assert "testedhit" in metrics_dict
    with pytest.raises(KeyError):
        metrics_dict["nothing"]


def test_a_data_struct_keeps_things_by_name() -> None:
    struct = DataStruct()
    struct.update_tensor("rec.items", torch.tensor([[1]]))
    struct.update_tensor("rec.items", torch.tensor([[2]]))
    struct["data.num_items"] = 3
    assert struct.get("rec.items").tolist() == [[1], [2]]
    assert "data.num_items" in struct
    with pytest.raises(ValueError, match=r"'data\.num_items' is no tensor"):
        struct.update_tensor("data.num_items", torch.zeros(1))
