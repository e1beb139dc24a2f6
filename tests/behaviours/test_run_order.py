"""What a run does and in which order; the numbers are those of the behaviours kept from pytorch-accelerated."""

from functools import partial
from typing import Any

import pytest
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from treadle.callback import EVENTS, TrainerCallback
from treadle.errors import StopTrainingError

SET_UP = [
    "create_train_dataloader",
    "create_eval_dataloader",
    "_prepare_model_and_optimizer",
    "_create_run_config",
    "create_scheduler",
    "training_run_start",
    "on_training_run_start",
]
MICRO_BATCH = ["on_train_step_start", "calculate_train_batch_loss", "on_train_step_end", "backward_step"]
APPLY = ["_clip_gradients", "optimizer_step", "scheduler_step", "optimizer_zero_grad", "on_update_end"]
STEP = ["on_update_start", *MICRO_BATCH, *APPLY]
EVAL_STEP = ["on_eval_step_start", "calculate_eval_batch_loss", "on_eval_step_end"]
EVAL = ["eval_epoch_start", "on_eval_epoch_start", *EVAL_STEP * 3, "eval_epoch_end", "on_eval_epoch_end"]
EPOCH_START = ["train_epoch_start", "on_train_epoch_start"]
EPOCH_END = ["train_epoch_end", "on_log", "on_train_epoch_end"]
RUN_EPOCH_END = ["training_run_epoch_end", "on_training_run_epoch_end"]
RUN_END = ["training_run_end", "on_training_run_end"]


def test_a_run_of_two_epochs_with_evaluation_goes_in_exactly_this_order(
    recording_trainer: Any, data: TensorDataset
) -> None:
    """`on_update_start`, `on_update_end` and `on_log` are additions; all else stands where it stood."""
    schedule = partial(StepLR, step_size=10)
    recording_trainer.train(data, 2, eval_dataset=data, create_scheduler_fn=schedule, log_every=2)
    first = [*EPOCH_START, *STEP, *STEP, "on_log", *STEP, *EPOCH_END, *EVAL, *RUN_EPOCH_END]
    second = [*EPOCH_START, *STEP, "on_log", *STEP, *STEP, "on_log", *EPOCH_END, *EVAL, *RUN_EPOCH_END]
    assert recording_trainer.calls == ["on_init_end", *SET_UP, *first, *second, *RUN_END]


def test_the_micro_batches_of_a_window_come_between_one_update_start_and_one_update_end(
    recording_trainer: Any, data: TensorDataset
) -> None:
    recording_trainer.train(data, 1, gradient_accumulation_steps=2)
    calls = recording_trainer.calls
    epoch = calls[calls.index("on_train_epoch_start") + 1 : calls.index("train_epoch_end")]
    apply = [call for call in APPLY if call != "scheduler_step"]
    assert epoch == ["on_update_start", *MICRO_BATCH * 2, *apply, "on_update_start", *MICRO_BATCH, *apply]


def test_an_evaluation_goes_in_exactly_this_order(recording_trainer: Any, data: TensorDataset) -> None:
    recording_trainer.evaluate(data)
    before = ["create_eval_dataloader", "_prepare_model_and_optimizer", "_create_run_config"]
    start, end = ["evaluation_run_start", "on_evaluation_run_start"], ["evaluation_run_end", "on_evaluation_run_end"]
    assert recording_trainer.calls == ["on_init_end", *before, *start, *EVAL, *end]


