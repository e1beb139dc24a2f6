"""The calls that most people begin with."""

import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import interactions, make, settings
from treadle.checkpoint import read_file, write_file
from treadle.cli.application import app
from treadle.errors import CheckpointError, ConfigError, DataError, TreadleError
from treadle.recsys import (
    Config,
    Recommender,
    create_dataset,
    data_preparation,
    get_model,
    get_trainer,
    init_seed,
    load_data_and_model,
    objective_function,
    run_recbole,
)
from treadle.recsys.models.general_recommender import BPR
from treadle.recsys.quick_start import init_logger, run
from treadle.runs.preemption import PreemptedExit


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """Write the small data set as an atomic file, and return settings that find it."""
    table = interactions()
    header = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
    write_table(tmp_path / "data" / "toy", "toy.inter", header, zip(*table.values(), strict=True))
    return settings(tmp_path, data_path=str(tmp_path / "data"), embedding_size=8)


def test_run_recbole_trains_and_tests(data: dict[str, Any], capsys: Any) -> None:
    found = run_recbole("BPR", "toy", config_dict=data)
    assert list(found) == ["best_valid_score", "valid_score_bigger", "best_valid_result", "test_result"]
    assert found["valid_score_bigger"] is True
    assert found["best_valid_result"]["ndcg@5"] == round(found["best_valid_score"], 4)
    assert set(found["test_result"]) == {"recall@5", "ndcg@5", "mrr@5"}
    printed = capsys.readouterr().out
    assert "epoch 1/" in printed
    for name in ("best_valid_result", "test_result"):
        shown = "    ".join(f"{metric} : {value}" for metric, value in found[name].items())
        assert f"{name.replace('_', ' ')}: {shown}\n" in printed


def test_run_recbole_gives_the_same_each_time_and_as_the_parts_do_by_hand(data: dict[str, Any]) -> None:
    first, second = run_recbole("BPR", "toy", config_dict=data), run_recbole("BPR", "toy", config_dict=data)
    assert first == second
    config = Config("BPR", "toy", config_dict=data)
    init_seed(config["seed"], config["reproducibility"])
    train, valid, test = data_preparation(config, create_dataset(config))
    model = get_model("BPR")(config, train.dataset)
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    assert trainer.fit(train, valid, verbose=False)[0] == first["best_valid_score"]
    assert trainer.evaluate(test) == first["test_result"]


def test_run_recbole_tests_the_best_model_even_if_none_is_saved(data: dict[str, Any]) -> None:
    assert run_recbole("BPR", "toy", config_dict=data, saved=False) == run_recbole("BPR", "toy", config_dict=data)


def test_run_recbole_reads_files_and_puts_its_result_into_a_queue(data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: BPR\ndataset: toy\nepochs: 1\n")
    given = {name: value for name, value in data.items() if name != "epochs"}
    results: list[Any] = []
    queue = type("Queue", (), {"put": staticmethod(results.append)})
    found = run_recbole(config_file_list=[tmp_path / "own.yaml"], config_dict=given, queue=queue)
    assert results == [found]


def test_an_objective_says_nothing_and_names_its_model(data: dict[str, Any], capsys: Any) -> None:
    found = objective_function({**data, "model": "BPR", "dataset": "toy"})
    assert found["model"] == "BPR"
    assert found["best_valid_score"] == run_recbole("BPR", "toy", config_dict=data)["best_valid_score"]
    assert "trial" not in capsys.readouterr().out


@pytest.mark.parametrize("model", ["BPR", "EASE", "MultiVAE"])
def test_a_model_comes_back_from_its_file_with_its_data(data: dict[str, Any], model: str) -> None:
    given = {"mlp_hidden_size": [8], "latent_dimension": 4} if model == "MultiVAE" else {}
    config = Config(model, "toy", config_dict={**data, **given})
    init_seed(config["seed"], True)
    train, valid, test = data_preparation(config, create_dataset(config))
    trainer = get_trainer(config, get_model(model)(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    expected = trainer.evaluate(test)
    again, made, dataset, _, _, test_data = load_data_and_model(trainer.saved_model_file)
    assert again["epochs"] == config["epochs"]
    assert dataset.item_num == train.dataset.item_num
    assert get_trainer(again, made).evaluate(test_data, load_best_model=False).exact == expected.exact


class Mine(BPR):
    """A model that nobody registered."""


def test_a_class_and_tables_that_no_file_knows_are_handed_over(tmp_path: Path) -> None:
    run = make(tmp_path, Mine, epochs=1, embedding_size=8)
    run.fit()
    with pytest.raises(ConfigError, match=r"there is no model 'Mine'.*; if it is a class of your own, pass it as"):
        load_data_and_model(run.trainer.saved_model_file)
    dataset = create_dataset(run.trainer.config, inter=interactions())
    _, made, *_ = load_data_and_model(run.trainer.saved_model_file, model=Mine, dataset=dataset)
    assert torch.equal(made.user_embedding.weight, run.model.user_embedding.weight)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    torch.save({"config": 1}, tmp_path / "recbole.pth")
    with pytest.raises(CheckpointError, match=r"was written by torch\.save, .*recsys\.compat\.import_checkpoint"):
        load_data_and_model(tmp_path / "recbole.pth")


def test_init_seed_seeds_every_generator() -> None:
    drawn = []
    for _ in range(2):
        init_seed(7, True)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]
    assert torch.backends.cudnn.deterministic
    init_seed(7, False)
    assert not torch.backends.cudnn.deterministic


def test_a_level_of_logging_that_does_not_exist_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="state='loud' is no level of logging; use one of"):
        run_recbole("BPR", "toy", config_dict={**data, "state": "loud"})
    config = Config("BPR", "toy", config_dict={**data, "state": "warning"})
    config["state"] = "warnign"
    with pytest.raises(ConfigError, match=r"state='warnign' is no level of logging; did you mean 'WARNING'\?"):
        init_logger(config)


# Several processes --------------------------------------------------------------------------------------------


def test_run_on_one_process_is_run_recbole(data: dict[str, Any]) -> None:
    assert run("BPR", "toy", config_dict=data, nproc=1) == run_recbole("BPR", "toy", config_dict=data)


@pytest.mark.slow
def test_run_starts_processes_and_returns_what_one_finds(data: dict[str, Any]) -> None:
    found, alone = run("BPR", "toy", config_dict=data, nproc=2), run("BPR", "toy", config_dict=data)
    assert found["best_valid_score"] == pytest.approx(alone["best_valid_score"], abs=1e-6)
    assert found["test_result"].exact == pytest.approx(alone["test_result"].exact, abs=1e-6)


def test_processes_on_other_machines_are_left_to_torchrun(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="world_size=4 and group_offset=0 mean several machines; start the program"):
        run("BPR", "toy", config_dict=data, nproc=2, world_size=4)


def test_settings_without_a_model_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="there is no model: pass model=, or set it in a file, the dict or the comma"):
        run_recbole(dataset="toy", config_dict=data)


