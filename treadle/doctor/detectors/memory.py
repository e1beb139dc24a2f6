"""Memory that grows with every step, and how much is left."""

import gc
from collections.abc import Iterable
from itertools import pairwise

from torch import Tensor

from treadle.doctor.detectors.detector import Detector
from treadle.doctor.finding import Finding

FEWEST = 5
"""Steps over which something must grow each time."""


class Memory(Detector):
    """Counts the tensors that live after each step."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._counts: list[int] = []

    def after_update(self) -> None:
        """Count what autograd still knows of."""
        self._counts.append(sum(map(_has_graph, _tensors())))

    def findings(self) -> Iterable[Finding]:
        """Return whether every step leaves more behind than the one before."""
        last = self._counts[-FEWEST:]
        if len(last) == FEWEST and all(before < after for before, after in pairwise(last)):
            yield Finding(
                "memory_grows",
                f"every step leaves {last[-1] - last[-2]} tensors behind, with the graph that computed them: somebody "
                "keeps outputs or losses; keep them with .detach(), or only their numbers at on_log",
            )


def _has_graph(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        # A view whose base was written to without autograd cannot say; somewhere in the process there may be one.
        return False


def _tensors() -> list[Tensor]:
    # The type, not isinstance: lazy objects of other libraries would be loaded by being asked.
    return [one for one in gc.get_objects() if type(one) is Tensor]
