"""One quantity is found behind every door by the core's name and by the door's own."""

from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tests.engine.parts import make_config
from tests.nas import small
from tests.options.doors import Eye, through_core, through_recommender, through_steps
from tests.recsys.trainer import runs
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.callbacks import EarlyStoppingCallback, GradientNormMonitor
from treadle.checkpoint import Policy
from treadle.cli.runs import summarize_run
from treadle.config import LazyCall
from treadle.console.metric_names import EVALUATION_LOSSES, SAME, canonical_name, find_name
from treadle.engine import DefaultTrainer, hooks
from treadle.errors import UnknownMetricError
from treadle.optim.param_groups import get_default_optimizer_params
from treadle.runs.reader import Run, read_run
from treadle.search.trial.reports import ReportError, objective_values
from treadle.tools.report.payload import build_payload


@pytest.mark.parametrize(
    ("asked", "known", "found"),
    [
        ("train_loss", {"total_loss", "train_loss_epoch"}, "total_loss"),
        ("total_loss", {"total_loss", "train_loss"}, "total_loss"),
        ("total_loss", {"train_loss"}, "train_loss"),
        ("grad_norm", {"gradient_norm"}, "gradient_norm"),
        ("ndcg@10", {"valid_ndcg@10", "valid_score"}, "valid_ndcg@10"),
        ("valid_accuracy", {"accuracy"}, "accuracy"),
        ("accuracy", {"validation_accuracy"}, "validation_accuracy"),
        ("valid_accuracy", {"validation_accuracy"}, "validation_accuracy"),
        ("eval_loss_epoch", {"validation_loss"}, "validation_loss"),
        # In training a `loss` is a part of the total, and so it is not the loss of an evaluation.
        ("eval_loss_epoch", {"loss"}, "eval_loss_epoch"),
        ("acuracy", {"valid_accuracy"}, "acuracy"),
        ("train_accuracy", {"valid_accuracy"}, "train_accuracy"),
        ("evaluation_loss", {"eval_loss_epoch"}, "evaluation_loss"),
    ],
)
def test_a_metric_is_found_by_its_own_name_first_and_then_by_another_of_the_same_quantity(
    asked: str, known: set[str], found: str
) -> None:
    assert find_name(asked, known) == found


def test_among_the_metrics_of_evaluations_a_loss_is_that_of_the_evaluation() -> None:
    assert find_name("eval_loss_epoch", {"loss"}, evaluated=True) == "loss"
    assert find_name("loss", {"eval_loss_epoch"}, evaluated=True) == "eval_loss_epoch"
    assert canonical_name("valid_") == "valid_"
    named = [name for group in (*SAME[:1], EVALUATION_LOSSES, *SAME[2:]) for name in group]
    assert len(set(named)) == len(named)


class OtherEarlyStopping(EarlyStoppingCallback):
    """A trainer takes one callback of each class."""


def test_a_recommender_is_watched_by_the_name_of_the_metric_and_by_that_of_its_door(tmp_path: Path) -> None:
    watchers = [
        EarlyStoppingCallback(9, watch_metric="mrr@5", greater_is_better=True),
        OtherEarlyStopping(9, watch_metric="valid_mrr@5", greater_is_better=True),
    ]
    core = through_recommender(tmp_path, Eye(), *watchers, GradientNormMonitor(), evaluates=True)
    values = core.run_history.get_metric_values("valid_mrr@5")
    assert len(values) == 2
    assert core.run_history.get_metric_values("mrr@5") == values
    assert watchers[0].best_metric == watchers[1].best_metric == max(values)
    # The name of a door is found behind another one as well, and nothing is kept twice.
    assert core.storage.history("total_loss").values() == core.storage.history("train_loss").values()
    assert core.storage.history("grad_norm").latest() == core.storage.history("gradient_norm").latest()
    assert {"mrr@5", "total_loss", "grad_norm"}.isdisjoint(core.storage.names())
    with pytest.raises(UnknownMetricError, match="no metric 'mrr@9'"):
        core.run_history.get_latest_metric("mrr@9")


@pytest.mark.parametrize(("metric", "mode"), [("score", "max"), ("mrr@5", "max"), ("train_loss_epoch", "min")])
def test_the_plateau_of_a_recommender_is_one_of_the_largest_values_where_the_metric_is_better_large(
    metric: str, mode: str, tmp_path: Path
) -> None:
    run = runs.make(tmp_path, "BPR", scheduler="ReduceLROnPlateau", scheduler_metric=metric, epochs=1, embedding_size=4)
    run.fit()
    plateau = run.trainer._core.scheduler
    assert isinstance(plateau, ReduceLROnPlateau)
    assert (plateau.mode, plateau.last_epoch) == (mode, 1)