def test_a_model_is_not_loaded_for_data_in_which_ids_mean_something_else(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1)
    run.fit()
    table = interactions()
    dataset = create_dataset(
        run.trainer.config, inter={**table, "item_id": [f"new {item}" for item in table["item_id"]]}
    )
    with pytest.raises(DataError) as error:
        load_data_and_model(run.trainer.saved_model_file, dataset=dataset)
    assert str(error.value) == (
        f"{run.trainer.saved_model_file} was trained with other tokens of item_id than 'toy' has now, or in another "
        "order; bring the data back as it was, or train again"
    )


# Files of others ----------------------------------------------------------------------------------------------


@pytest.fixture
def trained(data: dict[str, Any]) -> Path:
    """Train a model, and return its file."""
    run_recbole("BPR", "toy", config_dict={**data, "epochs": 1})
    [found] = Path(data["checkpoint_dir"]).glob("*.pth")
    return found


@pytest.mark.parametrize("key", ["model", "located_at", "both"])
@pytest.mark.parametrize("text", ["{file}:X", "{file}", "os.system", "recbole.model:os", "recbole:{file}:X"])
def test_a_model_file_that_names_code_does_not_have_it_run(
    trained: Path, tmp_path: Path, key: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "innocent.py").write_text("open('it-ran', 'w')\nclass X:\n    calculate_loss = None\n")
    state = read_file(trained)
    state |= dict.fromkeys(("model", "located_at") if key == "both" else (key,), text.format(file="innocent.py"))
    write_file(trained, state)
    if key == "located_at" and not text.startswith("recbole:"):
        load_data_and_model(trained)
    else:
        with pytest.raises(TreadleError):
            load_data_and_model(trained)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("command", [["recommend", "u1"], ["similar", "i1"], ["export", "-o", "found.csv"]])
def test_no_command_runs_what_a_model_file_names(
    trained: Path, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "innocent.py").write_text("open('it-ran', 'w')\nclass X:\n    calculate_loss = None\n")
    write_file(trained, {**read_file(trained), "model": "innocent.py:X"})
    done = CliRunner().invoke(app, ["recsys", command[0], str(trained), *command[1:]])
    assert done.exit_code == 1
    assert "there is no model 'innocent.py:X'" in " ".join(done.stderr.split())
    assert "pass it as model= (--model FILE.py:NAME)" in " ".join(done.stderr.split())
    assert not (tmp_path / "it-ran").exists()


