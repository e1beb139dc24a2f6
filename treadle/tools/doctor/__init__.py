"""A few steps of a program, looked at closely: what is wrong, where, and what to do."""

from typing import TYPE_CHECKING, Any

from treadle.tools.doctor.findings import Examination, Finding, Note

if TYPE_CHECKING:
    from treadle.tools.doctor.examination import examine

__all__ = ["Examination", "Finding", "Note", "examine"]


def __getattr__(name: str) -> Any:
    """Load what trains when it is asked for: a command that only waits for another process needs no torch."""
    if name == "examine":
        from treadle.tools.doctor.examination import examine

        return examine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
