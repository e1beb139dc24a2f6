"""Metrics that are lost cost no training: checkpoints are all that a run needs to go on, through every door."""

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_resume import Interrupted, Stopping
from tests.engine.test_resume import config as engine_config
from tests.interrupting import (
    CutAt,
    CutError,
    assert_same_bits,
    checkpoint_steps,
    make_trainer,
    metric_lines,
    samples,
    updates_of,
)
from tests.lightning.test_step_trainer import Line, loader
from tests.nas.test_resume import searched
from tests.recsys.trainer.runs import make as make_recommender
from tests.recsys.trainer.runs import state_of
from treadle.callback import TrainerCallback
from treadle.checkpoint import Policy
from treadle.lightning import StepTrainer
from treadle.writers import CSVWriter, JSONWriter, WritersCallback

Door = Callable[[Path, Path, int | None], Any]


def dying(step: int | None) -> list[Any]:
    return [] if step is None else [CutAt(step)]


def train(run: Path, tmp_path: Path, die_after: int | None) -> Any:
    trainer = make_trainer(run, *dying(die_after))
    trainer.train(samples(), 3, save_every=2, log_every=1, resume="auto")
    return trainer.model.state_dict()


def train_steps(run: Path, tmp_path: Path, die_after: int | None) -> Any:
    model = Line()
    options: dict[str, Any] = {"run_dir": run, "save_every": 2, "seed": 0, "device": "cpu", "progress": False}
    StepTrainer(num_epochs=3, callbacks=dying(die_after), **options).fit(model, loader(), resume="auto")
    return model.state_dict()


def train_config(run: Path, tmp_path: Path, die_after: int | None) -> Any:
    kind: Any = type("Dying", (Stopping,), {"die_after": die_after or -1})
    trainer = kind(engine_config(run, resume=True, checkpointer={"period": 2}))
    trainer.train()
    return trainer.model.state_dict(), trainer._last_eval_results


def train_recommender(run: Path, tmp_path: Path, die_after: int | None) -> Any:
    made = make_recommender(tmp_path / run.name, "BPR", *dying(die_after), run_dir=str(run), epochs=3)
    made.fit()
    return state_of(made.trainer)


def search(run: Path, tmp_path: Path, die_after: int | None) -> Any:
    return searched(run, "darts", *dying(die_after)).supernet.state_dict()


@pytest.mark.parametrize("door", [train, train_steps, train_config, train_recommender, search])
def test_a_run_of_which_only_the_checkpoints_were_copied_goes_on_exactly(tmp_path: Path, door: Door) -> None:
    whole = door(tmp_path / "whole", tmp_path, None)
    with suppress(CutError, Interrupted):
        door(tmp_path / "cut", tmp_path, 25 if door is train_recommender else 5)
    shutil.copytree(tmp_path / "cut" / "checkpoints", tmp_path / "copy" / "checkpoints")
    copied = checkpoint_steps(tmp_path / "copy")[-1]
    assert copied in ((12, 24) if door is train_recommender else (3, 4, 5))
    assert_same_bits(door(tmp_path / "copy", tmp_path, None), whole)
    # What is in the lines is what was reported since.
    first = metric_lines(tmp_path / "copy")[0]["step"]
    assert copied - 1 <= first
    log = (tmp_path / "copy" / "log.txt").read_text()
    assert door is train_config or f"resuming from step {copied}" in log
    assert "metrics.jsonl is not what it was when the checkpoint was written (0 bytes instead of " in log


class Remove(TrainerCallback):
    """Removes a file, or all of the run's, while the run continues."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == 4:
            if self.path.is_dir():
                trainer.this_run.checkpointer.wait()
                shutil.rmtree(self.path)
            else:
                self.path.unlink()


@pytest.mark.parametrize("on_error", ["raise", "warn"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "."])
def test_metrics_that_are_removed_while_the_run_goes_on_stop_it_not_and_are_there_in_the_end(
    tmp_path: Path, name: str, on_error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    trainer = make_trainer(run, Remove(run / name), checkpoints=Policy(on_error=on_error))
    trainer.train(samples(), 3, log_every=1, save_every=3)
    assert trainer.progress.step == 9
    assert [line["step"] for line in metric_lines(run)] == list(range(1, 10))
    assert "metrics.jsonl was removed or replaced during the run" in capsys.readouterr().out
    resumed = make_trainer(run)
    resumed.train(samples(), 4, log_every=1, resume="auto")
    assert resumed.progress.step == 12
    assert updates_of(resumed) == (9, 3)
    assert [line["step"] for line in metric_lines(run)] == list(range(1, 13))


def writer_of(name: str, folder: Path) -> Any:
    return JSONWriter(folder / name) if name.endswith("json") else CSVWriter(folder / name)


@pytest.mark.parametrize("name", ["metrics.json", "metrics.csv"])
def test_rows_of_a_writer_that_are_lost_are_told(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def run(*callbacks: Any) -> Any:
        trainer = make_trainer(tmp_path / "run", *callbacks, WritersCallback(writer_of(name, tmp_path)))
        trainer.train(samples(), 3, log_every=1, save_every=2, resume="auto")
        return trainer

    with pytest.raises(CutError):
        run(CutAt(5))
    (tmp_path / name).unlink()
    with caplog.at_level(logging.WARNING):
        resumed = run()
    assert resumed.progress.step == 9
    told = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert told == [f"there was no {tmp_path / name} to continue: it has rows of after iteration 4 only"]


def test_rows_of_a_config_run_that_are_lost_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with suppress(Interrupted):
        train_config(tmp_path, tmp_path, 6)
    lines = (tmp_path / "metrics.json").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.json").write_text("".join(lines[:2]))
    with caplog.at_level(logging.WARNING):
        train_config(tmp_path, tmp_path, None)
    told = [record.getMessage() for record in caplog.records if "metrics.json " in record.getMessage()]
    assert told == [
        f"{tmp_path / 'metrics.json'} lacks rows that it had when the run was saved, after iteration 1 and up to 4; "
        "the run continues without them"
    ]
    assert [line["iteration"] for line in metric_lines(tmp_path, "metrics.json")] == [0, 1, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("name", ["metrics.json", "metrics.csv"])
def test_a_writer_whose_file_is_removed_begins_another_and_says_so(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    writers = WritersCallback(writer_of(name, tmp_path))
    trainer = make_trainer(tmp_path / "run", Remove(tmp_path / name), writers)
    with caplog.at_level(logging.WARNING):
        trainer.train(samples(), 2, log_every=1)
    told = [record.getMessage() for record in caplog.records]
    removed = f"{tmp_path / name} was removed during the run; it begins anew, without its earlier rows"
    assert told == [removed]
    assert len((tmp_path / name).read_text().splitlines()) >= 2
