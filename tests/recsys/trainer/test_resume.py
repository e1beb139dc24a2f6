"""Killed at any moment and started again, a training ends as if nothing had happened: every bit is the same."""

import json
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import CutAt, CutError, metric_lines, starts_of
from tests.recsys.trainer import runs
from tests.recsys.trainer.runs import Run, assert_same_training, fit_through, interactions, make
from treadle.callback import TrainerCallback
from treadle.checkpoint import CheckpointStore, FsspecStorage, read_file
from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.errors import CheckpointError, DataError
from treadle.recsys import Trainer
from treadle.recsys.evaluation import full_ranking, sampled_ranking
from treadle.recsys.trainers.loop import evaluation as evaluating
from treadle.recsys.trainers.loop import model_file
from treadle.recsys.trainers.loop.model_file import RecommenderCheckpointer
from treadle.recsys.trainers.loop.optimizers import ROW_WISE
from treadle.runs.preemption import PreemptedExit, after_evaluated_batch
from treadle.runs.status import read_status

EVERY_STEP = {"save_every": "1 step"}
MODELS: dict[str, dict[str, Any]] = {
    "BPR": {},
    "LightGCN": {},
    "MultiVAE": {"mlp_hidden_size": [16], "latent_dimension": 8, "train_batch_size": 8, "total_anneal_steps": 20},
    "SGL": {"embedding_size": 8, "n_layers": 1},
    "RecVAE": {"hidden_dimension": 16, "latent_dimension": 8, "train_batch_size": 8, "n_enc_epochs": 2},
    "CFKG": {"embedding_size": 8},
    "KTUP": {"embedding_size": 8, "train_rec_step": 1, "train_kg_step": 1},
    "KGAT": {"embedding_size": 8, "kg_embedding_size": 8, "layers": [8]},
    "MKR": {"embedding_size": 8, "kge_interval": 2, "kge_learning_rate": 0.01, "train_batch_size": 128},
}
"""A model for each way of training: pairs, a graph, users with noise, graphs drawn each epoch, two optimizers; pairs
and triples together, in turns by epochs, one after the other with attention renewed, and triples in some epochs."""
CUTS = {"RecVAE": [1, 7, 9, 20], "KTUP": [2, 4, 5, 8], "KGAT": [1, 4, 6, 11], "MKR": [4, 5, 9, 12]}
"""After which updates a training dies: in every pass, after its last update, and between epochs."""


def check(
    folder: Path, cuts: list[int], model: Any = "BPR", *, kind: Any = None, saved: int = 1, **given: Any
) -> tuple[Run, Run]:
    """Train once through and once through `cuts`, saved every so many steps, and compare everything."""
    whole = make(folder, model, kind=kind, run_dir=str(folder / "whole"), **given)
    whole.fit()
    cut = fit_through(cuts, partial(make, folder, model, kind=kind, run_dir=str(folder / "cut"), **given), saved=saved)
    assert_same_training(cut.trainer, whole.trainer)
    assert metric_lines(folder / "cut") == metric_lines(folder / "whole")
    return cut, whole


@pytest.mark.parametrize("model", MODELS)
def test_a_training_that_dies_inside_epochs_and_between_them_ends_with_the_same_bits(
    tmp_path: Path, model: str
) -> None:
    # Three epochs of three to nine updates: the first update, the last of an epoch, and others.
    check(tmp_path, CUTS.get(model, [1, 3, 5, 8]), model, **MODELS[model], **EVERY_STEP)


@pytest.mark.parametrize("learner", ROW_WISE)
def test_a_training_whose_optimizer_moves_rows_of_batches_only_ends_with_the_same_bits(
    tmp_path: Path, learner: str
) -> None:
    # NeuMF has layers besides its tables.
    given = {"mf_embedding_size": 8, "mlp_embedding_size": 8, "mlp_hidden_size": [8], "epochs": 2}
    check(tmp_path, [1, 4], "NeuMF", learner=learner, **given, **EVERY_STEP)


def test_a_training_that_is_saved_between_epochs_only_repeats_what_it_lost(tmp_path: Path) -> None:
    check(tmp_path, [2, 6], save_every="1 epoch", saved=4)


def test_the_model_of_the_best_epoch_is_the_same_too(tmp_path: Path) -> None:
    cut, whole = check(tmp_path, [4], **EVERY_STEP)
    left, right = (read_file(run.trainer.saved_model_file) for run in (cut, whole))
    assert left["epoch"] == right["epoch"]
    assert all(torch.equal(left["state_dict"][name], right["state_dict"][name]) for name in left["state_dict"])
    assert cut.trainer.evaluate(cut.test).exact == whole.trainer.evaluate(whole.test).exact


