"""Progress in the output of a notebook's cell."""

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.callbacks.progress_display import Activity


class NotebookDisplay:
    """Shows a bar for each activity below the cell; the last bar stays there when its activity is finished.

    It needs what every notebook has: IPython, and a browser. (Rich shows its bars by widgets, which are a package of
    their own: without it, it shows a warning in their place.)
    """

    def __init__(self) -> None:
        self._activities: list[Activity] = []
        self._output: Any = None

    def begin(self, activity: "Activity") -> None:
        """Show another bar."""
        self._activities.append(activity)
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
        """Remove a bar; the last one stays below the cell as it is then."""
        last = self._activities == [activity]
        if last:
            self._show(over=True)
            self._output = None
        self._activities.remove(activity)
        if not last:
            self._show()

    def close(self, *, wipe: bool = False) -> None:
        """Stop drawing; what is shown stays where it is."""
        if self._activities:
            self._show(over=True)
        self._activities.clear()
        self._output = None

    def _show(self, *, over: bool = False) -> None:
        from IPython.display import HTML, display

        text = HTML("".join(_bar(activity, over=over) for activity in self._activities))
        if self._output is None:
            self._output = display(text, display_id=True)
        else:
            self._output.update(text)


def _bar(activity: "Activity", *, over: bool) -> str:
    total, position = activity.total(), activity.position()
    known = f' value="{position}" max="{total}"' if total else ' value="1" max="1"' if over else ""
    count = f"{position}/{total}" if total else str(position)
    words = escape("  ".join(part for part in (count, activity.details()) if part))
    return f"<div>{escape(activity.title)} <progress{known}></progress> <code>{words}</code></div>"
