import logging
import os
import re
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import (
    LimitBatchesCallback,
    LogMetricsCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    StepBasedEvaluationCallback,
)
from treadle.callbacks.progress_bar import _drawing, _keep_drawing
from treadle.callbacks.progress_display import LineDisplay
from treadle.errors import StopTrainingError

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rich believe that standard output is a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


class Drawing(TrainerCallback):
    """Draws at a chosen moment, as the thread would; a minute passes between two drawings."""

    def __init__(self, bar: ProgressBarCallback, *moments: str) -> None:
        self._bar, self._moments, self._now = bar, moments, 0.0

    def _draw(self, moment: str) -> None:
        if moment in self._moments and self._bar._display is not None:
            self._now += 60.0
            self._bar._display.draw(self._now)

    def on_log(self, trainer: Any, **kwargs: Any) -> None:
        self._draw("log")

    def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self._draw("eval")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "treadle-progress"]


@pytest.mark.usefixtures("no_terminal")
def test_lines_show_epoch_place_loss_rate_speed_and_time_left(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBarCallback()
    trainer = make_trainer(bar, Drawing(bar, "log"))
    result = trainer.train(data, num_epochs=2, per_device_batch_size=2, log_every=12)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch 1/2  12/16  loss ")
    assert lines[0].endswith("  lr 0.05")
    assert lines[1].startswith("epoch 1/2  16/16  loss ")
    assert lines[1].endswith("  lr 0.05  0 samples/s  0.0s left")
    assert lines[2].startswith("epoch 2/2  8/16  loss ")
    loss = trainer.storage.series("train_loss").values[0]
    assert f"loss {loss:.4g}" in lines[0]
    assert result.epochs == 2
    assert threads() == []


@pytest.mark.usefixtures("no_terminal")
def test_an_evaluation_has_a_line_of_its_own(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBarCallback()
    make_trainer(bar, LimitBatchesCallback(3), Drawing(bar, "eval")).evaluate(data)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:15] for line in lines] == ["evaluation  1/3", "evaluation  2/3", "evaluation  3/3"]


@pytest.mark.usefixtures("no_terminal")
def test_a_limit_of_steps_shortens_the_epoch_that_is_shown(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBarCallback()
    make_trainer(bar, Drawing(bar, "log")).train(data, max_steps=6, log_every=2)
    lines = capsys.readouterr().out.splitlines()
    places = [line.split("  ")[:2] for line in lines]
    assert places[0] == ["epoch 1", "2/4"]
    assert places[-1] == ["epoch 2", "2/2"]


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_bar_for_every_epoch_and_evaluation(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(ProgressBarCallback, StepBasedEvaluationCallback(3))
    trainer.train(data, num_epochs=2, eval_dataset=data)
    shown = capsys.readouterr().out
    assert "epoch 1/2" in shown
    assert "epoch 2/2" in shown
    assert "evaluation" in shown
    assert shown.count(HIDE) == shown.count(SHOW) == 4
    assert threads() == []


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, StopTrainingError])
@pytest.mark.parametrize("moment", ["on_update_end", "on_eval_step_end"])
def test_the_cursor_is_shown_and_the_thread_over_however_a_run_ends(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], error: Any, moment: str
) -> None:
    def fail(self: Any, trainer: Any, **kwargs: Any) -> None:
        raise error("now")

    failing = type("Failing", (TrainerCallback,), {moment: fail})
    trainer = make_trainer(ProgressBarCallback, failing)
    try:
        trainer.train(data, num_epochs=2, eval_dataset=data)
    except error:
        assert error is not StopTrainingError
    shown = capsys.readouterr().out
    assert shown.count(HIDE) == shown.count(SHOW) > 0
    assert shown.rindex(HIDE) < shown.rindex(SHOW)
    assert threads() == []


