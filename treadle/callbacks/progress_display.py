"""How progress is shown: as bars on a terminal or in a notebook, as a line now and then anywhere else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any, Protocol

from treadle.callbacks.epoch_table import EpochTable
from treadle.console.lines import clock

# Progress in the output of a notebook's cell


class NotebookDisplay:
    """Shows a bar for each activity below the cell; the last bar stays there when its activity is finished.

    With a table, bars are drawn below it, and go when they are finished.

    It needs what every notebook has: IPython, and a browser. (Rich shows its bars by widgets, which are a package of
    their own: without it, it shows a warning in their place.)

    Args:
        table: The epochs of the run; None if nobody fills it.
    """

    def __init__(self, table: EpochTable | None = None) -> None:
        self.table = table
        self._activities: list[Activity] = []
        self._output: Any = None

    def begin(self, activity: "Activity") -> None:
        """Show another bar."""
        self._activities.append(activity)
        self._show()

    def refresh(self) -> None:
        """Show the table as it is now."""
        self._show()

    def draw(self, now: float) -> None:
        """Draw the bars anew."""
        if not self._activities:
            return
        for waiting in self._activities[:-1]:
            waiting.pause()
        self._activities[-1].look(now)
        self._show()

    def finish(self, activity: "Activity") -> None:
        """Remove a bar; without a table, the last one stays below the cell as it is then."""
        if self._activities == [activity] and self.table is None:
            self._show(over=True)
            self._output = None
            self._activities.clear()
        else:
            self._activities.remove(activity)
            self._show()

    def close(self, *, wipe: bool = False) -> None:
        """Stop drawing; what is shown stays where it is, the bars of a table excepted."""
        if self.table is not None:
            self._activities.clear()
            self._show()
        elif self._activities:
            self._show(over=True)
        self._activities.clear()
        self._output = None

    def _show(self, *, over: bool = False) -> None:
        from IPython.display import HTML, display

        above = "" if self.table is None else self.table.html()
        text = HTML(above + "".join(_bar(activity, over=over) for activity in self._activities))
        if self._output is not None:
            self._output.update(text)
        elif above or self._activities:
            self._output = display(text, display_id=True)


def _bar(activity: "Activity", *, over: bool) -> str:
    total, position = activity.total(), activity.position()
    known = f' value="{position}" max="{total}"' if total else ' value="1" max="1"' if over else ""
    count = f"{position}/{total}" if total else str(position)
    words = escape("  ".join(part for part in (count, activity.details()) if part))
    return f"<div>{escape(activity.title)} <progress{known}></progress> <code>{words}</code></div>"


SMOOTHING = 0.3
"""How much the newest speed counts."""


@dataclass(eq=False)
class Activity:
    """Something that lasts for a known or unknown number of steps, looked at from outside.

    Args:
        title: What it is.
        position: Tells how many steps are done; called by another thread, so it may only read a counter.
        total: Tells how many there are, if it is known.
        samples: Tells how many samples went through, if that is of interest.
        notes: What else to show, such as the loss.
    """

    title: str
    position: Callable[[], int]
    total: Callable[[], int | None]
    samples: Callable[[], int] | None = None
    notes: dict[str, str] = field(default_factory=dict)
    _last: tuple[float, int, int] | None = None
    _step_speed: float = 0.0
    _sample_speed: float = 0.0

    def look(self, now: float) -> None:
        """Take note of the place at the time `now`, for the speed."""
        here = (now, self.position(), 0 if self.samples is None else self.samples())
        before, self._last = self._last, here
        if before is not None and here[0] > before[0]:
            seconds = here[0] - before[0]
            self._step_speed = _smoothed(self._step_speed, (here[1] - before[1]) / seconds)
            self._sample_speed = _smoothed(self._sample_speed, (here[2] - before[2]) / seconds)

    def pause(self) -> None:
        """Leave out the time until the next look."""
        self._last = None

    def details(self) -> str:
        """Return notes, speed and the time left, as far as they are known."""
        parts = [f"{name} {value}" for name, value in self.notes.items()]
        if self._sample_speed > 0:
            parts.append(f"{self._sample_speed:,.0f} samples/s")
        total = self.total()
        if total is not None and self._step_speed > 0:
            parts.append(f"{clock(max(0, total - self.position()) / self._step_speed)} left")
        return "  ".join(parts)

    def line(self) -> str:
        """Return everything as one line."""
        total = self.total()
        of = "" if total is None else f"/{total}"
        return f"{self.title}  {self.position()}{of}  {self.details()}".rstrip()


def _smoothed(before: float, now: float) -> float:
    return now if before == 0 else (1 - SMOOTHING) * before + SMOOTHING * now


class Display(Protocol):
    """Shows activities, the newest of which is under way while the others wait for it."""

    def begin(self, activity: Activity) -> None:
        """Show another activity."""

    def draw(self, now: float) -> None:
        """Show where the activities are."""

    def finish(self, activity: Activity) -> None:
        """Stop showing an activity."""

    def close(self, *, wipe: bool = False) -> None:
        """Stop showing anything, and leave the terminal as it was; `wipe` takes away what is on the screen."""


class LineDisplay:
    """Prints a line for the newest activity whenever it is drawn."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._activities: list[Activity] = []

    def begin(self, activity: Activity) -> None:
        """Show another activity."""
        self._activities.append(activity)

    def draw(self, now: float) -> None:
        """Print where the newest activity is."""
        if self._activities:
            self._activities[-1].look(now)
            self._write(self._activities[-1].line())

    def finish(self, activity: Activity) -> None:
        """Stop showing an activity."""
        self._activities.remove(activity)

    def close(self, *, wipe: bool = False) -> None:
        """Stop showing anything; lines stay."""
        self._activities.clear()


