import math
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import EarlyStoppingCallback, SaveTrainingStateCallback
from treadle.errors import ConfigError


def epochs_with(make_trainer: Any, data: TensorDataset, scores: list[float], **kwargs: Any) -> int:
    """Return after how many evaluations a run of up to ten epochs with these scores stops."""
    trainer = make_trainer(EarlyStoppingCallback(watch_metric="score", **kwargs), scores=scores)
    trainer.train(data, num_epochs=len(scores), eval_dataset=data)
    return len(trainer.run_history.get_metric_values("score"))


def test_d33_early_stopping_counts_improvement_at_or_below_threshold_as_none(
    make_trainer: Any, data: TensorDataset
) -> None:
    assert epochs_with(make_trainer, data, [1.0, 0.75, 0.5], early_stopping_threshold=0.25) == 2
    assert epochs_with(make_trainer, data, [1.0, 0.625, 0.25], early_stopping_threshold=0.25) == 3


def test_d33_the_run_stops_after_as_many_values_as_patience_allows(make_trainer: Any, data: TensorDataset) -> None:
    assert epochs_with(make_trainer, data, [1.0, 2.0, 2.0, 2.0, 2.0], early_stopping_patience=3) == 4


def test_an_improvement_starts_the_count_anew(make_trainer: Any, data: TensorDataset) -> None:
    assert epochs_with(make_trainer, data, [1.0, 2.0, 0.5, 2.0, 2.0, 2.0], early_stopping_patience=2) == 5


def test_the_best_value_moves_only_on_an_improvement_above_the_threshold(
    make_trainer: Any, data: TensorDataset
) -> None:
    # Each value gains 0.25 on the one before; on the best of 1.0 the third has gained 0.5.
    scores = [1.0, 0.75, 0.5, 0.25]
    kwargs = {"early_stopping_threshold": 0.375, "early_stopping_patience": 2}
    assert epochs_with(make_trainer, data, scores, **kwargs) == 4


def test_greater_may_be_better(make_trainer: Any, data: TensorDataset) -> None:
    assert epochs_with(make_trainer, data, [1.0, 2.0, 3.0, 3.0, 9.0], greater_is_better=True) == 4


def test_nan_counts_as_no_improvement(make_trainer: Any, data: TensorDataset) -> None:
    assert epochs_with(make_trainer, data, [math.nan, math.nan, 1.0], early_stopping_patience=2) == 2
    assert epochs_with(make_trainer, data, [1.0, math.nan, 0.5, 0.25], early_stopping_patience=2) == 4


def test_the_reason_is_said_and_returned(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(EarlyStoppingCallback(watch_metric="score"), scores=[1.0, 2.0])
    reason = "score did not improve by more than 0.01 in 1 evaluation (best 1, now 2)"
    assert trainer.train(data, num_epochs=5, eval_dataset=data).stop_reason == reason
    said = "EarlyStopping takes the smallest score for the best; greater_is_better=True takes the largest"
    assert capsys.readouterr().out == f"{said}\n{reason}\n"


def test_the_run_still_ends_in_good_order(make_trainer: Any, data: TensorDataset) -> None:
    events: list[str] = []

    class Listening(TrainerCallback):
        def on_stop_training_error(self, trainer: Any, **kwargs: Any) -> None:
            events.append("stop")

        def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
            events.append("end")

    trainer = make_trainer(EarlyStoppingCallback(watch_metric="score"), Listening, scores=[1.0, 2.0])
    trainer.train(data, num_epochs=5, eval_dataset=data)
    assert events == ["stop", "end"]


def test_the_count_survives_a_restart(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    scores = [1.0, 2.0, 2.0, 2.0]

    def trainer_with(left: list[float]) -> tuple[EarlyStoppingCallback, Any]:
        stopping = EarlyStoppingCallback(watch_metric="score", early_stopping_patience=3)
        saving = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1)
        return stopping, make_trainer(stopping, saving, scores=left)

    _, trainer = trainer_with(scores)
    trainer.train(data, num_epochs=10, eval_dataset=data)
    resumed, trainer = trainer_with(scores[2:])
    trainer.train(data, num_epochs=10, eval_dataset=data, resume_from=tmp_path / "epoch_2")
    assert trainer.run_history.get_metric_values("score") == scores
    assert (resumed.best_metric, resumed.early_stopping_counter) == (1.0, 3)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"early_stopping_patience": 0}, "early_stopping_patience=0 must be at least 1"),
        ({"early_stopping_threshold": -1.0}, "early_stopping_threshold=-1.0 must be 0 or more"),
        ({"early_stopping_threshold": math.nan}, "early_stopping_threshold=nan must be 0 or more"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EarlyStoppingCallback(**kwargs)
    assert str(caught.value) == message
