"""Options in the settings of a recommender: how they are written, what goes together, and who cannot have them."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import Rates, Updates
from tests.recsys.trainer.runs import Run, assert_same_training, fit_through, make
from tests.recsys.trainer.trees import make as make_trees
from treadle.checkpoint import Policy
from treadle.errors import ConfigError
from treadle.optim.lr_scaling import LRScaling
from treadle.precision import LossScaling, Precision
from treadle.recsys import Config, Trainer
from treadle.recsys.evaluation import full_ranking
from treadle.runs.preemption import PreemptedExit, after_evaluated_batch
from treadle.schedules.placeholders import TrainerPlaceholderValues as P

STEPS = 4
"""Updates in an epoch of BPR on the rows of these tests, with batches of 64."""
by_sgd = partial(make, learner="sgd", learning_rate=0.1)


class UsedRates(Rates):
    """The rates that updates were made with."""

    def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
        self.used[trainer.progress.step + 1] = trainer.optimizers()["optimizer"].param_groups[0]["lr"]


def rates_of(folder: Path, **given: Any) -> list[float]:
    rates = UsedRates()
    by_sgd(folder, "BPR", rates, **given).fit()
    return list(rates.used.values())


# Schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheduler",
    [
        {"name": "StepLR", "step_size": "NUM_UPDATE_STEPS_PER_EPOCH", "gamma": 0.5},
        "{'name': 'StepLR', 'step_size': 'round(NUM_EPOCHS * NUM_UPDATE_STEPS_PER_EPOCH / 3)', 'gamma': 0.5}",
        "{name: StepLR, step_size: 4, gamma: 0.5}",
        partial(torch.optim.lr_scheduler.StepLR, step_size=P.NUM_UPDATE_STEPS_PER_EPOCH, gamma=0.5),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5),
    ],
)
def test_a_schedule_is_a_name_with_arguments_or_a_function(tmp_path: Path, scheduler: Any) -> None:
    expected = [0.1] * STEPS + [0.05] * STEPS + [0.025] * STEPS
    assert rates_of(tmp_path, scheduler=scheduler) == pytest.approx(expected)


def test_a_schedule_is_read_from_a_file_and_from_a_command_line(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "scheduler: {name: OneCycleLR, max_lr: 0.1, total_steps: NUM_EPOCHS * NUM_UPDATE_STEPS_PER_EPOCH}\n"
    )
    read = Config("BPR", "toy", [str(file)], {"epochs": 2})
    assert read["scheduler"]["name"] == "OneCycleLR"
    given = Config("BPR", "toy", argv=["--scheduler={name: StepLR, step_size: 2}", "--max_steps=7"])
    assert (given["scheduler"], given["max_steps"]) == ({"name": "StepLR", "step_size": 2}, 7)
    assert len(set(rates_of(tmp_path, scheduler=read["scheduler"]))) == 3 * STEPS


def test_a_plateau_watches_the_score_of_evaluations_and_knows_what_is_better(tmp_path: Path) -> None:
    run = by_sgd(tmp_path, scheduler={"name": "ReduceLROnPlateau", "patience": 0, "threshold": 10.0}, epochs=4)
    run.fit()
    core = run.trainer._core
    # No score is ten times as good as the first, so that each evaluation after it lowers the rate.
    assert core.scheduler.mode == "max"
    assert core.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**3)
    down = by_sgd(tmp_path, scheduler="ReduceLROnPlateau", scheduler_metric="train_loss_epoch", epochs=1)
    down.fit()
    assert down.trainer._core.scheduler.mode == "min"


@pytest.mark.parametrize(("interval", "cuts"), [("step", [2, 6, 9]), ("epoch", [2, 6, 9])])
def test_a_schedule_goes_on_exactly_where_a_training_died(tmp_path: Path, interval: str, cuts: list[int]) -> None:
    given: dict[str, Any] = {
        "scheduler": {"name": "ExponentialLR", "gamma": 0.8},
        "scheduler_interval": interval,
        "save_every": "1 step",
        "learning_rate": 0.01,
    }
    whole = make(tmp_path, run_dir=str(tmp_path / "whole"), **given)
    whole.fit()
    assert whole.updates == (0, 3 * STEPS)
    cut = fit_through(cuts, partial(make, tmp_path, "BPR", run_dir=str(tmp_path / "cut"), **given))
    assert cut.updates == (8, 4)
    assert_same_training(cut.trainer, whole.trainer)
    rate = 0.01 * 0.8 ** (3 * STEPS if interval == "step" else 3)
    assert cut.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_a_schedule_by_epochs_moves_once_where_an_evaluation_is_left_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"scheduler": {"name": "ExponentialLR", "gamma": 0.5}, "scheduler_interval": "epoch"}
    evaluated: list[int] = []

    def batch_evaluated() -> None:
        evaluated.append(1)
        if len(evaluated) == 7:
            signal.raise_signal(signal.SIGTERM)
        after_evaluated_batch()

    monkeypatch.setattr(full_ranking, "after_evaluated_batch", batch_evaluated)
    # Five batches in an evaluation: the run leaves in the second one.
    monkeypatch.setattr(full_ranking, "users_at_once", lambda *_: 5)
    rates = UsedRates()
    make_run = partial(by_sgd, tmp_path, "BPR", rates, run_dir=str(tmp_path / "run"), **given)
    with pytest.raises(PreemptedExit):
        make_run().fit()
    assert len(rates.used) == 2 * STEPS
    rest = make_run()
    rest.fit()
    assert rest.updates == (2 * STEPS, STEPS)
    expected = [0.1] * STEPS + [0.05] * STEPS + [0.025] * STEPS
    assert [rates.used[step] for step in sorted(rates.used)] == pytest.approx(expected)
    assert rest.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.0125)


# The length of a run --------------------------------------------------------------------------------------------


def test_the_last_step_ends_an_epoch_which_is_evaluated_and_kept(tmp_path: Path) -> None:
    make_run = partial(make, tmp_path, run_dir=str(tmp_path / "run"), max_steps=STEPS + 2, eval_step=3)
    run = make_run()
    score, result = run.fit()
    assert run.updates == (0, STEPS + 2)
    # The limit, and not the cadence of evaluations, says when there is one.
    assert run.trainer.valid_scores() == [score]
    assert result
    assert Path(run.trainer.saved_model_file).is_file()
    again = make_run()
    assert again.fit() == (score, result)
    assert again.updates == (STEPS + 2, 0)


def test_a_run_that_was_to_be_shorter_goes_on_in_the_middle_of_its_epoch(tmp_path: Path) -> None:
    given = {"scheduler": {"name": "StepLR", "step_size": 3, "gamma": 0.5}, "save_every": "1 epoch"}
    whole = make(tmp_path, run_dir=str(tmp_path / "whole"), **given)
    whole.fit()
    first = make(tmp_path, run_dir=str(tmp_path / "cut"), max_steps=STEPS + 2, **given)
    first.fit()
    assert first.updates == (0, STEPS + 2)
    rest = make(tmp_path, run_dir=str(tmp_path / "cut"), **given)
    rest.fit()
    assert rest.updates == (STEPS + 2, 2 * STEPS - 2)
    assert_same_training(rest.trainer, whole.trainer)


def test_training_stops_early_before_its_last_step(tmp_path: Path) -> None:
    run = make(tmp_path, learning_rate=0.0, epochs=20, stopping_step=1, max_steps=10 * STEPS)
    run.fit()
    # Nothing is learnt: the second evaluation without a better score is one too many.
    assert run.updates == (0, 3 * STEPS)


# Values ---------------------------------------------------------------------------------------------------------


def test_rates_follow_the_batch_once_however_often_a_trainer_is_fitted(tmp_path: Path) -> None:
    rates = UsedRates()
    run = by_sgd(tmp_path, "BPR", rates, lr_scaling={"rule": "linear", "reference_batch_size": 32}, epochs=1)
    for _ in range(2):
        run.fit()
        assert set(rates.used.values()) == {0.2}
    again = by_sgd(tmp_path, "BPR", rates, lr_scaling={"rule": "linear", "reference_batch_size": 32}, epochs=2)
    again.trainer.resume_checkpoint(run.trainer.saved_model_file)
    again.fit()
    assert again.updates[0] == STEPS
    assert set(rates.used.values()) == {0.2}


def test_what_the_core_has_a_class_for_may_be_one_and_is_kept_as_plain_data(tmp_path: Path) -> None:
    given = {"loss_scaling": LossScaling(initial=4.0), "lr_scaling": LRScaling("sqrt", 64), "checkpoints": Policy()}
    config = Config("BPR", "toy", config_dict=given)
    assert config["loss_scaling"] == {"initial": 4.0}
    assert config["lr_scaling"] == {"rule": "sqrt", "reference_batch_size": 64}
    again = Config("BPR", "toy", config_dict=config.plain())
    assert again["checkpoints"] == {}


def test_a_format_of_ones_own_is_made_for_the_device(tmp_path: Path) -> None:
    asked: list[torch.device] = []

    def own(device: torch.device) -> Precision:
        asked.append(device)
        return Precision("bf16", device)

    run = make(tmp_path, precision=own, max_steps=1)
    run.fit()
    assert asked == [torch.device("cpu")]
    assert run.trainer._core.precision.kind == "bf16"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_steps": 0}, r"max_steps=0 must be a whole number above 0 \(the setting max_steps in config_dict\)"),
        ({"max_steps": "many"}, "max_steps='many' must be a whole number above 0"),
        ({"gradient_clip_value": -1}, "gradient_clip_value=-1 must be a number above 0"),
        ({"lr_scaling": {"rule": "liner"}}, "rule='liner' is unknown; did you mean 'linear'"),
        ({"lr_scaling": {"rul": "linear"}}, "lr_scaling has no 'rul'; did you mean 'rule'"),
        ({"lr_scaling": "linear"}, "lr_scaling='linear' must be a dict with some of"),
        ({"loss_scaling": {"initial": -1}}, "initial=-1"),
        ({"scheduler_interval": "batch"}, "scheduler_interval='batch' is unknown; use 'step' or 'epoch'"),
        ({"extend": "longer"}, "extend='longer' is unknown; use 'stretch' or 'hold'"),
        ({"timeout": 0}, "timeout=0 must be a number of seconds above 0"),
        ({"matmul_precision": "hihg"}, r"matmul_precision='hihg' is unknown; did you mean 'high'\? \(the setting"),
        ({"scheduler": {"name": "StpLR"}}, "scheduler: the name 'StpLR' is no schedule; did you mean 'StepLR'"),
        ({"scheduler": {"name": "StepLR"}}, "scheduler: StepLR has missing a required argument: 'step_size'"),
        ({"scheduler": {"name": "StepLR", "step_siz": 1}}, "StepLR takes no 'step_siz'; did you mean 'step_size'"),
        ({"scheduler": {"name": "StepLR", "step_size": "NUM_EPOCHS ^ 2"}}, r"'NUM_EPOCHS \^ 2' cannot be calculated"),
        ({"scheduler": 5}, "scheduler got 5, which cannot be called"),
        ({"checkpoints": {"best": "loss"}}, "checkpoints: best='loss' has no use here"),
        ({"checkpoints": {"keep_last": 0}}, "keep_last=0"),
        ({"parallel": {"shard": 2}}, "ranks all items by methods of the model's own"),
        ({"parallel": {"pipeline": 2}}, "use 'auto', or data= alone"),
        ({"parallel": "shard"}, "parallel='shard' must be a dict with some of"),
        ({"loss_reduction": "median"}, "loss_reduction='median' is unknown; use 'mean' or 'sum'"),
        ({"compile": {"mod": "default"}}, "compile has no 'mod'; did you mean 'mode'"),
        ({"activation_checkpointing": "mlp"}, "activation_checkpointing='mlp' must be a list of patterns"),
        ({"log_every": "2 hours"}, "log_every"),
    ],
)
def test_what_a_setting_cannot_be_is_told_with_its_place(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config("BPR", "toy", config_dict=setting)


def test_a_wrong_value_in_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("max_steps: -3\n")
    with pytest.raises(ConfigError, match=r"max_steps=-3 .*\(the setting max_steps in .*own\.yaml\)"):
        Config("BPR", "toy", [str(tmp_path / "own.yaml")])
    with pytest.raises(ConfigError, match=r"\(the setting max_steps in the command line\)"):
        Config("BPR", "toy", argv=["--max_steps=-3"])


# Who cannot have them -------------------------------------------------------------------------------------------


class OwnEpochs(Trainer):
    """Makes its updates itself."""

    def _train_epoch(
        self, train_data: Any, epoch_idx: int, loss_func: Any = None, show_progress: bool = False
    ) -> float:
        for interaction in train_data:
            self.optimizer.zero_grad()
            self.model.calculate_loss(interaction).backward()
            self.optimizer.step()
        return 0.0


class OwnFit(Trainer):
    """Runs its epochs itself."""

    def fit(self, train_data: Any, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        return self._train_epoch(train_data, 0)


STEPWISE = {"name": "StepLR", "step_size": 1}
LINEAR = {"rule": "linear", "reference_batch_size": 32}
ALL_OF_UPDATES: list[dict[str, Any]] = [
    {"scheduler": STEPWISE},
    {"scheduler_interval": "epoch"},
    {"scheduler_metric": "valid_score"},
    {"extend": "hold"},
    {"lr_scaling": LINEAR},
    {"gradient_clip_value": 1.0},
    {"loss_scaling": {"initial": 8.0}},
    {"loss_reduction": "sum"},
    {"max_rollbacks": 1},
    {"microbatch": "auto"},
    {"activation_checkpointing": ["a"]},
    {"offload_optimizer": True},
    {"gradient_accumulation_steps": 2},
]


def refused(run: Run, setting: dict[str, Any], reason: str) -> None:
    """Make sure that nothing is trained, and that the message names setting, value, trainer and reason."""
    updates = Updates()
    run.trainer.callbacks += (updates,)
    (name, value), kind = next(iter(setting.items())), type(run.trainer).__name__
    with pytest.raises(ConfigError) as caught:
        run.fit()
    assert str(caught.value).startswith(f"{name}={value!r}: {kind} ")
    assert reason in str(caught.value)
    assert updates.made == 0


@pytest.mark.parametrize("setting", [*ALL_OF_UPDATES, {"max_steps": 3}], ids=lambda one: next(iter(one)))
def test_a_model_that_is_fitted_in_one_go_refuses_what_is_about_updates(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    reason = "does not make its updates" if "gradient_accumulation_steps" in setting else "fits a model in one go"
    refused(make(tmp_path, "EASE", **setting), setting, reason)


PRODUCTS = [{"matmul_precision": "high"}, {"convolution_precision": "high"}]


@pytest.mark.parametrize("setting", [*ALL_OF_UPDATES, *PRODUCTS], ids=lambda one: next(iter(one)))
def test_trees_refuse_what_is_about_updates(tmp_path: Path, setting: dict[str, Any]) -> None:
    pytest.importorskip("lightgbm")
    reason = "does not make its updates" if "gradient_accumulation_steps" in setting else "leaves its rounds to"
    refused(make_trees(tmp_path, "LightGBM", **setting), setting, reason)


def test_trees_grow_no_more_rounds_than_there_may_be_steps(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    run = make_trees(tmp_path, "LightGBM", max_steps=3)
    run.fit()
    assert run.trainer.rounds.done == 3


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"scheduler": STEPWISE}, "makes its updates itself, so that nobody moves it; set scheduler_interval='epoch'"),
        ({"gradient_clip_value": 1.0}, "clip in your own _train_epoch"),
        ({"gradient_accumulation_steps": 2}, "accumulate in your own _train_epoch"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_a_loop_of_ones_own_refuses_what_it_does_itself(tmp_path: Path, setting: dict[str, Any], reason: str) -> None:
    refused(make(tmp_path, kind=OwnEpochs, **setting), setting, reason)


def test_a_schedule_by_epochs_moves_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    halved = {"name": "ExponentialLR", "gamma": 0.5}
    run = by_sgd(tmp_path, kind=OwnEpochs, scheduler=halved, scheduler_interval="epoch")
    run.fit()
    assert run.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


@pytest.mark.parametrize("setting", [{"scheduler": STEPWISE}, {"lr_scaling": LINEAR}, {"max_steps": 3}], ids=str)
def test_a_fit_of_ones_own_refuses_what_an_epoch_is_a_part_of(tmp_path: Path, setting: dict[str, Any]) -> None:
    refused(make(tmp_path, kind=OwnFit, **setting), setting, "has a fit of its own, each of whose epochs")


def test_several_passes_refuse_a_schedule(tmp_path: Path) -> None:
    refused(make(tmp_path, "KGAT", scheduler=STEPWISE), {"scheduler": STEPWISE}, "makes several passes over the data")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"loss_scaling": {"initial": 8.0}}, "scales the loss in fp16 alone; set precision='fp16'"),
        ({"scheduler_interval": "epoch"}, "has no schedule that it could be about; set scheduler"),
    ],
    ids=["loss_scaling", "scheduler_interval"],
)
def test_what_something_else_must_be_set_for_is_told(tmp_path: Path, setting: dict[str, Any], reason: str) -> None:
    refused(make(tmp_path, **setting), setting, reason)


def test_no_setting_of_these_is_warned_of_as_read_by_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, max_steps=2, scheduler=STEPWISE, lr_scaling=LINEAR, gradient_clip_value=1.0, timeout=60).fit()
    assert "reads it" not in caplog.text
    with pytest.raises(ConfigError, match=r"schedular=.* did you mean 'scheduler'"):
        make(tmp_path, schedular=STEPWISE).fit()
