"""Drawing an architecture: its cells as graphs, and everything else as a list of what was decided."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.decisions import Decision, Subset
from treadle.nas.drawing.cells import draw_cell
from treadle.nas.drawing.graphs import graphs_in
from treadle.nas.drawing.svg import FAINT, INK, Picture, width_of
from treadle.nas.space import Space
from treadle.search.assignment import key_of

MARGIN = 16.0
LABEL, CHIP = 260.0, 22.0
TAKEN = "#2f6fb0"


def draw(architecture: Mapping[str, Any], model: nn.Module | None = None, *, title: str = "Architecture") -> str:
    """Return a picture of an architecture: the text of an SVG file that needs nothing else.

    Cells are drawn as graphs. Every other decision is a line: what was taken, and, where the model is given, what it
    was taken from.

    >>> draw({"op": "conv3", "skip": [0]}).count('class="taken"')
    2

    Args:
        architecture: What was decided, such as `trainer.export()`.
        model: The space.
        title: What it is called.

    Raises:
        ConfigError: There is nothing in it, or it is no architecture of the space.
    """
    if not architecture:
        raise ConfigError("there is nothing to draw: the architecture is empty")
    space = None if model is None else Space(model)
    if space is not None:
        architecture = space.complete(architecture)
    picture = Picture()
    picture.text(MARGIN, 30, title, size=18.0, bold=True)
    top = 48.0
    shown: set[str] = set()
    for graph in graphs_in(architecture, space):
        draw_cell(picture, graph, MARGIN, top)
        shown |= graph.labels
        top = picture.height + 24
    for label, value in architecture.items():
        if label not in shown:
            _draw_decision(picture, label, value, None if space is None else space.decisions[label], top)
            top += CHIP + 8
    return picture.finished(title)


def _draw_decision(picture: Picture, label: str, value: Any, decision: Decision | None, top: float) -> None:
    """Draw one decision as a line of chips."""
    picture.text(MARGIN, top + 15, label, within=LABEL - 12, kind="label")
    taken = [key_of(one) for one in value] if _is_list(value, decision) else [key_of(value)]
    candidates = [*(value if _is_list(value, decision) else [value])] if decision is None else decision.candidates
    x = MARGIN + LABEL
    if not candidates or not taken:
        picture.text(x, top + 15, "nothing", colour=FAINT)
        x += width_of("nothing") + 12
    for candidate in candidates:
        name = candidate if isinstance(candidate, str) else key_of(candidate)
        chosen = key_of(candidate) in taken
        width = min(width_of(name) + 18, 180.0)
        fill, edge = (TAKEN, TAKEN) if chosen else ("#ffffff", FAINT)
        picture.box(x, top, width, CHIP, fill=fill, edge=edge, kind="taken" if chosen else "left")
        ink = "#ffffff" if chosen else INK
        picture.text(x + width / 2, top + 15, name, colour=ink, anchor="middle", within=width - 8)
        x += width + 6


def _is_list(value: Any, decision: Decision | None) -> bool:
    """Whether a value is several positions, and not one value that is a list itself."""
    return isinstance(value, list) if decision is None else isinstance(decision, Subset)