class BarDisplay:
    """Draws a bar for each activity; the last bar stays on the screen when its activity is finished.

    Args:
        console: The console of rich.
        transient: Whether the last bar goes as well: somebody else says in words what it showed.
    """

    def __init__(self, console: Any, *, transient: bool = False) -> None:
        self._console, self._transient = console, transient
        self._tasks: dict[Activity, Any] = {}
        self._progress: Any = None

    def begin(self, activity: Activity) -> None:
        """Show another bar."""
        if self._progress is None:
            self._progress = _bars(self._console)
            self._progress.start()
        self._tasks[activity] = self._progress.add_task(activity.title, total=activity.total(), details="")

    def draw(self, now: float) -> None:
        """Draw the bars anew."""
        if not self._tasks:
            return
        newest = next(reversed(self._tasks))
        for activity in self._tasks:
            if activity is newest:
                activity.look(now)
            else:
                activity.pause()
            self._refresh(activity)
        self._progress.refresh()

    def finish(self, activity: Activity) -> None:
        """Remove a bar; the last one stays on the screen as it is then."""
        self._refresh(activity)
        task = self._tasks.pop(activity)
        if self._tasks:
            self._progress.remove_task(task)
        else:
            self.close()

    def close(self, *, wipe: bool = False) -> None:
        """Stop drawing; the cursor is shown again. Bars stay as they are drawn then, unless they are to be wiped."""
        progress, self._progress = self._progress, None
        self._tasks.clear()
        if progress is not None:
            progress.live.transient = wipe or self._transient
            progress.stop()

    def _refresh(self, activity: Activity) -> None:
        self._progress.update(
            self._tasks[activity],
            completed=activity.position(),
            total=activity.total(),
            details=activity.details(),
        )


def _bars(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    # No refreshing of its own: each update would cost a lock and now and then a drawing, in the step.
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[details]}"),
        console=console,
        auto_refresh=False,
        expand=True,
    )


def in_notebook() -> bool:
    """Whether output goes below the cell of a notebook."""
    from rich.console import Console

    return bool(Console().is_jupyter)


def make_display(write: Callable[[str], None], *, told: bool = False) -> Display:
    """Return bars where they can be drawn, lines otherwise.

    Args:
        write: Prints a line.
        told: Whether somebody says in words how each epoch went, so that its bar need not stay.
    """
    from rich.console import Console

    console = Console()
    if console.is_jupyter:
        return NotebookDisplay(EpochTable() if told else None)
    if console.is_terminal and not console.is_dumb_terminal:
        return BarDisplay(console, transient=told)
    return LineDisplay(write)