def test_the_hooks_and_callbacks_of_the_engine_take_the_names_of_the_core(tmp_path: Path) -> None:
    config = make_config(tmp_path, train_iter=4)
    config.optim.params = LazyCall(get_default_optimizer_params)(clip_grad_max_norm=1.0, clip_grad_norm_type=2.0)
    trainer, told = DefaultTrainer(config), iter([3.0, 1.0])
    best = hooks.BestCheckpointer(2, trainer.checkpointer, "eval_loss_epoch", "min")
    stop = hooks.EarlyStop("validation_loss", 9, "min")
    watcher, seen = EarlyStoppingCallback(9), LogNames()
    trainer.register_hooks([hooks.EvalHook(2, lambda: {"loss": next(told)}), best, stop, watcher, seen])
    trainer.train()
    # The hook that stops looks after steps only, and so not at the evaluation at the end.
    assert (best.best_metric, stop.state_dict()["best"], watcher.best_metric) == (1.0, -3.0, 1.0)
    assert trainer.core.run_history.get_metric_values("eval_loss_epoch") == [3.0, 1.0]
    storage = trainer.storage
    assert storage.history("train_loss").values() == storage.history("total_loss").values()
    assert storage.history("gradient_norm").values() == storage.history("grad_norm").values()
    assert {"train_loss", "total_loss", "gradient_norm", "grad_norm"} <= seen.names
    # What detectron2's programs read is kept as it was, once.
    assert storage.names().isdisjoint({"train_loss", "eval_loss_epoch", "gradient_norm"})


def test_a_hook_of_the_engine_still_refuses_a_metric_that_nobody_reports(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path, train_iter=2))
    trainer.register_hooks([hooks.EvalHook(1, lambda: {"Acc@1": 1.0}), hooks.EarlyStop("eval_loss_epoch")])
    with pytest.raises(UnknownMetricError, match=r"EarlyStop watches 'eval_loss_epoch', but .* \['Acc@1'\]"):
        trainer.train()


class LogNames(TrainerCallback):
    """Takes note of what logs are told."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_log(self, trainer: Any, scalars: Any = None, **kwargs: Any) -> None:
        self.names |= set(scalars)


@pytest.mark.parametrize(("through", "shown"), [(through_core, "eval_loss_epoch"), (through_steps, "val_loss")])
def test_the_best_checkpoint_of_a_trainer_is_kept_by_either_name(through: Any, shown: str, tmp_path: Path) -> None:
    for name in ("eval_loss_epoch", "validation_loss"):
        run = tmp_path / name
        options = {"run_dir": run, "checkpoints": Policy(best=name), "save_every": "1 epoch"}
        core = through(tmp_path, Eye(), GradientNormMonitor(), evaluates=True, **options)
        losses = core.run_history.get_metric_values("eval_loss_epoch")
        assert core.this_run.checkpointer.store.pointer("best") == 3 * (1 + losses.index(min(losses)))
        assert core.storage.history("grad_norm").values() == core.storage.history("gradient_norm").values()
        # The page and the list of runs find what it was judged by, whichever name it was asked for by.
        assert build_payload([read_run(run)])["runs"][0]["best"]["metric"] == shown
        facts = summarize_run(run, tmp_path)
        assert (facts.best_metric, facts.best) == (name, min(losses))


def test_what_an_architecture_search_reports_is_found_by_the_names_of_the_core() -> None:
    trainer = small.make(nas.DartsTrainer, num_epochs=1)
    trainer.fit()
    storage = trainer.core.storage
    assert storage.history("accuracy").values() == storage.history("validation_accuracy").values()
    assert storage.history("total_loss").values() == storage.history("train_loss").values()
    assert {"accuracy", "total_loss"}.isdisjoint(storage.names())


def test_the_objective_of_a_search_is_found_among_results_by_either_name() -> None:
    results = {"ndcg@10": 0.25, "gradient_norm": 2.0}
    assert objective_values(results, ["valid_ndcg@10"], "the result") == [0.25]
    assert objective_values(results, ["grad_norm", "ndcg@10"], "the result") == [2.0, 0.25]
    with pytest.raises(ReportError, match=r"add \['recall@10'\]"):
        objective_values(results, ["ndcg@10", "recall@10"], "the result")


def test_runs_of_several_doors_on_one_page_have_one_name_for_one_quantity() -> None:
    def rows(**named: float) -> list[dict[str, Any]]:
        return [{"step": step, **{name: value / step for name, value in named.items()}} for step in (1, 2, 3)]

    engine = Run("engine", Path("engine"), rows=rows(total_loss=3.0, grad_norm=2.0))
    core = Run("core", Path("core"), rows=rows(train_loss=1.0, gradient_norm=2.0, eval_loss_epoch=2.0, accuracy=0.5))
    watched = {"watched": {"metric": "accuracy", "greater_is_better": True}}
    recommender = Run("recommender", Path("recommender"), rows=rows(valid_accuracy=0.75), manifest=watched)
    payload = build_payload([engine, core, recommender])
    assert [sorted(run["series"]) for run in payload["runs"]] == [
        ["gradient_norm", "train_loss"],
        ["accuracy", "eval_loss_epoch", "gradient_norm", "train_loss"],
        ["accuracy"],
    ]
    assert [run["best"]["metric"] for run in payload["runs"]] == ["train_loss", "eval_loss_epoch", "accuracy"]
    assert [None if cell is None else cell["last"] for cell in payload["evaluations"]["accuracy"]] == [
        None,
        pytest.approx(0.5 / 3),
        0.25,
    ]
    # Alone on its page, a run has the names that its own files have.
    assert sorted(build_payload([engine])["runs"][0]["series"]) == ["grad_norm", "total_loss"]
