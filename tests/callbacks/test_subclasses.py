"""Subclasses of the documented callbacks that neither call `super().__init__()` nor the event that opens a run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle import callbacks
from treadle.callbacks import (
    ConvertSyncBatchNormCallback,
    EarlyStoppingCallback,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    LogMetricsCallback,
    ModelEmaCallback,
    MoveModulesToDeviceCallback,
    PrintProgressCallback,
    ProfilerCallback,
    ProgressBarCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TerminateOnNaNCallback,
    WSDCheckpointCallback,
)
from treadle.errors import CallbackError, UnknownMetricError
from treadle.events import RunHistory
from treadle.schedules import WSDLrScheduler
from treadle.trainer import Trainer

DOCUMENTED: dict[type, dict[str, Any]] = {
    ConvertSyncBatchNormCallback: {},
    EarlyStoppingCallback: {},
    LimitBatchesCallback: {"num_batches": 3},
    LimitEvalStepsCallback: {"num_eval_steps": 2},
    LogMetricsCallback: {},
    ModelEmaCallback: {},
    MoveModulesToDeviceCallback: {},
    PrintProgressCallback: {},
    ProfilerCallback: {},
    ProgressBarCallback: {},
    SaveBestModelCallback: {},
    SaveTrainingStateCallback: {},
    StepBasedEvaluationCallback: {"eval_every_n_steps": 2},
    TerminateOnNaNCallback: {},
    WSDCheckpointCallback: {},
}
"""The callbacks that pytorch-accelerated documents and ours, and what a subclass has to set for those that need it."""


def silent(parent: type, **attributes: Any) -> Any:
    """Return a callback of a class that sets attributes instead of calling its parent, and starts runs by itself."""

    def build(self: Any) -> None:
        self.started: list[str] = []
        vars(self).update(attributes)

    def on_training_run_start(self: Any, trainer: Trainer, **kwargs: Any) -> None:
        self.started.append("training")

    def on_evaluation_run_start(self: Any, trainer: Trainer, **kwargs: Any) -> None:
        self.started.append("evaluation")

    events = {"on_training_run_start": on_training_run_start, "on_evaluation_run_start": on_evaluation_run_start}
    return type(f"Own{parent.__name__}", (parent,), {"__init__": build, **events})()


def test_every_callback_is_among_them() -> None:
    ours = {name for name in callbacks.__all__ if name.endswith("Callback")} - {"TrainerCallback", "Callback"}
    assert {kind.__name__ for kind in DOCUMENTED} == ours


@pytest.mark.parametrize("parent", DOCUMENTED, ids=lambda kind: kind.__name__)
def test_a_subclass_that_calls_no_parent_runs_and_evaluates(
    parent: type, make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    callback = silent(parent, **DOCUMENTED[parent])
    trainer = make_trainer(callback, run_dir=tmp_path)
    schedule = WSDLrScheduler.create_scheduler_fn() if parent is WSDCheckpointCallback else None
    trainer.train(data, 2, data, create_scheduler_fn=schedule)
    trainer.evaluate(data)
    assert callback.started == ["training", "evaluation"]


def test_the_logger_of_pytorch_accelerateds_documentation_gets_every_metric_of_every_run(
    make_trainer: Any, data: TensorDataset
) -> None:
    tags: list[dict[str, Any]] = []
    logged: list[dict[str, Any]] = []

    class AzureMLLogger(LogMetricsCallback):
        def __init__(self) -> None:
            self.uri = "somewhere"

        def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
            assert trainer.run_config is not None
            tags.append(trainer.run_config.to_dict())

        def log_metrics(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
            assert trainer.run_config is not None
            if trainer.run_config.is_world_process_zero:
                logged.append(metrics)

    trainer = make_trainer(AzureMLLogger)
    for keep in (False, False, True):
        trainer.train(data, 1, data, reset_run_history=not keep)
    assert [list(metrics) for metrics in logged] == [["train_loss_epoch"], ["eval_loss_epoch"]] * 3
    assert len(tags) == 3
    assert trainer.callback_handler.callbacks[0].uri == "somewhere"


def test_attributes_that_the_subclass_sets_are_those_of_the_parents_arguments(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    place, states = tmp_path / "own.pt", tmp_path / "states"
    best = silent(SaveBestModelCallback, save_path=place, watch_metric="score", greater_is_better=True)
    keeps = silent(SaveTrainingStateCallback, save_dir=states, save_every_n_epochs=1)
    trainer = make_trainer(best, keeps, scores=[1.0, 3.0, 2.0], run_dir=tmp_path / "run")
    trainer.train(data, 3, data)
    assert best.best_metric == 3.0
    assert place.exists()
    assert sorted(path.name for path in states.iterdir()) == ["epoch_1", "epoch_2", "epoch_3", "final"]


def test_patience_is_as_the_subclass_sets_it_and_each_run_begins_anew(make_trainer: Any, data: TensorDataset) -> None:
    stops = silent(EarlyStoppingCallback, watch_metric="score", early_stopping_patience=2)
    trainer = make_trainer(stops, scores=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert trainer.train(data, 9, data).epochs == 3
    assert trainer.train(data, 9, data).epochs == 3


def test_what_is_watched_and_never_evaluated_is_still_an_error(make_trainer: Any, data: TensorDataset) -> None:
    with pytest.raises(UnknownMetricError, match="this run has no evaluation data"):
        make_trainer(silent(EarlyStoppingCallback)).train(data, 1)


def test_the_average_of_such_a_subclass_is_that_of_its_parent(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    own, plain = (
        silent(ModelEmaCallback, decay=0.5, save_path=tmp_path / "a"),
        ModelEmaCallback(0.5, save_path=tmp_path / "b"),
    )
    for callback in (own, plain):
        make_trainer(callback).train(data, 2, data)
    assert torch.equal(own.ema_model.module.weight, plain.ema_model.module.weight)


@pytest.mark.parametrize(
    ("parent", "needed"),
    [
        (LimitBatchesCallback, "self.num_batches"),
        (LimitEvalStepsCallback, "self.num_eval_steps"),
        (StepBasedEvaluationCallback, "self.eval_every_n_steps"),
    ],
)
def test_a_subclass_that_leaves_out_what_its_parent_cannot_do_without_is_refused(
    parent: type, needed: str, make_trainer: Any
) -> None:
    said = (
        rf"Own{parent.__name__} neither calls super\(\).__init__\(\) nor sets {needed}, which {parent.__name__} needs"
    )
    with pytest.raises(CallbackError, match=said):
        make_trainer(silent(parent))


def test_a_subclass_that_calls_its_parent_keeps_names_of_its_own(make_trainer: Any, data: TensorDataset) -> None:
    class Own(ModelEmaCallback):
        def __init__(self) -> None:
            super().__init__(evaluate_during_training=False)
            # The parent has an argument of this name, for something else.
            self.callbacks = "mine"

    own = Own()
    make_trainer(own)
    assert own.callbacks == "mine"


def test_a_history_that_does_not_call_its_parent_works_too(data: TensorDataset) -> None:
    class Own(RunHistory):
        def __init__(self) -> None:
            self.name = "mine"

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, (), Own(), device="cpu")
    assert len(trainer.train(data, 2).history["train_loss_epoch"]) == 2
    assert trainer.run_history.current_epoch == 3