def test_the_settings_in_a_model_file_choose_no_folder_to_write_into(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state, elsewhere = read_file(trained), tmp_path / "elsewhere"
    state["config"] |= {"checkpoint_dir": str(elsewhere), "run_dir": str(elsewhere / "run"), "save_dataset": True}
    state["config"] |= {"dataset_save_path": str(elsewhere / "data"), "save_dataloaders": True, "log_wandb": True}
    state["config"] |= {"dataloaders_save_path": str(elsewhere / "split"), "log_tensorboard": True}
    write_file(trained, state)
    before = set(tmp_path.rglob("*"))
    config, model, _, train_data, valid_data, _ = load_data_and_model(trained)
    assert set(tmp_path.rglob("*")) == before
    assert config["checkpoint_dir"] == str(trained.parent)
    get_trainer(config, model).fit(train_data, valid_data, verbose=False)
    assert not elsewhere.exists()


# The command line of a program --------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [run_recbole, run])
def test_settings_on_the_command_line_of_a_program_go_over_all_others(
    data: dict[str, Any], call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_recbole("BPR", "toy", config_dict={**data, "epochs": 1, "topk": [3], "valid_metric": "NDCG@3"})
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs=1", "--topk=[3]", "--valid_metric=NDCG@3", "--nproc=1"])
    assert call("BPR", "toy", config_dict=data) == expected
    assert set(expected["test_result"]) == {"recall@3", "ndcg@3", "mrr@3"}


def test_a_program_goes_on_by_the_command_that_it_was_told_when_it_was_asked_to_leave(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    plain = BPR.calculate_loss
    leave_at = 0

    def leaving(self: Any, interaction: Any) -> Any:
        made.append(len(made))
        if len(made) == leave_at:
            signal.raise_signal(signal.SIGTERM)
        return plain(self, interaction)

    monkeypatch.setattr(BPR, "calculate_loss", leaving)
    expected = run_recbole("BPR", "toy", config_dict=data)
    steps, leave_at = len(made), 4
    made.clear()
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(PreemptedExit, match="start the same command with --resume=") as left:
        run_recbole("BPR", "toy", config_dict=data)
    said = str(left.value).split("same command with ")[1].split(" to resume")[0]
    monkeypatch.setattr(sys, "argv", ["train.py", said])
    assert run_recbole("BPR", "toy", config_dict=data) == expected
    assert len(made) == steps, "no step is made again"
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume=nowhere.pth"])
    with pytest.raises(CheckpointError, match=r"there is no checkpoint file nowhere\.pth"):
        run_recbole("BPR", "toy", config_dict=data)


# Files without a header ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["lists", "pairs"])
def test_a_sequential_model_of_files_without_a_header_can_be_used(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [(user, [(user + 3 * step) % 20 for step in range(6)]) for user in range(12)]
    if layout == "lists":
        lines = [f"u{user} {' '.join(f'i{item}' for item in items)}" for user, items in rows]
    else:
        lines = [f"u{user} i{item}" for user, items in rows for item in items]
    (tmp_path / "data" / "toy").mkdir(parents=True)
    (tmp_path / "data" / "toy" / "toy.txt").write_text("\n".join(lines) + "\n")
    small = {"hidden_size": 8, "inner_size": 8, "n_heads": 1, "epochs": 1, "inter_layout": layout}
    result = run_recbole("SASRec", "toy", config_dict=settings(tmp_path, data_path=str(tmp_path / "data"), **small))
    [file] = (tmp_path / "saved").glob("*.pth")
    config, model, _, train_data, _, test_data = load_data_and_model(file)
    found = get_trainer(config, model).evaluate(test_data, load_best_model=False)
    assert found == result["test_result"]
    assert len(Recommender(model, train_data.dataset, config["device"]).recommend(["u1"], 3)["u1"]) == 3
    for command in (["recommend", "u1"], ["export", "-o", "found.csv"]):
        done = CliRunner().invoke(app, ["recsys", command[0], str(file), *command[1:]])
        assert done.exit_code == 0, done.output
    assert len(Path("found.csv").read_text().splitlines()) > 12


# Metrics that scores have not ---------------------------------------------------------------------------------


def sampled(data: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {**data, "metrics": ["AUC", "LogLoss"], "valid_metric": "AUC", "eval_args": {"mode": "uni5"}, **given}


@pytest.mark.parametrize("split", [[0.8, 0.1, 0.1], [0.8, 0.0, 0.2]], ids=["valid", "test alone"])
def test_a_log_loss_of_scores_is_refused_before_training(
    data: dict[str, Any], split: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    given = sampled(data, eval_args={"mode": "uni5", "split": {"RS": split}})
    message = r"metrics has LogLoss, which takes probabilities, but BPR gives rows scores from -.* to .*; set predicts_"
    with pytest.raises(ConfigError, match=message):
        run_recbole("BPR", "toy", config_dict=given)
    assert "training" not in capsys.readouterr().out
    found = run_recbole("BPR", "toy", config_dict={**given, "predicts_logits": True})
    assert 0 < found["test_result"]["logloss"] < 1


def test_probabilities_have_a_log_loss_and_only_truth_values_say_otherwise(data: dict[str, Any]) -> None:
    found = run_recbole("NeuMF", "toy", config_dict=sampled(data, mf_embedding_size=4, mlp_embedding_size=4))
    assert found["test_result"]["logloss"] > 0
    with pytest.raises(ConfigError, match="predicts_logits='maybe' must be True, False or None"):
        run_recbole("NeuMF", "toy", config_dict=sampled(data, predicts_logits="maybe"))
