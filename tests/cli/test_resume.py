"""`treadle resume`: a run gone on with from the config in its folder."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Treadle
from tests.cli.processes import assert_same_end
from tests.interrupting import starts_of
from treadle.config import LazyConfig

CONFIG = "configs/small.py"
EXAMPLES = Path(__file__).parents[2] / "examples" / "engine"


def test_a_resumed_run_ends_like_one_that_was_as_long_from_the_beginning(project: Path, treadle: Treadle) -> None:
    # A constant rate, since that of a schedule depends on how long the run was to be.
    options = ("train.scheduler=null", "train.evaluation.enabled=false")
    treadle("train", CONFIG, *options, "-o", "runs/whole")
    treadle("train", CONFIG, *options, "-o", "runs/part", "train.train_iter=8")
    output = treadle("resume", "runs/part", "train.train_iter=12").stdout
    assert "runs/part: resuming from iteration 8 of 12" in output
    assert_same_end(Path("runs/part"), Path("runs/whole"))


def test_a_finished_run_says_so(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=2")
    assert "runs/small is finished: 2 of 2 iterations are done" in treadle("resume", "runs/small").stdout


def test_a_run_that_was_moved_goes_on_where_it_is_now(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=2")
    os.rename("runs/small", "runs/moved")
    treadle("resume", "runs/moved", "train.train_iter=3")
    assert LazyConfig.load("runs/moved/config.yaml").train.output_dir == "runs/moved"
    assert starts_of(Path("runs/moved")) == [0, 2]
    assert not Path("runs/small").exists()


def test_a_run_from_another_folder_whose_classes_are_not_found_says_where_it_was_started(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    treadle("train", CONFIG, "train.train_iter=2")
    for name in [name for name in sys.modules if name.startswith("mine")]:
        monkeypatch.delitem(sys.modules, name)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(project)])
    text = " ".join(treadle("resume", "../runs/small", status=1).stderr.split())
    assert "'mine.parts.Network' cannot be found: there is no module 'mine'" in text
    assert f"(the run was started in {project}; this is {project}/elsewhere)" in text


def test_on_fewer_processes_the_batch_of_an_iteration_stays_what_it_was(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=2")
    path = Path("runs/small/config.yaml")
    # As two processes would have saved it.
    text = path.read_text().replace("train_micro_batch_size: 8", "train_micro_batch_size: 4", 1)
    path.write_text(text)
    treadle("resume", "runs/small", "train.train_iter=3")
    saved = LazyConfig.load(path).train
    assert (saved.train_micro_batch_size, saved.num_accumulation_steps, saved.global_batch_size) == (4, 2, 8)


@pytest.mark.parametrize("command", ["resume", "eval"])
@pytest.mark.parametrize("saved", ["num_epochs: 3\n", "train:\n  epochs: 3\n"])
def test_a_run_that_a_program_made_is_sent_to_its_program(
    project: Path, treadle: Treadle, command: str, saved: str
) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text(saved)
    Path("run/manifest.json").write_text(
        json.dumps({"program": {"script": "/work/train.py"}, "command": ["train.py", "--lr", "0.1"]})
    )
    text = " ".join(treadle(command, "run", status=1).stderr.split())
    assert text.endswith(
        "run was made by a program and not from a config, so only the program can build its model: start it again "
        "(python train.py --lr 0.1), with resume='auto' where it trains, to resume the run; for its numbers call "
        "trainer.evaluate(data) there, after train()"
    )


@pytest.mark.slow
def test_a_run_of_a_train_net_program_is_evaluated_and_gone_on_with_by_its_own_trainer(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = EXAMPLES / "train_net.py"
    arguments = ["train.train_iter=20", "train.dist.device_type=cpu", "train.checkpointer.period=10"]
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    runpy.run_path(str(program), run_name="__main__")
    assert LazyConfig.load("runs/rings/config.yaml").trainer._target_ == f"{program}:Trainer"
    assert "Acc@1" in treadle("eval", "runs/rings").stdout
    treadle("resume", "runs/rings", "train.train_iter=30")
    log = Path("runs/rings/log.txt").read_text()
    assert log.count("waited longest for data") == 2
