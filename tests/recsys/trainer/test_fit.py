"""`fit`: what it returns, reports, keeps and calls, and when it stops."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import metric_lines
from tests.recsys.trainer.runs import Run, make
from treadle.checkpoint import read_file
from treadle.console.lines import fields, number
from treadle.errors import ConfigError, DataError, LossError, StopTrainingError
from treadle.recsys import InputType, Interaction, Trainer
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.general_recommender import BPR
from treadle.recsys.trainers.results import early_stopping


class Scripted(Trainer):
    """Evaluates to what is written down, epoch by epoch."""

    scores: list[float] = []

    def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> tuple[float, dict[str, float]]:
        score = self.scores[len(self.train_loss_dict) - 1]
        return score, {"ndcg@5": score}


def scripted(folder: Path, scores: list[float], **given: Any) -> Run:
    kind = type("Scripted", (Scripted,), {"scores": scores})
    return make(folder, kind=kind, **{"epochs": len(scores), "stopping_step": 1, **given})


def test_fit_returns_the_best_score_and_the_best_result(tmp_path: Path) -> None:
    run = make(tmp_path)
    score, result = run.fit()
    assert list(result) == ["recall@5", "ndcg@5", "mrr@5"]
    assert result["ndcg@5"] == round(score, 4)
    assert result.exact["ndcg@5"] == score == run.trainer.best_valid_score
    assert run.trainer.best_valid_result is result


def test_without_validation_fit_returns_minus_one_and_none(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert run.trainer.fit(run.train, verbose=False) == (-1, None)
    assert read_file(run.trainer.saved_model_file)["epoch"] == 2


def test_the_loss_of_an_epoch_is_the_sum_over_its_batches(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1, train_batch_size=32)
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    run.fit()
    model, optimizer = run.model, torch.optim.Adam(run.model.parameters(), lr=1e-3, fused=True)
    model.load_state_dict(before)
    total = 0.0
    for index in range(len(run.train)):
        loss = model.calculate_loss(run.train.batch_at(0, index))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    assert run.trainer.train_loss_dict == {0: total}


def test_training_is_to_the_bit_what_a_hand_written_loop_does(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=2)
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    run.fit()
    trained = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    run.model.load_state_dict(weights)
    optimizer = torch.optim.Adam(run.model.parameters(), lr=1e-3, fused=True)
    for epoch in range(2):
        for index in range(len(run.train)):
            optimizer.zero_grad()
            run.model.calculate_loss(run.train.batch_at(epoch, index)).backward()
            optimizer.step()
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


class InTwoParts(BPR):
    """Has a loss of two parts."""

    def calculate_loss(self, interaction: Interaction) -> Any:
        return super().calculate_loss(interaction), 0.5 * self.user_embedding.weight.square().sum()


def test_a_loss_in_parts_is_added_up_and_each_part_reported(tmp_path: Path, capsys: Any) -> None:
    run = make(tmp_path, InTwoParts, epochs=1, embedding_size=8)
    run.fit(verbose=True)
    values = {name: run.trainer._core.run_history.get_latest_metric(name) for name in ("train_loss1", "train_loss2")}
    assert run.trainer.train_loss_dict[0] == sum(values.values())
    assert (
        f"train_loss1 {number(values['train_loss1'])}  train_loss2 {number(values['train_loss2'])}"
        in capsys.readouterr().out
    )


def test_an_epoch_is_told_in_one_line_and_the_end_says_where_the_model_is(tmp_path: Path, capsys: Any) -> None:
    run = make(tmp_path, epochs=2)
    run.fit(verbose=True)
    lines = re.sub(r"\d+\.\ds", "TIME", capsys.readouterr().out).splitlines()
    losses = run.trainer._core.run_history.get_metric_values("train_loss_epoch")
    assert [line.split("  ")[0] for line in lines[:5]] == ["model", "data", "train", "run on", "folder"]
    assert lines[5] == f"epoch 1/2  TIME  train {number(losses[0])}  {told_by(run, 0)} *best"
    assert lines[6].startswith(f"epoch 2/2  TIME  train {number(losses[1])}  {told_by(run, 1)}")
    score = f"best ndcg@5 {number(run.trainer.best_valid_score)}"
    assert lines[7:] == [f"finished after 2 epochs, 8 steps; {score}; model {run.trainer.saved_model_file}"]


def told_by(run: Any, epoch: int) -> str:
    """Return what an evaluation found, as a line has it."""
    history = run.trainer._core.run_history
    names = [name for name in history.get_metric_names() if name.startswith("valid_") and "@" in name]
    return fields({name.removeprefix("valid_"): history.get_metric_values(name)[epoch] for name in names})


def test_an_overridden_output_of_recbole_is_printed_besides(tmp_path: Path, capsys: Any) -> None:
    class Own(Trainer):
        def _generate_train_loss_output(self, *given: Any) -> str:
            return "in my own words"

    run = make(tmp_path, kind=Own, epochs=1)
    run.fit(verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == "in my own words"
    assert lines[6].startswith("epoch 1/1  ")


def test_a_quiet_fit_prints_nothing_and_keeps_the_log_in_the_run_folder(tmp_path: Path, capsys: Any) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    assert capsys.readouterr().out == ""
    assert "epoch 1/1  " in (Path(run.trainer.saved_model_file).with_suffix("") / "log.txt").read_text()


def test_the_run_folder_has_a_line_of_metrics_for_each_epoch(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=2)
    run.fit()
    lines = metric_lines(Path(run.trainer.saved_model_file).with_suffix(""))
    sums = [line["train_loss_sum"] for line in lines if "train_loss_sum" in line]
    assert sums == list(run.trainer.train_loss_dict.values())
    assert max(line.get("valid_ndcg@5", 0.0) for line in lines) == run.trainer.best_valid_score


# Callbacks ----------------------------------------------------------------------------------------------------


def test_the_callback_gets_each_evaluated_epoch_and_its_score(tmp_path: Path) -> None:
    calls: list[tuple[int, float]] = []
    run = scripted(tmp_path, [0.1, 0.2, 0.3, 0.4], eval_step=2)
    run.fit(callback_fn=lambda epoch, score: calls.append((epoch, score)))
    assert calls == [(1, 0.2), (3, 0.4)]


def test_the_callback_finds_the_model_of_its_epoch_saved(tmp_path: Path) -> None:
    run = scripted(tmp_path, [0.1, 0.2])
    seen: list[int] = []

    def look(epoch: int, score: float) -> None:
        run.trainer._files.wait()
        seen.append(read_file(run.trainer.saved_model_file)["epoch"])

    run.fit(callback_fn=look)
    assert seen == [0, 1]


def test_without_validation_the_callback_gets_none_for_a_score(tmp_path: Path) -> None:
    calls: list[Any] = []
    run = make(tmp_path, epochs=2)
    run.trainer.fit(run.train, verbose=False, callback_fn=lambda *args: calls.append(args))
    assert calls == [(0, None), (1, None)]


def test_a_callback_can_end_the_training_in_good_order(tmp_path: Path) -> None:
    run = scripted(tmp_path, [0.3, 0.2, 0.1], stopping_step=10)

    def stop(epoch: int, score: float) -> None:
        if epoch == 1:
            raise StopTrainingError("enough")

    assert run.fit(callback_fn=stop) == (0.3, {"ndcg@5": 0.3})
    assert len(run.trainer.train_loss_dict) == 2


# Early stopping -----------------------------------------------------------------------------------------------


def test_training_stops_after_more_than_stopping_step_evaluations_without_a_better_score(tmp_path: Path) -> None:
    run = scripted(tmp_path, [0.1, 0.5, 0.4, 0.3, 0.6], stopping_step=1)
    assert run.fit() == (0.5, {"ndcg@5": 0.5})
    assert list(run.trainer.train_loss_dict) == [0, 1, 2, 3]
    assert run.trainer.cur_step == 2
    assert read_file(run.trainer.saved_model_file)["epoch"] == 1


def test_the_reason_names_the_best_epoch(tmp_path: Path, capsys: Any) -> None:
    run = scripted(tmp_path, [0.5, 0.4, 0.3, 0.2, 0.1, 0.0], stopping_step=1, eval_step=2)
    run.fit(verbose=True)
    assert "the best was in epoch 2" in capsys.readouterr().out


def test_fact_10_an_equal_score_is_no_better_one(tmp_path: Path) -> None:
    run = scripted(tmp_path, [0.5, 0.5, 0.5, 0.6], stopping_step=1)
    run.fit()
    assert read_file(run.trainer.saved_model_file)["epoch"] == 0
    assert len(run.trainer.train_loss_dict) == 3


def test_a_lower_score_is_better_where_the_metric_says_so(tmp_path: Path) -> None:
    given = {"metrics": ["NDCG", "GiniIndex"], "valid_metric": "GiniIndex@5"}
    run = scripted(tmp_path, [0.5, 0.4, 0.6, 0.7], **given)
    assert run.trainer.valid_metric_bigger is False
    assert run.trainer.best_valid_score == math.inf
    assert run.fit()[0] == 0.4


def test_nan_is_never_a_better_score() -> None:
    assert early_stopping(math.nan, 0.1, 0, 3) == (0.1, 1, False, False)


def test_scores_are_compared_as_they_are_and_not_rounded(tmp_path: Path) -> None:
    run = scripted(tmp_path, [0.50001, 0.50002, 0.50003], metric_decimal_place=2)
    run.fit()
    assert run.trainer.best_valid_score == 0.50003


def test_eval_step_is_at_most_the_number_of_epochs(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=2, eval_step=50)
    assert run.fit()[1] is not None


def test_eval_step_zero_trains_without_evaluation(tmp_path: Path) -> None:
    assert make(tmp_path, epochs=2, eval_step=0).fit() == (-1, None)


# The best model -----------------------------------------------------------------------------------------------


class Noting(Scripted):
    """Takes a copy of the weights when its best score comes."""

    kept: dict[str, torch.Tensor]

    def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> tuple[float, dict[str, float]]:
        score, result = super()._valid_epoch(valid_data)
        if score == max(self.scores):
            self.kept = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return score, result


@pytest.mark.parametrize("saved", [True, False])
def test_the_best_model_is_evaluated_whether_or_not_it_was_written_to_a_file(tmp_path: Path, saved: bool) -> None:
    kind = type("Noting", (Noting,), {"scores": [0.1, 0.9, 0.2]})
    run = make(tmp_path, kind=kind, learning_rate=0.1)
    run.fit(saved=saved)
    assert Path(run.trainer.saved_model_file).exists() == saved
    last = run.trainer.evaluate(run.test, load_best_model=False)
    best = run.trainer.evaluate(run.test)
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, run.trainer.kept[name])
    assert best.exact != last.exact


def test_no_file_and_no_folder_is_written_if_nothing_is_to_be_saved(tmp_path: Path) -> None:
    make(tmp_path).fit(saved=False)
    assert not (tmp_path / "saved").exists()


def test_the_file_is_named_after_model_and_date(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    name = Path(run.trainer.saved_model_file).name
    assert name.startswith("BPR-")
    assert name.endswith(".pth")
    assert Path(run.trainer.saved_model_file).parent == tmp_path / "saved"


def test_two_trainings_of_the_same_second_have_files_of_their_own(tmp_path: Path) -> None:
    runs = [make(tmp_path, epochs=1) for _ in range(3)]
    for run in runs:
        run.trainer.saved_model_file = run.trainer._proposed = str(tmp_path / "saved" / "BPR-now.pth")
        run.fit()
    names = [Path(run.trainer.saved_model_file).name for run in runs]
    assert names == ["BPR-now.pth", "BPR-now-2.pth", "BPR-now-3.pth"]


def test_a_trainer_can_fit_twice_and_goes_on_from_its_weights(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    first = run.trainer.run_dir
    weights = run.model.user_embedding.weight.clone()
    run.fit()
    assert run.trainer.run_dir != first
    assert not torch.equal(run.model.user_embedding.weight, weights)


def test_no_epochs_save_the_model_as_it_is(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=0)
    assert run.fit()[1] is None
    assert read_file(run.trainer.saved_model_file)["epoch"] == -1
    assert run.trainer.evaluate(run.test) is not None


def test_fact_2_the_file_of_a_model_holds_no_pickle_and_its_settings(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    state = read_file(run.trainer.saved_model_file)
    assert state["config"]["embedding_size"] == 8
    assert {"epoch", "cur_step", "best_valid_score", "state_dict", "other_parameter", "optimizer"} <= set(state)
    assert b"pickle" not in Path(run.trainer.saved_model_file).read_bytes()[:4096]


@pytest.mark.parametrize("saved", [True, False])
def test_after_a_second_fit_that_found_nothing_better_the_best_model_is_still_tested(
    tmp_path: Path, saved: bool
) -> None:
    run = scripted(tmp_path, [0.9, 0.1])
    run.fit(saved=saved)
    best = run.trainer.evaluate(run.test)
    file = run.trainer.saved_model_file
    run.trainer.optimizer.param_groups[0]["lr"] = 1.0
    run.trainer.cur_step = 0
    assert run.fit(saved=saved)[0] == 0.9
    assert run.trainer.evaluate(run.test, load_best_model=False).exact != best.exact
    assert run.trainer.evaluate(run.test).exact == best.exact
    assert run.trainer.saved_model_file == file


def test_a_second_fit_that_found_a_better_model_has_a_file_of_its_own(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    first = run.trainer.saved_model_file
    run.trainer.best_valid_score = 0.0
    run.fit()
    assert run.trainer.saved_model_file != first
    assert read_file(run.trainer.saved_model_file)["epoch"] == 0


class RowByRow(BPR):
    """Returns a loss for each row."""

    def calculate_loss(self, interaction: Interaction) -> torch.Tensor:
        return self.predict(interaction)


def test_a_loss_for_each_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LossError, match=r"the loss of a batch has the shape \(64,\); reduce it with \.mean\(\) or"):
        make(tmp_path, RowByRow).fit()


class Silent(GeneralRecommender):
    """Has a loss, and no scores."""

    input_type = InputType.PAIRWISE

    def calculate_loss(self, interaction: Interaction) -> torch.Tensor:
        raise AssertionError("the training has started")


def test_a_model_without_scores_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Silent cannot be evaluated: define predict, or full_sort_predict"):
        make(tmp_path, Silent, kind=Unlearned).fit()


class Unlearned(Trainer):
    """Has nothing to update."""

    def _build_optimizer(self) -> None:
        return None


@pytest.mark.parametrize("given", ["dataset", "nothing"])
def test_what_is_no_loader_cannot_be_trained_on(tmp_path: Path, given: str) -> None:
    run = make(tmp_path)
    data, name = (run.train.dataset, "Dataset") if given == "dataset" else (None, "NoneType")
    with pytest.raises(DataError, match=f"fit got a {name} to train on; pass the first loader that data_preparation"):
        run.trainer.fit(data)


def test_the_last_model_is_tested_if_nobody_evaluated_and_nothing_is_saved(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.trainer.fit(run.train, verbose=False, saved=False)
    last = run.trainer.evaluate(run.test, load_best_model=False)
    torch.nn.init.zeros_(run.model.user_embedding.weight)
    assert run.trainer.evaluate(run.test).exact == last.exact


WANTED = "return the score that decides and all metrics by name, such as (0.12, {'ndcg@10': 0.12})"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None"),
        (0.5, "returned 0.5"),
        ((None, {}), "returned None as its score, which is no number"),
        ((0.5, None), "returned None as its metrics, which is no dict"),
    ],
    ids=["nothing", "score", "no score", "no metrics"],
)
def test_a_validation_of_ones_own_that_returns_no_score_and_metrics_is_refused(
    tmp_path: Path, returned: Any, message: str
) -> None:
    class Own(Trainer):
        def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> Any:
            return returned

    with pytest.raises(ConfigError) as error:
        make(tmp_path, kind=Own, epochs=1).fit(saved=False)
    assert str(error.value) == f"Own._valid_epoch {message}; {WANTED}"


def test_an_evaluation_of_ones_own_that_returns_no_metrics_is_refused(tmp_path: Path) -> None:
    class Own(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> None:
            return None

    with pytest.raises(ConfigError, match="an evaluation returned None; evaluate must return its metrics by name"):
        make(tmp_path, kind=Own, epochs=1).fit(saved=False)