def test_a_stop_by_a_callback_of_the_run_start_is_not_caught(make_trainer: Any, data: TensorDataset) -> None:
    class Stop(TrainerCallback):
        def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
            raise StopTrainingError("not even begun")

    with pytest.raises(StopTrainingError, match="not even begun"):
        make_trainer(Stop).train(data, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_dies_is_told_to_callbacks_which_are_closed_and_has_no_end(
    recording_trainer: Any, data: TensorDataset, error: type[BaseException]
) -> None:
    class Dies(TrainerCallback):
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            raise error("of something")

        def close(self) -> None:
            recording_trainer.calls.append("closed")

    recording_trainer.callback_handler.add_callback(Dies)
    with pytest.raises(error, match="of something"):
        recording_trainer.train(data, 2)
    assert recording_trainer.calls[-3:] == ["on_train_epoch_end", "on_exception", "closed"]
    assert "training_run_end" not in recording_trainer.calls


def test_an_evaluation_that_dies_is_told_to_callbacks_too(recording_trainer: Any, data: TensorDataset) -> None:
    class Dies(TrainerCallback):
        def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
            raise RuntimeError("of something")

    recording_trainer.callback_handler.add_callback(Dies)
    with pytest.raises(RuntimeError, match="of something"):
        recording_trainer.evaluate(data)
    assert recording_trainer.calls[-2:] == ["on_eval_step_end", "on_exception"]


def test_d01_training_data_alone_gives_that_many_epochs_and_no_evaluation(
    recording_trainer: Any, data: TensorDataset
) -> None:
    result = recording_trainer.train(data, 2)
    assert recording_trainer.calls.count("train_epoch_start") == 2
    assert recording_trainer.calls.count("calculate_train_batch_loss") == 6
    assert "eval_epoch_start" not in recording_trainer.calls
    assert (result.epochs, result.steps) == (2, 6)


def test_d02_one_evaluation_runs_after_each_epoch_and_before_its_end_is_told(
    recording_trainer: Any, data: TensorDataset
) -> None:
    recording_trainer.train(data, 2, eval_dataset=data)
    places = ("on_train_epoch_end", "eval_epoch_start", "training_run_epoch_end")
    assert [call for call in recording_trainer.calls if call in places] == [*places, *places]


def test_d03_a_verb_comes_directly_before_its_event(recording_trainer: Any, data: TensorDataset) -> None:
    recording_trainer.train(data, 1, eval_dataset=data)
    recording_trainer.evaluate(data)
    calls = recording_trainer.calls
    pairs = {event.removeprefix("on_"): event for event in EVENTS if event.removeprefix("on_") in calls}
    assert len(pairs) == 9
    for verb, event in pairs.items():
        assert calls.count(verb) == calls.count(event)
        # Between an epoch's last verb and its event only the losses are read and logged.
        following = [call for call in calls[calls.index(verb) + 1 :] if call != "on_log"]
        assert following[0] == event


def test_d12_the_epoch_counts_from_one_and_moves_on_when_an_epoch_is_complete(
    make_trainer: Any, data: TensorDataset
) -> None:
    seen: list[int] = []

    class Watch(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            seen.append(trainer.run_history.current_epoch)

        def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            seen.append(trainer.run_history.current_epoch)

    trainer = make_trainer(Watch)
    assert trainer.run_history.current_epoch == 1
    trainer.train(data, 2)
    assert seen == [1, 1, 2, 2]
    assert trainer.run_history.current_epoch == 3


def test_d12_an_epoch_that_was_stopped_half_way_is_not_counted(make_trainer: Any, data: TensorDataset) -> None:
    class StopInSecondEpoch(TrainerCallback):
        def on_train_step_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                raise StopTrainingError

    trainer = make_trainer(StopInSecondEpoch)
    result = trainer.train(data, 5)
    assert (trainer.run_history.current_epoch, result.epochs, result.steps) == (2, 1, 4)
    assert len(result.history["train_loss_epoch"]) == 1


@pytest.mark.parametrize("event", ["on_train_epoch_start", "on_train_step_end", "on_eval_step_end", "on_update_end"])
def test_d22_a_wish_to_stop_within_an_epoch_ends_the_run_in_good_order(
    recording_trainer: Any, data: TensorDataset, event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Any, trainer: Any, **kwargs: Any) -> None:
        raise StopTrainingError("seen enough")

    stopper = type("Stopper", (TrainerCallback,), {event: stop})
    recording_trainer.callback_handler.add_callback(stopper)
    result = recording_trainer.train(data, 3, eval_dataset=data)
    assert result.stop_reason == "seen enough"
    assert "seen enough" in capsys.readouterr().out
    assert recording_trainer.calls[-4:] == [event, "on_stop_training_error", "training_run_end", "on_training_run_end"]


def test_d22_a_verb_may_ask_to_stop_as_well(make_trainer: Any, data: TensorDataset) -> None:
    from treadle.trainer import Trainer

    class Stopping(Trainer):
        def train_epoch_end(self) -> None:
            raise StopTrainingError

    assert make_trainer(kind=Stopping).train(data, 3).stop_reason == "a callback asked to stop"


def test_d22_request_stop_ends_the_run_after_the_update_under_way(make_trainer: Any, data: TensorDataset) -> None:
    class Asks(TrainerCallback):
        def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
            trainer.request_stop("time is up")

    result = make_trainer(Asks).train(data, 3)
    assert (result.steps, result.epochs, result.stop_reason) == (1, 0, "time is up")


def test_d23_the_step_limit_ends_the_epoch_early_evaluates_and_ends_the_run(
    recording_trainer: Any, data: TensorDataset
) -> None:
    result = recording_trainer.train(data, 5, eval_dataset=data, max_num_train_steps=4)
    assert recording_trainer.calls.count("optimizer_step") == 4
    assert recording_trainer.calls.count("on_eval_epoch_end") == 2
    assert recording_trainer.calls[-2:] == RUN_END
    # The second epoch was evaluated but not completed: two of its three batches were not trained on.
    assert (result.steps, result.epochs, result.stop_reason) == (4, 1, "all 4 steps are done")


def test_d23_updates_are_counted_and_not_micro_batches(recording_trainer: Any, data: TensorDataset) -> None:
    recording_trainer.train(data, 5, max_num_train_steps=3, gradient_accumulation_steps=2)
    assert recording_trainer.calls.count("optimizer_step") == 3
    assert recording_trainer.calls.count("backward_step") == 5


def test_a39_a_second_run_that_keeps_the_history_trains_all_its_epochs(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    trainer.train(data, 3)
    result = trainer.train(data, 3, reset_run_history=False)
    assert (result.epochs, result.steps) == (3, 9)
    assert len(result.history["train_loss_epoch"]) == 6
    assert trainer.run_history.current_epoch == 7


def test_a39_by_default_a_second_run_begins_a_new_history(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    trainer.train(data, 3)
    assert len(trainer.train(data, 1).history["train_loss_epoch"]) == 1
    assert trainer.run_history.current_epoch == 2


def test_a39_a_new_history_forgets_the_scalars_of_the_earlier_steps_too(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    trainer.train(data, 2, log_every=1)
    trainer.train(data, 1, log_every=1)
    assert trainer.storage.series("train_loss").steps == [1, 2, 3]


@pytest.mark.parametrize(("epochs", "steps", "expected"), [(1, 100, 3), (5, 4, 4), (2, 6, 6)])
def test_a44_the_smaller_of_two_limits_wins(
    make_trainer: Any, data: TensorDataset, epochs: int, steps: int, expected: int
) -> None:
    assert make_trainer().train(data, epochs, max_num_train_steps=steps).steps == expected
    assert make_trainer().train(data, epochs, max_steps=steps).steps == expected


def test_a45_a_second_run_without_a_schedule_has_none(recording_trainer: Any, data: TensorDataset) -> None:
    recording_trainer.train(data, 1, create_scheduler_fn=partial(StepLR, step_size=1, gamma=0.5))
    rate = recording_trainer.optimizer.param_groups[0]["lr"]
    recording_trainer.calls.clear()
    recording_trainer.train(data, 1)
    assert recording_trainer.scheduler is None
    assert "scheduler_step" not in recording_trainer.calls
    assert recording_trainer.optimizer.param_groups[0]["lr"] == rate == 0.05 * 0.5**3


def test_a47_evaluate_adds_to_the_history_of_training_and_erases_nothing(
    make_trainer: Any, data: TensorDataset, ragged: TensorDataset
) -> None:
    trainer = make_trainer()
    before = trainer.train(data, 2, eval_dataset=data).history
    results = trainer.evaluate(ragged)
    after = {name: trainer.run_history.get_metric_values(name) for name in trainer.run_history.get_metric_names()}
    assert after == {**before, "evaluation_loss": [results["evaluation_loss"]]}
    assert trainer.run_history.current_epoch == 3