def test_early_stopping_counts_on_after_a_resume_and_the_end_stays_the_end(tmp_path: Path) -> None:
    given = {"learning_rate": 0.5, "stopping_step": 1, "epochs": 20, **EVERY_STEP}
    _, whole = check(tmp_path, [8], **given)
    epochs = len(whole.trainer.train_loss_dict)
    assert epochs < 20
    again = make(tmp_path, run_dir=str(tmp_path / "whole"), **given)
    assert again.fit() == (whole.trainer.best_valid_score, whole.trainer.best_valid_result)
    assert again.updates == (4 * epochs, 0)
    assert len(again.trainer.train_loss_dict) == epochs


def test_a_finished_training_goes_on_with_more_epochs(tmp_path: Path) -> None:
    make(tmp_path, run_dir=str(tmp_path / "longer"), epochs=2).fit()
    longer = make(tmp_path, run_dir=str(tmp_path / "longer"), epochs=4)
    longer.fit()
    assert longer.updates == (8, 8)
    whole = make(tmp_path, epochs=4)
    whole.fit()
    assert_same_training(longer.trainer, whole.trainer)


def test_a_closed_form_model_that_dies_while_it_is_saved_is_fitted_again(tmp_path: Path) -> None:
    class Dying(CutAt):
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            raise CutError

    folder = str(tmp_path / "ease")
    with pytest.raises(CutError):
        make(tmp_path, "EASE", Dying(0), run_dir=folder).fit()
    resumed = make(tmp_path, "EASE", run_dir=folder)
    resumed.fit()
    whole = make(tmp_path, "EASE", run_dir=str(tmp_path / "whole"))
    whole.fit()
    assert_same_training(resumed.trainer, whole.trainer)
    again = make(tmp_path, "EASE", run_dir=folder)
    again.fit()
    assert_same_training(again.trainer, whole.trainer)


# Loops of the user's ------------------------------------------------------------------------------------------


class OwnLoop(Trainer):
    """Makes its updates itself, with randomness of its own."""

    def _train_epoch(self, train_data: Any, epoch_idx: int) -> float:  # type: ignore[override]
        total = 0.0
        for interaction in train_data:
            self.optimizer.zero_grad()
            loss = self.model.calculate_loss(interaction.to(self.device)) * (1 + 0.1 * torch.rand(()))
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total


class TwoOptimizers(Trainer):
    """Has an optimizer for users and one for items, and two passes in an epoch by the trainer's own loop."""

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.optimizer_users = self._build_optimizer(params=model.user_embedding.parameters())
        self.optimizer_items = self._build_optimizer(params=model.item_embedding.parameters(), learning_rate=0.01)

    def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> Any:  # type: ignore[override]
        self.optimizer = self.optimizer_users
        first = super()._train_epoch(train_data, epoch_idx)
        self.optimizer = self.optimizer_items
        return first, super()._train_epoch(train_data, epoch_idx, loss_func=self.model.calculate_loss)


