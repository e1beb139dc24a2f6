"""Mutations that no test can notice, with the reason.

An entry is known by its function and by the text of its line before and after; `place` only helps to find it.
"""

from typing import NamedTuple


class Equivalent(NamedTuple):
    """A mutation that changes nothing that anybody is promised.

    Attributes:
        place: The module.
        function: The class and the function of the line.
        before: The line.
        after: What stands there instead.
        reason: Why no test is to notice it.
    """

    place: str
    function: str
    before: str
    after: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What a mutation is known by, wherever it moves."""
        return self.function, self.before, self.after


EQUIVALENTS: list[Equivalent] = []