@pytest.mark.usefixtures("terminal")
def test_other_processes_of_a_machine_show_nothing(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(ProgressBarCallback)
    trainer.processes.local_rank = 1
    trainer.train(data, num_epochs=1, eval_dataset=data)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("no_terminal")
def test_the_thread_draws_by_itself(make_trainer: Any, data: TensorDataset) -> None:
    drawn = threading.Event()
    lines: list[str] = []

    class Waiting(TrainerCallback):
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            assert drawn.wait(30)

    def note(line: str) -> None:
        lines.append(line)
        drawn.set()

    bar = ProgressBarCallback(line_every=0.001)
    trainer = make_trainer(Waiting, bar)
    trainer.print = note
    trainer.train(data, num_epochs=1)
    assert lines[0].startswith("epoch 1/1")


def test_a_display_that_fails_ends_the_thread_and_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LineDisplay):
        def draw(self, now: float) -> None:
            raise OSError("the terminal is gone")

    with caplog.at_level(logging.ERROR):
        _keep_drawing(Broken(print), threading.Event(), 0.0)
    assert "the progress cannot be shown any more; the run continues without it" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_forks_only_between_two_drawings_so_that_a_worker_may_print(
    make_trainer: Any, data: TensorDataset
) -> None:
    make_trainer(ProgressBarCallback).train(data, num_epochs=1)
    drawing, finished = threading.Event(), []

    def draw() -> None:
        with _drawing:
            drawing.set()
            time.sleep(0.05)
            finished.append(True)

    thread = threading.Thread(target=draw)
    thread.start()
    assert drawing.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if finished and not _drawing.locked() else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not _drawing.locked()


PIECES = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|([\s\S])")
"""A command to a terminal, its number and its letter; or a character."""


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows after what was written to it, as far as bars and lines need it."""
    lines, row = [""], 0
    for number, command, character in PIECES.findall(written):
        if command == "K" or character == "\r":
            # Whoever goes back to the start of a line writes all of it.
            lines[row] = ""
        elif command == "A":
            row -= int(number or 1)
        elif character == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] += character
    return [line.rstrip() for line in lines]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, StopTrainingError])
@pytest.mark.parametrize("kept", [False, True])
def test_no_bar_is_drawn_below_what_is_said_of_the_end(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Any, kept: bool
) -> None:
    class Failing(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 6:
                raise error("now")

    folder = {"run_dir": tmp_path / "run"} if kept else {}
    trainer = make_trainer(PrintProgressCallback, ProgressBarCallback, Failing, **folder)
    with nullcontext() if error is StopTrainingError else pytest.raises(error):
        trainer.train(data, num_epochs=2)
    shown = screen(capsys.readouterr().out)
    told = "now" if error is StopTrainingError else f"the run ended with {error.__name__} after 6 steps"
    place = next(number for number, line in enumerate(shown) if line.startswith(told))
    assert next(line for line in shown[:place] if line.startswith("epoch")).startswith("epoch 1/2  ")
    assert not [line for line in shown if "━" in line]


@pytest.mark.usefixtures("terminal")
def test_a_bar_of_an_epoch_that_ended_stays_where_nobody_says_how_the_epoch_went(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(ProgressBarCallback).train(data, num_epochs=2)
    shown = [line.split("━")[0].rstrip() for line in screen(capsys.readouterr().out)]
    assert shown == ["epoch 1/2", "epoch 2/2", ""]


@pytest.mark.usefixtures("terminal")
def test_the_line_of_an_epoch_takes_the_place_of_its_bar(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(PrintProgressCallback, ProgressBarCallback, LogMetricsCallback)
    trainer.train(data, num_epochs=2, eval_dataset=data)
    written = capsys.readouterr().out
    assert "━" in written
    shown = [line for line in screen(written) if line]
    assert [line.split("  ")[0].split(" after")[0] for line in shown] == [
        *("model", "data", "train", "run on"),
        *("epoch 1/2", "epoch 2/2"),
        "finished",
    ]
    assert not [line for line in shown if "━" in line]
