import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from treadle.callbacks.progress_display import Activity, BarDisplay, LineDisplay, make_display

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@dataclass
class Counter:
    done: int = 0
    samples: int = 0

    def activity(self, total: int | None = 100, **notes: str) -> Activity:
        return Activity("Epoch 1/2", lambda: self.done, lambda: total, samples=lambda: self.samples, notes=dict(notes))


def test_speed_and_time_left_come_from_two_looks() -> None:
    counter = Counter()
    activity = counter.activity(loss="0.5")
    activity.look(10.0)
    assert activity.line() == "Epoch 1/2  0/100  loss 0.5"
    counter.done, counter.samples = 20, 16_000
    activity.look(14.0)
    assert activity.line() == "Epoch 1/2  20/100  loss 0.5  4,000 samples/s  16s left"


def test_a_pause_is_left_out_of_the_speed() -> None:
    counter = Counter()
    activity = counter.activity()
    activity.look(0.0)
    counter.done, counter.samples = 10, 10
    activity.look(1.0)
    activity.pause()
    activity.look(1000.0)
    assert activity.details() == "10 samples/s  9.0s left"


def test_an_unknown_length_is_not_shown() -> None:
    counter = Counter()
    activity = counter.activity(total=None)
    activity.look(0.0)
    counter.done, counter.samples = 5, 7300
    activity.look(1.0)
    assert activity.line() == "Epoch 1/2  5  7,300 samples/s"


def test_lines_tell_of_the_newest_activity() -> None:
    lines: list[str] = []
    display = LineDisplay(lines.append)
    display.draw(0.0)
    counter = Counter()
    training, evaluating = counter.activity(), Activity("Evaluating", lambda: 1, lambda: 2)
    display.begin(training)
    display.draw(1.0)
    display.begin(evaluating)
    display.draw(2.0)
    display.finish(evaluating)
    display.draw(3.0)
    assert lines == ["Epoch 1/2  0/100", "Evaluating  1/2", "Epoch 1/2  0/100"]


def test_bars_fit_the_terminal_and_the_last_one_stays() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    display = BarDisplay(console)
    counter = Counter()
    activity = counter.activity(loss="0.4821", lr="0.001")
    display.begin(activity)
    display.draw(0.0)
    counter.done, counter.samples = 50, 123_456
    display.draw(1.0)
    counter.done = 100
    display.finish(activity)
    shown = screen.getvalue()
    assert "50/100 loss 0.4821  lr 0.001  123,456 samples/s  1.0s left" in shown
    assert "100/100" in shown.rsplit("\r", 1)[-1]
    assert shown.count(HIDE) == shown.count(SHOW) == 1
    assert shown.index(HIDE) < shown.index(SHOW)


def test_an_evaluation_within_an_epoch_has_a_bar_of_its_own_while_it_lasts() -> None:
    screen = io.StringIO()
    display = BarDisplay(Console(file=screen, force_terminal=True, width=80, color_system=None))
    training, evaluating = Counter(done=7).activity(), Activity("Evaluating", lambda: 1, lambda: 2)
    display.begin(training)
    display.begin(evaluating)
    display.draw(0.0)
    assert "7/100" in screen.getvalue()
    assert "Evaluating" in screen.getvalue()
    display.finish(evaluating)
    assert SHOW not in screen.getvalue()
    display.finish(training)
    last = screen.getvalue().rsplit("\r", 1)[-1]
    assert "7/100" in last
    assert "Evaluating" not in last


def test_closing_shows_the_cursor_again_and_may_be_repeated() -> None:
    screen = io.StringIO()
    display = BarDisplay(Console(file=screen, force_terminal=True))
    display.begin(Counter().activity())
    display.close()
    display.close()
    assert screen.getvalue().count(SHOW) == 1


def test_bars_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(make_display(print), LineDisplay)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_display(print), BarDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(print), LineDisplay)
