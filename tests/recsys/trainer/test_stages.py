"""Training in two stages: in one run, in two, and by a trainer of your own."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import CutAt, CutError
from tests.recsys.suites.every_model import make
from tests.recsys.trainer import runs
from tests.recsys.trainer.runs import Run
from treadle.callback import TrainerCallback
from treadle.errors import CheckpointError, ConfigError
from treadle.recsys import ModelType, PretrainTrainer, RaCTTrainer, S3RecTrainer, get_trainer
from treadle.recsys.data.transforms import pretrain_columns
from treadle.recsys.models.general_recommender import BPR
from treadle.recsys.trainers.loop.model_file import read_model_file

HIDDEN = pretrain_columns("item_id_list")[0]


class Drawn(TrainerCallback):
    """Notes for each epoch whether its batches had something hidden, and how many rows they had."""

    def __init__(self) -> None:
        self.epochs: list[str] = []
        self.rows: list[list[int]] = []

    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        self.epochs.append("")
        self.rows.append([])

    def on_train_step_start(self, trainer: Any, batch: Any, **kwargs: Any) -> None:
        self.epochs[-1] += "p" if HIDDEN in batch else "f"
        self.rows[-1].append(len(batch["item_id_list"]))


def staged(folder: Path, *callbacks: Any, **given: Any) -> Run:
    return make(folder, "S3Rec", *callbacks, **{"train_batch_size": 24, **given})


def test_s3rec_has_its_trainer() -> None:
    assert get_trainer(ModelType.SEQUENTIAL, "S3Rec") is S3RecTrainer
    assert issubclass(S3RecTrainer, PretrainTrainer)


def test_one_fit_makes_both_stages_and_evaluates_the_second(tmp_path: Path) -> None:
    seen, judged = Drawn(), []
    run = staged(tmp_path, seen, pretrain_epochs=3, epochs=4, eval_step=2)
    score, result = run.fit(callback_fn=lambda epoch, value: judged.append((epoch, value)))
    assert [epoch[0] * len(epoch) for epoch in seen.epochs] == seen.epochs
    assert [epoch[0] for epoch in seen.epochs] == ["p"] * 3 + ["f"] * 4
    assert [epoch for epoch, _ in judged] == [4, 6]
    assert score == max(value for _, value in judged)
    assert result.exact == run.trainer.evaluate(run.valid).exact
    assert sorted(run.trainer.train_loss_dict) == list(range(7))


def test_only_the_second_stage_is_stopped_early(tmp_path: Path) -> None:
    run = staged(tmp_path, pretrain_epochs=4, epochs=50, stopping_step=1)
    scores = iter([0.9, 0.8, 0.7, 0.6])
    run.trainer._valid_epoch = lambda data, **given: (next(scores), {"mrr@3": 0.0})
    run.fit(saved=False)
    # The best evaluation, and more than one that is worse.
    assert len(run.trainer.train_loss_dict) == 4 + 3


def test_the_first_stage_keeps_models_now_and_then_and_at_its_end(tmp_path: Path, capsys: Any) -> None:
    run = staged(tmp_path, pretrain_epochs=5, save_step=2, epochs=1)
    run.fit(verbose=True)
    kept = sorted(path.name for path in (tmp_path / "saved").glob("S3Rec-tiny-*.pth"))
    assert kept == ["S3Rec-tiny-2.pth", "S3Rec-tiny-4.pth", "S3Rec-tiny-5.pth"]
    told = capsys.readouterr().out
    assert "epoch 5/6  pretraining  " in told
    assert "epoch 6/6  0." in told
    quiet = staged(tmp_path / "quiet", pretrain_epochs=2, save_step=1, epochs=1)
    quiet.fit(saved=False)
    assert not (tmp_path / "quiet" / "saved").exists()


def test_stages_have_optimizers_of_their_own_which_a_run_keeps(tmp_path: Path) -> None:
    run = staged(tmp_path, pretrain_epochs=1, epochs=2, pretrain_learning_rate=0.05)
    rates = [one.param_groups[0]["lr"] for one in (run.trainer.optimizer, run.trainer.optimizer_pretrain)]
    assert rates == [0.01, 0.05]
    run.fit()
    state = read_model_file(run.trainer.saved_model_file)
    assert sorted(state["optimizer"]) == ["optimizer", "optimizer_pretrain"]
    alone = staged(tmp_path)
    assert alone.trainer.optimizer_pretrain.param_groups[0]["lr"] == 0.01


def test_the_first_stage_may_have_batches_of_its_own(tmp_path: Path) -> None:
    seen = Drawn()
    given = {"pretrain_epochs": 1, "epochs": 1, "pretrain_batch_size": 30}
    staged(tmp_path, seen, **given).fit(saved=False)
    # Prefixes are counted, and otherwise positions, of which a sequence has six.
    assert [max(rows) for rows in seen.rows] == [30, 4]
    seen = Drawn()
    staged(tmp_path, seen, **given, pretrain_prefixes=False).fit(saved=False)
    assert [max(rows) for rows in seen.rows] == [5, 4]


def test_each_stage_can_be_a_run_of_its_own(tmp_path: Path) -> None:
    first = staged(tmp_path, train_stage="pretrain", pretrain_epochs=2)
    assert first.fit() == (-1.0, None)
    path = tmp_path / "saved" / "S3Rec-tiny-2.pth"
    seen = Drawn()
    second = staged(tmp_path, seen, train_stage="finetune", pre_model_path=str(path))
    for name, value in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value), name
    score, _ = second.fit()
    assert score >= 0
    assert set("".join(seen.epochs)) == {"f"}
    assert len(seen.epochs) == 2


def test_the_first_stage_takes_every_part_of_a_sequence_from_its_beginning(tmp_path: Path) -> None:
    seen = Drawn()
    run = staged(tmp_path, seen, pretrain_epochs=1, epochs=1)
    run.fit(saved=False)
    users, _ = run.train.dataset.user_item_pairs()
    assert [sum(rows) for rows in seen.rows] == [len(users), run.train.sample_size]
    assert run.train.sample_size < len(users)


def test_a_first_stage_of_prefixes_is_resumed_exactly(tmp_path: Path) -> None:
    given = {"pretrain_epochs": 1, "epochs": 1, "save_every": "1 step", "pretrain_batch_size": 20}
    whole = staged(tmp_path / "whole", run_dir=str(tmp_path / "whole" / "run"), **given)
    whole.fit()
    cut = {**given, "run_dir": str(tmp_path / "cut" / "run")}
    with pytest.raises(CutError):
        staged(tmp_path / "cut", CutAt(2), **cut).fit()
    rest = staged(tmp_path / "cut", **cut)
    rest.fit()
    # The first stage was cut at its second update.
    assert rest.updates[0] == 1
    for name, value in whole.model.state_dict().items():
        assert torch.equal(rest.model.state_dict()[name], value), name


def test_prefixes_are_rows_of_both_stages_where_positions_are_not_trained_at_once(tmp_path: Path) -> None:
    seen = Drawn()
    run = staged(tmp_path, seen, train_all_positions=False, pretrain_epochs=1, epochs=1)
    run.fit(saved=False)
    assert [sum(rows) for rows in seen.rows] == [run.train.sample_size] * 2


def test_a_run_goes_on_in_the_stage_that_it_was_in(tmp_path: Path) -> None:
    given = {"run_dir": str(tmp_path / "run"), "pretrain_epochs": 2, "epochs": 2, "save_every": "1 step"}
    with pytest.raises(CutError):
        staged(tmp_path, CutAt(2), **given).fit()
    told = "the run was saved with train_stage='both', pretrain_epochs=2, pretrain_prefixes=True, and now has "
    with pytest.raises(CheckpointError, match=f"{told}train_stage='both', pretrain_epochs=3"):
        staged(tmp_path, **{**given, "pretrain_epochs": 3}).fit()
    with pytest.raises(CheckpointError, match=f"{told}train_stage='pretrain', pretrain_epochs=None"):
        staged(tmp_path, **given, train_stage="pretrain").fit()
    with pytest.raises(CheckpointError, match=r"now has .*, pretrain_prefixes=False; set them as they were"):
        staged(tmp_path, **given, pretrain_prefixes=False).fit()
    run = staged(tmp_path, **given)
    run.fit()
    assert len(run.trainer.train_loss_dict) == 4


def test_a_first_stage_alone_may_be_made_longer(tmp_path: Path) -> None:
    given = {"run_dir": str(tmp_path / "run"), "train_stage": "pretrain", "save_step": 1}
    staged(tmp_path, **given, pretrain_epochs=1).fit()
    longer = staged(tmp_path, **given, pretrain_epochs=3)
    longer.fit()
    steps = sum(longer.updates)
    assert longer.updates == (steps // 3, steps - steps // 3)
    assert len(longer.trainer.train_loss_dict) == 3
    assert sorted(path.name for path in (tmp_path / "run").glob("*.pth")) == [
        "S3Rec-tiny-1.pth",
        "S3Rec-tiny-2.pth",
        "S3Rec-tiny-3.pth",
        "S3Rec.pth",
    ]


def test_a_second_stage_without_a_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_stage='finetune' begins from what train_stage='pretrain' has kept"):
        staged(tmp_path, train_stage="finetune")
    with pytest.raises(CheckpointError, match=r"nothing\.pth"):
        staged(tmp_path, train_stage="finetune", pre_model_path=str(tmp_path / "nothing.pth"))
    other = make(tmp_path, "SASRec", epochs=1)
    other.fit()
    told = f"pre_model_path={other.trainer.saved_model_file!r} is of the model SASRec, and this one is S3Rec"
    with pytest.raises(CheckpointError, match=re.escape(told)):
        staged(tmp_path, train_stage="finetune", pre_model_path=other.trainer.saved_model_file)


@pytest.mark.parametrize("stage", ["both", "pretrain"])
def test_a_file_that_no_stage_begins_from_is_refused(tmp_path: Path, stage: str) -> None:
    told = f"pre_model_path='a.pth' is where train_stage='finetune' begins, and train_stage is {stage!r}; set that, or"
    with pytest.raises(ConfigError, match=re.escape(told)):
        staged(tmp_path, train_stage=stage, pre_model_path="a.pth")


def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_stage='finetun' does not exist for S3Rec; did you mean 'finetune'"):
        staged(tmp_path, train_stage="finetun")
    with pytest.raises(ConfigError, match="pretrain_epochs=0 must be a whole number from 1"):
        staged(tmp_path, pretrain_epochs=0)
    with pytest.raises(ConfigError, match="save_step=0 must be a whole number from 1"):
        staged(tmp_path, save_step=0)
    with pytest.raises(ConfigError, match="pretrain_batch_size=0 must be a whole number from 1"):
        staged(tmp_path, pretrain_batch_size=0)


def test_data_that_nothing_can_be_hidden_of_is_refused(tmp_path: Path) -> None:
    run = staged(tmp_path)
    with pytest.raises(ConfigError, match="the training data is a list, whose sequences cannot be hidden from the mod"):
        run.trainer.fit([run.train.batch_at(0, 0)], verbose=False, saved=False)


class Halves(BPR):
    """A model in RecBole's manner, whose loss depends on a stage that it knows itself."""

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.train_stage = config["train_stage"]
        self.asked: list[str] = []

    def calculate_loss(self, interaction: Any) -> Any:
        self.asked.append(self.train_stage)
        return super().calculate_loss(interaction)


