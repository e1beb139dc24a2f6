"""The worker's end of a trial's reports."""

from typing import Any

from treadle.errors import NonFiniteError
from treadle.search.launchers.wire import Line
from treadle.search.reports import Metrics, PrunedError, ReportError

_KINDS: dict[str, type[Exception]] = {
    "ReportError": ReportError,
    "NonFiniteError": NonFiniteError,
    "PrunedError": PrunedError,
}


class RemoteReporter:
    """Sends reports to the search, and waits for its answer: a report that returned is stored.

    Args:
        line: The line to the search.
        is_first: Whether this process speaks for the trial; of the others no final result is expected.
    """

    def __init__(self, line: Line, *, is_first: bool = True) -> None:
        self._line = line
        self.finished = not is_first

    def intermediate(self, metrics: Metrics, step: int | None) -> bool:
        """Report an intermediate result, and return whether the trial is to stop."""
        return bool(self._asked({"intermediate": metrics, "step": step})["stop"])

    def final(self, metrics: Metrics) -> None:
        """Report the final result."""
        self._asked({"final": metrics})
        self.finished = True

    def _asked(self, message: dict[str, Any]) -> dict[str, Any]:
        self._line.send(message)
        answer = self._line.receive()
        if "refused" in answer:
            raise _KINDS.get(answer["refused"], ReportError)(answer["message"])
        return answer
