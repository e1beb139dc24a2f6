"""`treadle recsys`: trains, goes on, recommends, exports and searches."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from tests.cli.processes import Command
from tests.recsys.bench.contestants import Broken
from tests.recsys.compat.written_for_recbole import write
from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import interactions, settings
from tests.recsys.trainer.trees import table as clicks
from treadle.cli import app
from treadle.recsys import Config, load_data_and_model
from treadle.recsys.bench import benchmark
from treadle.recsys.bench.worker import train_entry
from treadle.recsys.model_registry import locate_model

HEADER = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
COMMANDS = ["", "train", "recommend", "similar", "export", "serve", "tune", "bench", "page"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the small data set, as the working folder."""
    write_table(tmp_path / "dataset" / "toy", "toy.inter", HEADER, zip(*interactions().values(), strict=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("TREADLE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def treadle(*arguments: str, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["recsys", *arguments], prog_name="treadle")
    assert result.exit_code == status, result.output
    return result


def options(folder: Path, **given: Any) -> list[str]:
    chosen = settings(folder, **{"embedding_size": 8, "epochs": 2, **given})
    del chosen["checkpoint_dir"]
    return [f"--{name}={value}" for name, value in chosen.items()]


def trained(folder: Path, **given: Any) -> Path:
    treadle("--model", "BPR", "--dataset", "toy", *options(folder, **given))
    (file,) = (folder / "saved").glob("*.pth")
    return file.relative_to(folder)


def test_a_model_is_trained_and_its_metrics_are_shown(project: Path) -> None:
    output = treadle("--model", "BPR", "--dataset", "toy", *options(project)).output
    assert output.startswith("BPR on toy: 24 users, 30 items, 288 interactions\n")
    assert re.search(r"metric +valid +test\nrecall@5 +0\.\d{4} +0\.\d{4}\n", output)
    assert re.search(r"; model saved/BPR-.*\.pth\n", output)


def test_settings_may_be_apart_from_their_values_and_in_files(project: Path) -> None:
    (project / "a.yaml").write_text("epochs: 1\n")
    (project / "b.yaml").write_text("model: BPR\ndataset: toy\nembedding_size: 4\n")
    given = [text for text in options(project) if not text.startswith(("--epochs", "--embedding_size"))]
    output = treadle("--config_files", "a.yaml b.yaml", *given, "--learning_rate", "0.01").output
    assert "epoch 1/" in output
    assert "epoch 2/" not in output
    config, *_ = load_data_and_model(next((project / "saved").glob("*.pth")))
    assert (config["embedding_size"], config["learning_rate"]) == (4, 0.01)


def test_the_same_command_goes_on_with_a_run_dir(project: Path) -> None:
    command = ["-m", "BPR", "-d", "toy", *options(project, run_dir="runs/a")]
    first = treadle(*command).output
    second = treadle(*command).output
    assert "epoch 1/" not in second
    assert second.split("metric")[1] == first.split("metric")[1]


def test_a_run_is_gone_on_with_by_its_file(project: Path) -> None:
    file = trained(project, epochs=1)
    output = treadle("-m", "BPR", "-d", "toy", "--resume", str(file), *options(project)).output
    assert "epoch 1/" not in output
    assert "epoch 2/" in output


def test_a_setting_of_ones_own_may_be_called_nearly_like_an_option_that_is_given(project: Path) -> None:
    (project / "own_mode.py").write_text(
        "from treadle.recsys.models.general_recommender import BPR\nclass Moody(BPR):\n"
        "    def __init__(self, config, dataset):\n        super().__init__(config, dataset)\n"
        "        print('in mode', config['mode'], config['resum'])\n"
    )
    (project / "own.yaml").write_text("resum: 3\n")
    given = ["--mode=7", "--config-file", "own.yaml", *options(project, epochs=1)]
    assert "in mode 7 3\n" in treadle("--model", "own_mode.Moody", "--dataset", "toy", *given).output


def test_a_class_of_ones_own_is_trained_by_its_full_name(project: Path) -> None:
    (project / "own_bpr.py").write_text(
        "from treadle.recsys.models.general_recommender import BPR\nclass Mine(BPR):\n    pass\n"
    )
    output = treadle("--model", "own_bpr.Mine", "--dataset", "toy", *options(project, epochs=1)).output
    assert output.startswith("Mine on toy")


def test_nothing_is_kept_if_nothing_is_wanted(project: Path) -> None:
    output = treadle("-m", "BPR", "-d", "toy", "--not-saved", *options(project, epochs=1)).output
    assert "; model " not in output
    assert not (project / "saved").exists()


def test_items_are_recommended_to_users_also_to_unknown_ones(project: Path) -> None:
    file = trained(project)
    lines = treadle("recommend", str(file), "u1", "nobody", "-k", "3").output.splitlines()
    assert re.fullmatch(r"u1: i\d+, i\d+, i\d+", lines[0])
    assert re.fullmatch(r"nobody \(popular\): i\d+, i\d+, i\d+", lines[1])
    assert treadle("recommend", str(file), "u1", "-k", "3", "-o", "u1.csv").output == "written to u1.csv\n"
    rows = (project / "u1.csv").read_text().splitlines()
    assert [row.split(",")[2].strip('"') for row in rows[1:]] == lines[0].removeprefix("u1: ").split(", ")


def test_everybody_and_somebody_new_get_their_lists(project: Path) -> None:
    file = trained(project)
    lines = treadle("recommend", str(file), "--history", "i1,i4", "-k", "2").output
    assert re.fullmatch(r"history 1: i\d+, i\d+\n", lines)
    command = ("recommend", str(file.with_suffix("")), "--all-users", "-k", "2", "-o", "top.parquet")
    assert treadle(*command).output == "written to top.parquet\n"
    top = parquet.read_table(project / "top.parquet")
    listed = treadle("recommend", str(file), "u1", "-k", "2").output
    own = [item for user, item in zip(top["user_id"].to_pylist(), top["item"].to_pylist(), strict=True) if user == "u1"]
    assert listed == f"u1: {', '.join(own)}\n"


def test_a_model_becomes_a_folder_that_answers_without_the_data(project: Path) -> None:
    file = trained(project)
    treadle("export", str(file), "-o", "out", "--what", "model")
    wanted = treadle("recommend", str(file), "u1", "nobody", "-k", "3").output
    shutil.rmtree(project / "dataset")
    assert treadle("recommend", "out", "u1", "nobody", "-k", "3").output == wanted
    assert "is an export already" in treadle("export", "out", "-o", "x.csv", status=1).stderr


def test_similar_items_are_found(project: Path) -> None:
    output = treadle("similar", str(trained(project)), "i4", "-k", "2").output
    assert re.fullmatch(r"i4: i\d+, i\d+\n", output)


def test_tables_are_exported(project: Path) -> None:
    file = str(trained(project))
    treadle("export", file, "-o", "top.parquet", "-k", "2")
    treadle("export", file, "-o", "items.csv", "--what", "items")
    treadle("export", file, "-o", "users.tsv", "--what", "users")
    assert len((project / "items.csv").read_text().splitlines()) == 31
    assert len((project / "users.tsv").read_text().splitlines()) == 25


def test_a_search_shows_its_best_trials_and_goes_on(project: Path) -> None:
    command = ["tune", "-m", "BPR", "-d", "toy", "-s", "learning_rate log 1e-3,1e-1", *options(project)]
    output = treadle(*command, "--trials", "2").output
    assert re.search(r"trial 0  [\d.]+s  valid_score 0\.", output)
    assert re.search(r"trial +learning_rate +score\n", output)
    best = json.loads((project / "search" / "best.json").read_text())
    assert list(best["params"]) == ["learning_rate"]
    more = treadle(*command, "--trials", "3").output
    assert more.startswith("trial 2  ")


MISTAKES = {
    ("--model", "fpmc", "--dataset", "toy"): "recsys: there is no model 'fpmc'; RecBole has one: write 'recbole:FPMC' "
    "(pip install --no-deps recbole)",
    ("--model", "BPRR", "--dataset", "toy"): "recsys: there is no model 'BPRR'; did you mean 'BPR'?",
    ("--model", "BPR", "--dataset", "toys"): "recsys: ",
    ("--model", "BPR"): "recsys: there is no data set: pass dataset=",
    ("--dataset", "absent"): "recsys: there is no model: pass model=, or set it in a file, the dict or the command",
    ("--modle", "BPR", "-d", "absent"): "recsys: there is no model: pass model=, or set it in a file, the dict or the "
    "command line; 'modle' is given: did you mean 'model'?",
    ("-m", "BPR", "--datset=toy"): "recsys: there is no data set: pass dataset=, or set it in a file, the dict or the "
    "command line; 'datset' is given: did you mean 'dataset'?",
    ("-m", "BPR", "-d", "absent", "--resume", "no.pth"): "recsys: --resume no.pth is not there; give the .pth file",
    ("-m", "BPR", "-d", "absent", "--resum=no.pth"): "recsys: --resum on the command line is no option; did you mean "
    "'--resume'? A setting of your own model that is called so goes into a file, by --config-file",
    ("-m", "BPR", "-d", "absent", "--not_saved"): "recsys: --not_saved on the command line is no option; did you mean "
    "'--not-saved'?",
    ("-m", "BPR", "-d", "absent", "--nproc", "2", "some"): "recsys: 'some' on the command line is no setting; write",
    (
        "tune",
        "-m",
        "BPR",
        "-d",
        "absent",
        "--trial=9",
    ): "recsys tune: --trial on the command line is no option; did",
    ("bench", "--models", "BPR", "-d", "absent", "--foldr=a"): "recsys bench: --foldr on the command line is no option",
    ("--model", "BPR", "--dataset", "toy", "--learning_rat=1"): "recsys: learning_rat=1 in the command line: nothing",
    ("--model", "BPR", "--dataset", "toy", "--topk=[50]", "--valid_metric=NDCG@50"): "recsys: topk=[50]: 50 is more",
    ("recommend", "nothing.pth", "u1"): "recsys recommend: there is no checkpoint file nothing.pth",
    ("recommend", "nothing.pth"): "recsys recommend: name users, or give --history ITEM,... or --all-users",
    ("recommend", "a.pth", "u1", "u2", "--history", "i1"): "recsys recommend: --history is what one user did",
    ("recommend", "a.pth", "u1", "--all-users"): "recsys recommend: --all-users is everybody; leave users and",
    ("recommend", "a.pth", "--all-users"): "recsys recommend: --all-users needs --output FILE.parquet",
    ("export", "a.pth", "-o", "a.csv", "--format", "onnx"): "recsys export: --format is for --what model alone",
    ("export", "a.pth", "-o", "a.npz"): "recsys export: a.npz: .npz is no format of a table",
    ("serve", "nothing", "--port", "0"): "recsys serve: nothing holds no model: there is no .pth file in it",
    ("serve", "nothing", "--timeout", "0"): "recsys serve: patience=0.0 must be more than 0",
    ("export", "nothing.pth", "-o", "a.xls"): "recsys export: a.xls: .xls is no format of a table",
    ("export", "nothing.pth", "-o", "a.csv", "--what", "all"): "recsys export: --what 'all' does not exist",
    ("tune", "-m", "BPR", "-d", "toy"): "recsys tune: --search: there is nothing to search",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_message_without_a_traceback(project: Path, arguments: tuple[str, ...]) -> None:
    result = treadle(*arguments, status=1)
    assert "Traceback" not in result.output
    assert result.stderr.startswith(f"treadle {MISTAKES[arguments]}"), result.stderr


def test_a_training_leaves_a_page_with_its_metrics_by_groups(project: Path) -> None:
    folder = project / trained(project).with_suffix("")
    titles = {path.stem for path in (folder / "panels").iterdir()}
    # Everybody has as many interactions as anybody else: only items can be divided.
    assert titles == {"Test_metrics_by_popularity_of_items"}
    assert "Test metrics by popularity of items" in (folder / "report.html").read_text()


def test_models_are_compared_and_one_that_fails_is_told_at_the_end(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "run_subprocess", _here)
    given = [*options(project, epochs=1), "--folder", "compared", "--seeds", "1"]
    output = treadle("bench", "--models", f"Pop,BPR,{Broken.__module__}.Broken", "-d", "toy", *given, status=1).output
    assert "Broken, seed 1: failed: ValueError: this model has a mistake in it" in output
    assert re.search(r" +model +ndcg@5 +epochs +s/epoch +memory, MiB +parameters +seeds\n", output)
    assert "the table is in compared/leaderboard.md" in output
    assert "the page is compared/report.html" in output
    assert "the page of models and users is compared/leaderboard.html" in output
    assert treadle("page", "compared", "--users", "u3", "-o", "three.html").output == "three.html\n"
    assert "<title>toy: 2 models · Treadle</title>" in (project / "three.html").read_text()
    assert "treadle recsys page: toy holds no benchmark" in treadle("page", "toy", status=1).output
    page = (project / "compared" / "report.html").read_text()
    assert "<title>toy: 2 models · Treadle</title>" in page
    assert '"title":"What failed"' in page


def test_a_page_that_cannot_be_written_costs_no_comparison(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "run_subprocess", _here)
    (project / "compared" / "report.html").mkdir(parents=True)
    result = treadle("bench", "--models", "Pop", "-d", "toy", *options(project), "--folder", "compared")
    assert "the table is in compared/leaderboard.md" in result.stdout
    assert "the page is" not in result.stdout
    assert "treadle report: cannot write the page compared/report.html: " in result.stderr


def _here(given: dict[str, Any], folder: Path) -> str:
    """Train what another process would be asked to, in this one."""
    asked = json.loads(json.dumps(given))
    config = Config(locate_model(asked["model"]), asked["dataset"], asked["files"], asked["settings"])
    train_entry(asked["name"], config, Path(asked["folder"]))
    return ""


def test_trees_are_trained_on_rows_of_nobody(project: Path) -> None:
    rows = zip(*(values for values in clicks().values()), strict=True)
    told = [tuple("" if value is None else str(value) for value in row) for row in rows]
    write_table(project / "dataset" / "clicks", "clicks.inter", ("price:float", "colour:token", "label:float"), told)
    nobody = ["--USER_ID_FIELD=None", "--ITEM_ID_FIELD=None", "--TIME_FIELD=None", "--load_col=None"]
    few = ["--lgb_params={'min_data_in_leaf': 5}", "--lgb_num_boost_round=6", "--show_progress=False"]
    output = treadle("--model", "LightGBM", "--dataset", "clicks", *nobody, *few).output
    assert output.startswith("LightGBM on clicks: 400 rows\n")
    assert re.search(r"boosting \[time: .*s, rounds: 6, best booster: \d rounds\]", output)
    assert re.search(r"metric +valid +test\nauc +0\.\d{4} +0\.\d{4}\n", output)


def test_seeds_that_are_no_numbers_are_refused(project: Path) -> None:
    output = treadle("bench", "--models", "Pop", "-d", "toy", "--seeds", "1,x", status=1).output
    assert "--seeds '1,x': 'x' is no whole number; give numbers with commas between them" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_into_80_columns_and_has_an_example(command: str) -> None:
    arguments = ["recsys", *command.split(), "--help"]
    result = CliRunner().invoke(app, arguments, prog_name="treadle", env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    assert f"  treadle recsys {command}".rstrip() in result.output.partition("Example:")[2]


def test_a_model_of_a_file_is_trained_and_recommends(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    write(project, "my_general.py")
    before = set(sys.modules)
    shown = treadle("--model", "my_general.py:MyGeneral", "--dataset", "toy", *options(project)).output
    assert shown.startswith("MyGeneral on toy: 24 users, 30 items, 288 interactions\n")
    (file,) = (project / "saved").glob("MyGeneral-*.pth")
    assert "MyGeneral" in treadle("recommend", str(file), "u1", status=1).output
    lists = treadle("recommend", str(file), "u1", "--model", "my_general.py:MyGeneral", "-k", "3").output
    assert "u1" in lists
    for name in set(sys.modules) - before:
        if name.startswith("recbole"):
            monkeypatch.delitem(sys.modules, name)


def test_a_model_of_a_file_that_is_not_there_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    output = treadle("--model", "mine.py:Mine", "--dataset", "toy", status=1).output
    assert "there is no file mine.py to load a model from" in " ".join(output.split())


@pytest.mark.slow
def test_two_processes_train_and_write_one_page_with_metrics_by_groups(project: Path) -> None:
    command = ["recsys", "--model", "BPR", "--dataset", "toy", *options(project), "--nproc", "2"]
    output = Command(project, *command).wait(0)
    assert "restarts are left" not in output
    assert len(re.findall(r"; model saved/BPR-.*\.pth\n", output)) == 1
    (folder,) = (path for path in (project / "saved").iterdir() if path.is_dir())
    assert (folder / "report.html").exists()
    assert [path.name for path in (folder / "panels").iterdir()] == ["Test_metrics_by_popularity_of_items.json"]