class HalvesTrainer(PretrainTrainer):
    """A trainer in RecBole's manner, which makes the stage that the model is in."""

    def fit(self, train_data: Any, valid_data: Any = None, *given: Any, **named: Any) -> Any:
        if self.model.train_stage == "actor":
            return self.pretrain(train_data, False, False)
        return super().fit(train_data, valid_data, *given, **named)


def test_a_trainer_of_ones_own_says_when_the_first_stage_is_made(tmp_path: Path) -> None:
    given: dict[str, Any] = {"embedding_size": 8, "pretrain_epochs": 2, "save_step": 1, "epochs": 3}
    first = runs.make(tmp_path, Halves, kind=HalvesTrainer, train_stage="actor", **given)
    assert first.fit() == (-1.0, None)
    assert len(first.trainer.train_loss_dict) == 2
    assert (tmp_path / "saved" / "Halves-toy-2.pth").exists()
    second = runs.make(tmp_path, Halves, kind=HalvesTrainer, train_stage="whole", **given)
    score, _ = second.fit()
    assert score > 0
    assert len(second.trainer.train_loss_dict) == 3
    assert set(second.model.asked) == {"whole"}


class RaCT(Halves):
    """The stages of RecBole's model of this name, with another loss."""


@pytest.mark.parametrize("stage", ["actor_pretrain", "critic_pretrain", "finetune"])
def test_each_of_the_three_stages_of_ract_is_a_run(tmp_path: Path, stage: str) -> None:
    given: dict[str, Any] = {"embedding_size": 8, "pretrain_epochs": 2, "save_step": 1, "epochs": 3}
    run = runs.make(tmp_path, RaCT, train_stage=stage, **given)
    assert type(run.trainer) is RaCTTrainer
    _, result = run.fit()
    evaluated = stage == "finetune"
    assert len(run.trainer.train_loss_dict) == (3 if evaluated else 2)
    assert (result is not None) is evaluated
    assert (tmp_path / "saved" / "RaCT-toy-2.pth").exists() is not evaluated
    assert set(run.model.asked) == {stage}


def test_a_run_of_one_stage_of_ract_is_not_gone_on_with_by_another(tmp_path: Path) -> None:
    given: dict[str, Any] = {"pretrain_epochs": 1, "save_step": 1, "run_dir": str(tmp_path / "run")}
    runs.make(tmp_path, RaCT, train_stage="actor_pretrain", **given).fit()
    with pytest.raises(CheckpointError, match=r"stage='actor_pretrain', and now has .*stage='critic_pretrain'"):
        runs.make(tmp_path, RaCT, train_stage="critic_pretrain", **given).fit()


def test_a_stage_that_ract_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_stage='actor' does not exist for RaCT; there are"):
        runs.make(tmp_path, RaCT, train_stage="actor", pretrain_epochs=1, save_step=1)
