"""Evaluation: when it happens, what it sees, what it leaves as it was, and where its numbers go."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.parts import Classifier, Points, make_config
from treadle.config import LazyCall
from treadle.console.lines import number
from treadle.engine import DatasetEvaluator, DefaultTrainer, HookBase, TrainerBase, hooks, inference_on_dataset
from treadle.engine.config.builders import TestLoaders
from treadle.engine.evaluation import ClsEvaluator, DatasetEvaluators, PPLEvaluator
from treadle.errors import ConfigError, DataError, UnknownMetricError


class Empty(TrainerBase):
    def run_step(self) -> None:
        torch.rand(())


@pytest.mark.parametrize(
    ("period", "iterations", "expected"),
    [(15, 30, 2), (15, 31, 3), (0, 20, 1), (1, 3, 3), (7, 6, 1)],
)
def test_b27_evaluation_runs_every_period_and_once_at_the_end(period: int, iterations: int, expected: int) -> None:
    evaluated: list[int] = []
    trainer = Empty()
    trainer.register_hooks([hooks.EvalHook(period, lambda: evaluated.append(trainer.iter))])
    trainer.train(0, iterations)
    assert len(evaluated) == expected
    assert expected == ((iterations - 1) // period if period else 0) + 1


def test_b27_evaluation_moves_no_random_generator_of_the_training() -> None:
    def drawn(evaluation: Any) -> float:
        trainer = Empty()
        trainer.register_hooks([hooks.EvalHook(1, evaluation)])
        torch.manual_seed(0)
        trainer.train(0, 3)
        return torch.rand(()).item()

    assert drawn(lambda: None) == drawn(lambda: {"a": torch.rand(3).sum().item()})


def test_each_of_two_evaluations_is_made_at_the_end() -> None:
    evaluated: list[str] = []
    trainer = Empty()
    names = ("first", "second")
    trainer.register_hooks([hooks.EvalHook(2, lambda name=name: evaluated.append(name)) for name in names])
    trainer.train(0, 4)
    assert evaluated == ["first", "second"] * 2


def test_b27_a_period_below_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="eval_period=-1 must be 0, for the end only, or a number of iterations"):
        hooks.EvalHook(-1, lambda: None)


def results_put(results: Any) -> dict[str, Any]:
    trainer = Empty()
    trainer.register_hooks([hooks.EvalHook(0, lambda: results)])
    trainer.train(0, 1)
    storage = trainer.storage
    assert not any(storage.smoothing_hints()[name] for name in storage.latest())
    return storage.latest()


def test_b28_nested_results_are_reported_by_their_path_and_not_smoothed() -> None:
    assert results_put({"a": {"b": {"c": 1.5}}, "d": 2}) == {"a/b/c": (1.5, 1), "d": (2, 1)}


def test_b28_a_result_that_is_no_number_is_named() -> None:
    with pytest.raises(ConfigError, match="the result 'a/b' is a str"):
        results_put({"a": {"b": "good"}})
    with pytest.raises(ConfigError, match="the evaluation returned a list; return a dict of numbers"):
        results_put([1.0])


def test_b29_test_sets_of_one_class_keep_their_names(tmp_path: Path) -> None:
    made = make_config(tmp_path, evaluation={"enabled": True, "eval_period": 0})
    made.dataloader.test = {"easy": LazyCall(Points)(count=8), "hard": LazyCall(Points)(count=12, seed=5)}
    results = DefaultTrainer(made).train()
    assert set(results) == {"easy", "hard"}
    assert '"easy/Acc@1"' in (tmp_path / "metrics.json").read_text()
    assert '"hard/Acc@1"' in (tmp_path / "metrics.json").read_text()


def test_b29_test_sets_in_a_list_get_their_class_names_and_numbers(tmp_path: Path) -> None:
    made = make_config(tmp_path, evaluation={"enabled": True, "eval_period": 0})
    made.dataloader.test = [LazyCall(Points)(count=8), LazyCall(Points)(count=12, seed=5)]
    assert set(DefaultTrainer(made).train()) == {"Points", "Points_2"}


def test_b29_loaders_of_validation_and_test_that_come_with_the_training_data_are_evaluated(tmp_path: Path) -> None:
    class Three(DefaultTrainer):
        @classmethod
        def build_train_loader(cls, cfg: Any, tokenizer: Any = None) -> Any:
            loaders = [torch.utils.data.DataLoader(Points(16, seed), batch_size=8) for seed in range(3)]
            return tuple(loaders)

    made = make_config(tmp_path, evaluation={"enabled": True, "eval_period": 0})
    assert set(Three(made).train()) == {"validation", "test", "Points"}


class Seen(DatasetEvaluator):
    """Notes which samples it was given."""

    def reset(self) -> None:
        self.samples: list[float] = []

    def process(self, inputs: Any, outputs: Any) -> None:
        self.samples += inputs["inputs"][:, 0].tolist()

    def evaluate(self) -> dict[str, Any]:
        return {"samples": float(len(self.samples))}


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_b30_every_sample_is_evaluated_once_and_a_short_batch_is_not_padded(count: int) -> None:
    data, evaluator = Points(count), Seen()
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    results = inference_on_dataset(Classifier(), loader, evaluator=evaluator)
    assert evaluator.samples == data.points[:, 0].tolist()
    assert results == {"samples": float(count)}


def test_b30_eval_iter_caps_the_batches() -> None:
    evaluator = Seen()
    inference_on_dataset(Classifier(), Points(20), 4, eval_iter=2, evaluator=evaluator)
    assert len(evaluator.samples) == 8


class Failing(DatasetEvaluator):
    def process(self, inputs: Any, outputs: Any) -> None:
        raise ValueError("no")


def test_b31_after_an_error_in_evaluation_every_module_has_its_mode_back() -> None:
    model = Classifier()
    model.body.eval()
    with pytest.raises(ValueError, match="no"):
        inference_on_dataset(model, Points(4), 4, evaluator=Failing())
    assert model.training
    assert not model.body.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("period", [3, 100])
def test_b32_the_final_evaluation_is_in_every_writer_at_iteration_max_iter(tmp_path: Path, period: int) -> None:
    written: list[Any] = []

    class Noting:
        closed = False

        def write(self) -> None:
            assert not self.closed
            written.append(trainer.storage.latest().get("Acc@1"))

        def close(self) -> None:
            self.closed = True

    class Own(DefaultTrainer):
        def build_writers(self) -> list[Any]:
            return [Noting(), *super().build_writers()]

    trainer = Own(make_config(tmp_path, log_period=period, evaluation={"enabled": True, "eval_period": 0}))
    results = trainer.train()
    assert written[-1] == (results["Acc@1"], 10)
    last = json.loads((tmp_path / "metrics.json").read_text().splitlines()[-1])
    assert last == {"Acc@1": results["Acc@1"], "Acc@5": results["Acc@5"], "iteration": 10}


def test_a_writer_that_fails_hides_no_other() -> None:
    closed: list[str] = []

    class Broken:
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self) -> None:
            raise OSError(f"{self.name} is full")

        def close(self) -> None:
            closed.append(self.name)

    trainer = Empty()
    trainer.register_hooks([hooks.PeriodicWriter([Broken("a"), Broken("b")], period=100)])
    trainer.max_iter = 1
    hook: HookBase = trainer._hooks[0]
    with pytest.raises(OSError, match="a is full") as caught:
        hook.after_train()
    assert "b is full" in caught.value.__notes__[0]
    assert closed == ["a", "b"]
    with pytest.raises(TypeError, match=r"is no writer: it has no write\(\); derive its class from EventWriter"):
        hooks.PeriodicWriter([object()])
    with pytest.raises(ConfigError, match=r"PeriodicWriter\(period=0\) must be at least 1"):
        hooks.PeriodicWriter([], 0)


def test_accuracy_is_the_share_of_labels_among_the_highest_scores() -> None:
    evaluator = ClsEvaluator(topk=(1, 2))
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    evaluator.process({"labels": torch.tensor([0, 1, 2, 2])}, {"prediction_scores": scores})
    assert evaluator.evaluate() == {"Acc@1": 50.0, "Acc@2": 75.0}
    evaluator.reset()
    evaluator.process((None, torch.tensor([0])), scores[:1])
    assert evaluator.evaluate() == {"Acc@1": 100.0, "Acc@2": 100.0}


@pytest.mark.parametrize("topk", ["maybe", (1, 0), (True,), 2.5, ()])
def test_accuracy_says_what_its_numbers_of_scores_must_be(topk: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ClsEvaluator(topk=topk)
    assert str(caught.value) == f"ClsEvaluator(topk={topk!r}): give whole numbers from 1 up, such as (1, 5)"


def test_accuracy_takes_one_number_of_scores() -> None:
    assert ClsEvaluator(topk=3).topk == (3,)


def test_accuracy_without_scores_or_samples_says_what_is_missing() -> None:
    evaluator = ClsEvaluator()
    with pytest.raises(DataError, match=r"the model returned \['loss'\] in evaluation; return its scores as one of"):
        evaluator.process({"labels": torch.zeros(1)}, {"loss": torch.zeros(())})
    with pytest.raises(DataError, match="the model returned a list in evaluation"):
        evaluator.process({"labels": torch.zeros(1)}, [])
    with pytest.raises(DataError, match="ClsEvaluator saw no sample"):
        evaluator.evaluate()


def test_perplexity_is_that_of_the_mean_over_all_tokens() -> None:
    evaluator = PPLEvaluator()
    loss, other = torch.tensor(1.0), torch.tensor(4.0)
    evaluator.process({"x": torch.zeros(1, 3)}, {"lm_loss": loss, "num_items_in_batch": torch.tensor(3)})
    evaluator.process({"x": torch.zeros(1, 3)}, {"lm_loss": other, "num_items_in_batch": torch.tensor(1)})
    mean = (3 * 1.0 + 4.0) / 4
    assert evaluator.evaluate() == pytest.approx({"lm_loss": mean, "lm_loss_PPL": math.exp(mean)})
    evaluator.reset()
    evaluator.process({"x": torch.zeros(2)}, {"loss": torch.tensor(1e6)})
    assert math.isfinite(evaluator.evaluate()["loss_PPL"])
    with pytest.raises(DataError, match="PPLEvaluator needs losses"):
        evaluator.process({"x": torch.zeros(2)}, {"scores": loss})


def test_several_evaluators_are_one_unless_their_names_clash() -> None:
    class Named(DatasetEvaluator):
        def __init__(self, name: str) -> None:
            self.name = name

        def evaluate(self) -> dict[str, Any]:
            return {self.name: 1.0}

    joined = DatasetEvaluators([Named("a"), Named("b")])
    assert inference_on_dataset(Classifier(), Points(4), evaluator=joined) == {"a": 1.0, "b": 1.0}
    with pytest.raises(ConfigError, match=r"two evaluators report \['a'\]; rename"):
        DatasetEvaluators([Named("a"), Named("a")]).evaluate()
    with pytest.raises(ConfigError, match=r"evaluators that are local, \['ClsEvaluator'\], cannot be joined"):
        DatasetEvaluators([Named("a"), ClsEvaluator()])


def test_names_of_loaders_are_made_unique() -> None:
    loaders = TestLoaders({"a": 1})
    loaders.add("a", 2)
    loaders.add("a", 3)
    assert loaders.names == ["a", "a_2", "a_3"]


def test_evaluation_of_a_graph_uses_the_compiled_model(tmp_path: Path) -> None:
    made = make_config(tmp_path, train_iter=2, evaluation={"enabled": True, "eval_period": 0})
    made.graph = {"enabled": True, "backend": "eager"}
    trainer = DefaultTrainer(made)
    trainer.train()
    assert trainer.graph_eval is not None
    assert trainer.graph_eval.num_shapes == 2  # full batches of 8 and the last of 4


def test_evaluation_runs_in_the_precision_of_the_run(tmp_path: Path) -> None:
    types: set[torch.dtype] = set()

    class Typed(Classifier):
        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            outputs = super().forward(inputs, labels)
            if not self.training:
                types.add(outputs["prediction_scores"].dtype)
            return outputs

    class Own(DefaultTrainer):
        @classmethod
        def build_model(cls, cfg: Any) -> nn.Module:
            return Typed()

    made = make_config(tmp_path, train_iter=1, amp={"enabled": True}, evaluation={"enabled": True, "eval_period": 0})
    Own(made).train()
    assert types == {torch.bfloat16}


# What is watched ------------------------------------------------------------------------------------------------


def watching(*watchers: Any, reported: Any) -> Empty:
    trainer = Empty()
    trainer.register_hooks([hooks.EvalHook(2, lambda: reported), *watchers])
    return trainer


@pytest.mark.parametrize(
    ("watcher", "told"),
    [
        (
            lambda: hooks.BestCheckpointer(2, None, "valid/ppl"),
            "BestCheckpointer watches 'valid/ppl', but the evaluation reported ['valid/PPL', 'valid/loss']; set "
            "train.evaluation.eval_metric to one of these; did you mean 'valid/PPL'?",
        ),
        (
            lambda: hooks.EarlyStop("valid/ppl"),
            "EarlyStop watches 'valid/ppl', but the evaluation reported ['valid/PPL', 'valid/loss']; set val_metric= "
            "to one of these; did you mean 'valid/PPL'?",
        ),
    ],
)
def test_a_metric_that_is_not_reported_ends_the_run_at_the_first_evaluation(watcher: Any, told: str) -> None:
    trainer = watching(watcher(), reported={"valid": {"loss": 1.0, "PPL": 2.7}})
    with pytest.raises(UnknownMetricError) as raised:
        trainer.train(0, 10)
    assert str(raised.value) == told
    assert trainer.iter == 1


def test_a_usual_metric_that_is_not_reported_is_said_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    trainer = watching(hooks.BestCheckpointer(2, None, "Acc@1", chosen=False), reported={"loss": 1.0})
    trainer.train(0, 3)
    assert "BestCheckpointer watches 'Acc@1', but the evaluation reported ['loss']" in caplog.text


def test_an_evaluation_that_reports_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    watching(hooks.BestCheckpointer(2, None, "score"), reported={}).train(0, 3)
    assert "BestCheckpointer watches 'score', and the evaluation reported no number" in caplog.text


def test_what_was_found_is_logged_also_outside_of_a_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # As train_net.py does with --eval-only.
    cfg = DefaultTrainer(make_config(tmp_path)).cfg
    with caplog.at_level(logging.INFO):
        results = DefaultTrainer.test(cfg, [Points(count=20, seed=1)], Classifier())
    assert f"evaluation  Points  Acc@1 {number(results['Acc@1'])}  Acc@5 {number(results['Acc@5'])}\n" in caplog.text
