"""What `evaluate` measures is returned whole, and kept apart from the metrics of training."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import LogMetricsCallback, ModelEmaCallback, TerminateOnNaNCallback
from treadle.errors import NonFiniteError
from treadle.events import InMemoryRunHistory, RunHistory
from treadle.trainer import Trainer


class Counting(Trainer):
    """Records a metric of its own in every evaluation: how many there were before."""

    counted = 0

    def eval_epoch_end(self) -> None:
        self.run_history.update_metric("count", self.counted)
        self.counted += 1


class Reporting(TrainerCallback):
    """Records a metric and reads it again, as callbacks of pytorch-accelerated do."""

    def __init__(self) -> None:
        self.read: list[Any] = []

    def on_eval_epoch_end(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
        trainer.run_history.update_metric("score", torch.tensor(float(len(self.read))))
        self.read.append(trainer.run_history.get_latest_metric("score"))


def kept(trainer: Any) -> dict[str, list[Any]]:
    return {name: trainer.run_history.get_metric_values(name) for name in trainer.run_history.get_metric_names()}


def test_evaluate_returns_what_verbs_and_callbacks_recorded_and_leaves_the_metrics_of_training_alone(
    make_trainer: Any, data: TensorDataset
) -> None:
    reporting = Reporting()
    trainer = make_trainer(reporting, kind=Counting)
    trainer.train(data, 2, eval_dataset=data)
    before = kept(trainer)
    assert before["count"] == [0, 1]
    results = trainer.evaluate(data)
    assert results == {"evaluation_loss": results["evaluation_loss"], "count": 2, "score": 2.0}
    assert reporting.read == [0.0, 1.0, 2.0]
    assert kept(trainer) == before | {
        f"evaluation_{name.removeprefix('evaluation_')}": [results[name]] for name in results
    }


def test_a_metric_of_training_whose_name_is_like_one_of_evaluations_gets_no_value_from_them(
    make_trainer: Any, data: TensorDataset
) -> None:
    class Named(Trainer):
        def eval_epoch_end(self) -> None:
            self.run_history.update_metric("evaluation_f1", 0.5)

    trainer = make_trainer(kind=Named)
    trainer.train(data, 2, eval_dataset=data)
    assert trainer.evaluate(data)["evaluation_f1"] == 0.5
    assert trainer.run_history.get_metric_values("evaluation_f1") == [0.5, 0.5]


def test_an_evaluation_within_a_run_adds_nothing_to_its_history(make_trainer: Any, data: TensorDataset) -> None:
    class Tests(TrainerCallback):
        def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.evaluate(data)

    trainer = make_trainer(Tests, kind=Counting)
    history = trainer.train(data, 2, eval_dataset=data).history
    assert history["count"] == [0, 2]
    assert history["evaluation_count"] == [1, 3]


def test_the_average_of_the_weights_is_evaluated_apart_from_training_too(
    make_trainer: Any, data: TensorDataset, tmp_path: Any
) -> None:
    trainer = make_trainer(ModelEmaCallback(save_path=tmp_path / "ema.pt"))
    trainer.train(data, 2, eval_dataset=data)
    before = kept(trainer)
    results = trainer.evaluate(data)
    assert results.keys() == {"evaluation_loss", "ema_model_evaluation_loss"}
    assert {name: values for name, values in kept(trainer).items() if name in before} == before


def test_a_prefix_that_was_set_stays_in_force_and_is_not_in_what_is_returned(
    make_trainer: Any, data: TensorDataset
) -> None:
    trainer = make_trainer(kind=Counting)
    trainer.run_history.set_metric_name_prefix("b_")
    results = trainer.evaluate(data)
    assert results.keys() == {"evaluation_loss", "count"}
    assert trainer.run_history.get_metric_names() == {"b_evaluation_loss", "b_evaluation_count"}
    assert trainer.run_history.metric_name_prefix == "b_"


def test_after_an_evaluation_that_failed_the_history_is_the_trainers_own(
    make_trainer: Any, data: TensorDataset
) -> None:
    class Fails(TrainerCallback):
        def on_evaluation_run_end(self, trainer: Any, **kwargs: Any) -> None:
            raise RuntimeError("too late")

    trainer = make_trainer(Fails, kind=Counting)
    history = trainer.run_history
    history.set_metric_name_prefix("b_")
    with pytest.raises(RuntimeError, match="too late"):
        trainer.evaluate(data)
    assert trainer.run_history is history
    assert history.metric_name_prefix == "b_"


def test_metrics_can_be_forgotten_within_an_evaluation(make_trainer: Any, data: TensorDataset) -> None:
    class Forgets(TrainerCallback):
        def on_eval_epoch_end(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
            if not trainer.run_history.in_training:
                trainer.run_history.delete_metric("count")

        def on_evaluation_run_end(self, trainer: Any, **kwargs: Any) -> None:
            assert trainer.run_history.current_epoch == 2
            trainer.run_history.reset()

    trainer = make_trainer(Forgets, kind=Counting)
    trainer.train(data, 1, eval_dataset=data)
    before = kept(trainer)
    assert trainer.evaluate(data) == {}
    assert kept(trainer) == before


def test_a_history_of_ones_own_keeps_evaluations_apart_and_can_do_what_it_can_do(
    make_trainer: Any, data: TensorDataset
) -> None:
    class Listed(RunHistory):
        """Keeps its values elsewhere, and can do more than others."""

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[str, Any]] = []

        def get_metric_names(self) -> set[str]:
            return {name for name, _ in self.rows}

        def get_metric_values(self, metric_name: str) -> list[Any]:
            return [value for name, value in self.rows if name == metric_name]

        def get_latest_metric(self, metric_name: str) -> Any:
            return self.get_metric_values(metric_name)[-1]

        def update_metric(self, metric_name: str, metric_value: Any) -> None:
            self.rows.append((metric_name, metric_value))

        def describe(self) -> str:
            return f"{len(self.rows)} rows"

    class Asks(TrainerCallback):
        def on_evaluation_run_end(self, trainer: Any, **kwargs: Any) -> None:
            assert trainer.run_history.describe() == "2 rows"

    trainer = make_trainer(Asks, kind=Counting, run_history=Listed())
    results = trainer.evaluate(data)
    assert results.keys() == {"evaluation_loss", "count"}
    assert trainer.run_history.get_metric_names() == {"evaluation_loss", "evaluation_count"}


def test_the_loss_of_training_is_still_watched_after_an_evaluation_within_the_run(
    make_trainer: Any, data: TensorDataset
) -> None:
    class TestsFirst(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            trainer.evaluate(data)

    spoilt = TensorDataset(data.tensors[0] * float("inf"), data.tensors[1])
    trainer = make_trainer(TestsFirst, TerminateOnNaNCallback)
    with pytest.raises(NonFiniteError, match="eval_loss_epoch is nan"):
        trainer.train(data, 1, eval_dataset=spoilt)


def test_the_log_shows_the_metrics_of_an_evaluation_once(make_trainer: Any, data: TensorDataset) -> None:
    class Collecting(LogMetricsCallback):
        def __init__(self) -> None:
            super().__init__()
            self.logged: list[list[str]] = []

        def log_metrics(self, trainer: Any, metrics: dict[str, Any]) -> None:
            self.logged.append(list(metrics))

    log = Collecting()
    trainer = make_trainer(log, kind=Counting, run_history=InMemoryRunHistory())
    trainer.train(data, 1, eval_dataset=data)
    trainer.evaluate(data)
    assert log.logged[-1] == ["evaluation_count", "evaluation_loss"]


class Sizes(TrainerCallback):
    """Takes note of how large the batches of evaluations are."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_eval_step_end(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        self.seen.append(len(batch[0]))


@pytest.mark.parametrize("ready", [False, True])
def test_an_evaluation_has_the_batch_size_of_the_training_unless_it_is_given_one(
    make_trainer: Any, data: TensorDataset, ready: bool
) -> None:
    sizes = Sizes()
    trainer = make_trainer(sizes)

    def sizes_of(**given: Any) -> set[int]:
        sizes.seen.clear()
        trainer.evaluate(data, **given)
        return set(sizes.seen)

    assert max(sizes_of()) == 8
    if ready:
        trainer.train(DataLoader(data, batch_size=12, shuffle=True), 1)
    else:
        trainer.train(data, 1, per_device_batch_size=12)
    assert max(sizes_of()) == 12
    assert max(sizes_of()) == 12, "after an evaluation as well"
    assert max(sizes_of(per_device_batch_size=5)) == 5
    assert len(trainer.predict(data)) == len(data)