@pytest.mark.parametrize("kind", [OwnLoop, TwoOptimizers])
def test_a_loop_of_ones_own_is_repeated_from_the_start_of_its_epoch(tmp_path: Path, kind: Any) -> None:
    runs = {name: partial(make, tmp_path, kind=kind, run_dir=str(tmp_path / name)) for name in ("whole", "cut")}
    whole = runs["whole"]()
    whole.fit()

    def die(epoch: int, score: float) -> None:
        if epoch == 1:
            raise CutError

    with pytest.raises(CutError):
        runs["cut"](save_every="1 epoch").fit(callback_fn=die)
    resumed = runs["cut"](save_every="1 epoch")
    resumed.fit()
    # The loss of the first epoch was saved, and the second is made again.
    assert starts_of(tmp_path / "cut") == [0, resumed.trainer._core.progress.step // 3]
    assert_same_training(resumed.trainer, whole.trainer)


# From a file --------------------------------------------------------------------------------------------------


def cut_after(run: Run, epoch: int) -> None:
    """Let a training die after an epoch."""

    def die(done: int, score: float) -> None:
        if done == epoch:
            raise CutError

    with pytest.raises(CutError):
        run.fit(callback_fn=die)
    run.trainer._files.wait()


def test_fact_3_resume_checkpoint_goes_on_from_the_folder_beside_the_file_and_loses_no_epoch(tmp_path: Path) -> None:
    whole = make(tmp_path, epochs=4)
    whole.fit()
    first = make(tmp_path, epochs=4, save_every="1 step")
    cut_after(first, 2)
    resumed = make(tmp_path, epochs=4, save_every="1 step")
    resumed.trainer.resume_checkpoint(first.trainer.saved_model_file)
    resumed.fit()
    assert resumed.updates == (12, 4)
    assert resumed.trainer.saved_model_file == first.trainer.saved_model_file
    assert_same_training(resumed.trainer, whole.trainer)


def test_resume_checkpoint_goes_on_exactly_from_the_epoch_of_a_file_alone(tmp_path: Path) -> None:
    given = {"learning_rate": 0.05, "mlp_hidden_size": [16], "latent_dimension": 8, "train_batch_size": 8}
    whole = make(tmp_path, "MultiVAE", epochs=5, **given)
    whole.fit()
    first = make(tmp_path, "MultiVAE", epochs=5, **given)
    cut_after(first, 2)
    best = read_file(first.trainer.saved_model_file)["epoch"]
    alone = tmp_path / "elsewhere.pth"
    shutil.copy(first.trainer.saved_model_file, alone)
    resumed = make(tmp_path, "MultiVAE", epochs=5, **given)
    resumed.trainer.resume_checkpoint(alone)
    assert resumed.trainer.start_epoch == best + 1
    assert resumed.trainer.best_valid_score == first.trainer.best_valid_score
    assert list(resumed.trainer.train_loss_dict) == list(range(best + 1))
    resumed.fit()
    assert resumed.updates == (3 * (best + 1), 15 - 3 * (best + 1))
    assert_same_training(resumed.trainer, whole.trainer)


def test_a_file_is_gone_on_from_without_saving_anything(tmp_path: Path) -> None:
    first = make(tmp_path, epochs=2)
    first.fit()
    whole = make(tmp_path, epochs=3)
    whole.fit()
    resumed = make(tmp_path, epochs=3)
    resumed.trainer.resume_checkpoint(shutil.copy(first.trainer.saved_model_file, tmp_path / "copy.pth"))
    before = sorted(path.name for path in tmp_path.iterdir())
    resumed.fit(saved=False)
    # The file is of the best epoch, which was the first.
    assert resumed.updates == (4, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert torch.equal(resumed.model.user_embedding.weight, whole.model.user_embedding.weight)


def test_resume_checkpoint_refuses_the_file_of_another_model(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    other = make(tmp_path, "LightGCN", epochs=1)
    with pytest.raises(CheckpointError, match="is of the model BPR, and this trainer's is LightGCN"):
        other.trainer.resume_checkpoint(run.trainer.saved_model_file)


def test_resume_checkpoint_refuses_weights_of_another_size(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    wider = make(tmp_path, epochs=1, embedding_size=16)
    with pytest.raises(CheckpointError, match=r"(?s)does not fit the model: .*user_embedding"):
        wider.trainer.resume_checkpoint(run.trainer.saved_model_file)


def renamed() -> dict[str, list[Any]]:
    """Return as many rows, users and items as every other run of these tests has, but other items."""
    table = interactions()
    return {**table, "item_id": [f"new {item}" for item in table["item_id"]]}


def told(where: Any) -> str:
    return (
        f"{where} was trained with other tokens of item_id than 'toy' has now, or in another order; bring the data "
        "back as it was, or train again"
    )


def test_data_in_which_ids_mean_something_else_is_refused_whatever_a_run_goes_on_from(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = make(tmp_path, run_dir=str(folder), epochs=1)
    run.fit()
    with pytest.raises(DataError) as by_folder:
        make(tmp_path, run_dir=str(folder), epochs=2, table=renamed()).fit()
    assert str(by_folder.value) == told(folder)
    other = make(tmp_path, epochs=2, table=renamed())
    other.trainer.resume_checkpoint(run.trainer.saved_model_file)
    for _ in range(2):
        with pytest.raises(DataError) as by_file:
            other.fit()
        assert str(by_file.value) == told(run.trainer.saved_model_file)
    with pytest.raises(DataError) as by_evaluation:
        other.trainer.evaluate(other.test, model_file=run.trainer.saved_model_file)
    assert str(by_evaluation.value) == told(run.trainer.saved_model_file)


def test_so_is_a_graph_whose_entities_mean_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"run_dir": str(tmp_path / "run"), "embedding_size": 8, "kg_embedding_size": 8}
    make(tmp_path, "CFKG", epochs=1, **given).fit()
    plain = runs.graph()
    triples = {name: [token.replace("x", "new ") for token in tokens] for name, tokens in plain["kg"].items()}
    monkeypatch.setattr(runs, "graph", lambda: {**plain, "kg": triples})
    with pytest.raises(DataError, match="was trained with other tokens of entity_id than 'toy' has now"):
        make(tmp_path, "CFKG", epochs=2, **given).fit()


def test_so_are_features_whose_tokens_mean_something_else_to_a_model_of_context(tmp_path: Path) -> None:
    def table(*days: str) -> dict[str, list[Any]]:
        rows = interactions()
        return {**rows, "day": [days[place % len(days)] for place in range(len(rows["user_id"]))]}

    given = {"run_dir": str(tmp_path / "run"), "embedding_size": 4, "metrics": ["AUC"], "valid_metric": "AUC"}
    given |= {"eval_args": {"mode": "labeled"}, "threshold": {"rating": 3}}
    make(tmp_path, "FM", epochs=1, table=table("Monday", "Tuesday"), **given).fit()
    with pytest.raises(DataError, match="was trained with other tokens of day than 'toy' has now"):
        make(tmp_path, "FM", epochs=2, table=table("Tuesday", "Monday"), **given).fit()


def test_checkpoints_from_before_there_were_fingerprints_are_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "run")
    with monkeypatch.context() as before:
        before.setattr(Trainer, "_fingerprints", lambda self: {})
        before.setattr(RecommenderCheckpointer, "facts", RunCheckpointer.facts)
        run = make(tmp_path, run_dir=folder, epochs=1)
        run.fit()
    from_folder = make(tmp_path, run_dir=folder, epochs=2)
    from_folder.fit()
    assert from_folder.updates == (4, 4)
    assert list(from_folder.trainer.train_loss_dict) == [0, 1]
    from_file = make(tmp_path, epochs=2)
    from_file.trainer.resume_checkpoint(shutil.copy(run.trainer.saved_model_file, tmp_path / "old.pth"))
    from_file.fit()


def test_what_a_user_tracks_is_saved_and_comes_back(tmp_path: Path) -> None:
    class Counter:
        count = 0

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    folder = str(tmp_path / "run")
    first = make(tmp_path, run_dir=folder, epochs=1)
    counter = Counter()
    first.trainer.track(counter=counter)
    first.fit(callback_fn=lambda epoch, score: setattr(counter, "count", 5))
    second, fresh = make(tmp_path, run_dir=folder, epochs=2), Counter()
    second.trainer.track(counter=fresh)
    second.fit()
    assert fresh.count == 5


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = make(tmp_path, run_dir=str(folder), epochs=1)

    def again(epoch: int, score: float) -> None:
        from treadle.runs.status import is_locked

        assert is_locked(folder)

    run.fit(callback_fn=again)


def test_another_batch_size_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    make(tmp_path, run_dir=folder, epochs=1).fit()
    with pytest.raises(CheckpointError, match=r"batch\.global: 64 in the checkpoint, 32 now"):
        make(tmp_path, run_dir=folder, epochs=2, train_batch_size=32).fit()


class AskedToLeave(TrainerCallback):
    """Has the process asked to leave after an update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == self.step:
            signal.raise_signal(signal.SIGTERM)


def test_a_run_that_is_asked_to_leave_says_once_and_rightly_how_to_go_on(tmp_path: Path, capsys: Any) -> None:
    first = make(tmp_path, "BPR", AskedToLeave(4))
    with pytest.raises(PreemptedExit) as left:
        first.fit(verbose=True)
    folder = first.trainer.run_dir
    assert str(left.value) == (
        f"saved step 4 in {folder}; start the same command with --resume={folder} to resume, or in a loop of your "
        "own call resume_checkpoint with this folder before fit"
    )
    assert capsys.readouterr().out.count("to resume") == 1
    # What it says leads on: to the end of a run that nobody asked to leave.
    resumed = make(tmp_path)
    resumed.trainer.resume_checkpoint(folder)
    resumed.fit()
    assert resumed.updates == (4, 8)
    assert_same_training(resumed.trainer, whole(tmp_path))


@pytest.mark.parametrize("given", [{"run_dir": "run"}, {}])
def test_where_the_same_command_goes_on_that_is_what_is_said(tmp_path: Path, given: dict[str, Any]) -> None:
    named = {name: str(tmp_path / value) for name, value in given.items()}
    run = make(tmp_path, "BPR", AskedToLeave(4), **named)
    if not named:
        before = tmp_path / "saved" / "BPR-before"
        before.mkdir(parents=True)
        run.trainer.resume_checkpoint(before)
    with pytest.raises(PreemptedExit, match=r"saved step 4 in .*; start the same command to resume$"):
        run.fit()


def whole(folder: Path) -> Any:
    """Return the trainer of a run that nothing came between."""
    run = make(folder / "whole")
    run.fit()
    return run.trainer


def test_a_checkpoint_that_knows_of_a_best_model_is_written_after_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between the two would go on with a best score and no model of it."""
    there: list[tuple[int, bool]] = []
    write, write_file = CheckpointStore.write, model_file.write_file

    def write_late(path: Path, state: dict[str, Any]) -> None:
        # As on a slow disk: whatever does not wait for the file is ahead of it.
        time.sleep(0.2)
        write_file(path, state)

    def note(self: CheckpointStore, step: int, *arguments: Any) -> None:
        there.append((step, (tmp_path / "run" / "BPR.pth").exists()))
        write(self, step, *arguments)

    monkeypatch.setattr(model_file, "write_file", write_late)
    monkeypatch.setattr(CheckpointStore, "write", note)
    run = make(tmp_path, run_dir=str(tmp_path / "run"), save_every="1 epoch")
    run.fit()
    steps = len(run.train)
    assert there[:2] == [(0, False), (steps, True)]


SAMPLED = {"eval_args": {"mode": "uni10"}}
LABELLED = {"eval_args": {"mode": "labeled"}, "metrics": ["RMSE"], "valid_metric": "RMSE", "LABEL_FIELD": "rating"}


@pytest.mark.parametrize("given", [{}, SAMPLED, LABELLED], ids=["full", "sampled", "labelled"])
def test_a_run_asked_to_leave_in_an_evaluation_breaks_it_off_and_makes_it_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    evaluated: list[int] = []
    at = 0

    def batch_evaluated() -> None:
        evaluated.append(1)
        if len(evaluated) == at:
            signal.raise_signal(signal.SIGTERM)
        after_evaluated_batch()

    for module in (full_ranking, sampled_ranking, evaluating):
        monkeypatch.setattr(module, "after_evaluated_batch", batch_evaluated)
    monkeypatch.setattr(full_ranking, "users_at_once", lambda *_: 5)
    monkeypatch.setattr(sampled_ranking, "users_at_once", lambda *_: 5)
    make_run = partial(make, tmp_path, eval_batch_size=8, **given)
    whole_run = make_run(run_dir=str(tmp_path / "whole"))
    whole_run.fit()
    each = len(evaluated) // 3
    assert each > 2

    evaluated.clear()
    at = each + 2
    with pytest.raises(PreemptedExit, match="saved step"):
        make_run(run_dir=str(tmp_path / "cut")).fit()
    assert len(evaluated) == at
    resumed = make_run(run_dir=str(tmp_path / "cut"))
    resumed.fit()
    assert len(evaluated) == at + 2 * each
    assert_same_training(resumed.trainer, whole_run.trainer)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")


class AskedAtTheEnd(TrainerCallback):
    """Has the process asked to leave when the run is over."""

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_run_asked_to_leave_at_its_end_keeps_its_model_and_leaves(tmp_path: Path) -> None:
    run = make(tmp_path, "BPR", AskedAtTheEnd(), run_dir=str(tmp_path / "run"))
    with pytest.raises(PreemptedExit, match="had come to its end"):
        run.trainer.fit(run.train, verbose=False)  # without data for validation the last model is kept at the end
    assert Path(run.trainer.saved_model_file).is_file()
    status = read_status(tmp_path / "run")
    assert status is not None
    assert status.state == "finished"


def test_a_training_that_is_kept_elsewhere_and_dies_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = make(tmp_path, run_dir=str(tmp_path / "whole"), **EVERY_STEP)
    whole.fit()
    storage = FsspecStorage(f"file://{tmp_path}/kept")
    cut = fit_through([3, 8], partial(make, tmp_path, "BPR", run_dir=f"file://{tmp_path}/kept", **EVERY_STEP))
    assert_same_training(cut.trainer, whole.trainer)
    (tmp_path / "lines").mkdir()
    storage.download("metrics.jsonl", tmp_path / "lines" / "metrics.jsonl")
    assert metric_lines(tmp_path / "lines") == metric_lines(tmp_path / "whole")
    assert "BPR.pth" in storage.files()
    assert len(json.loads(storage.read("manifest.json"))["starts"]) == 3
