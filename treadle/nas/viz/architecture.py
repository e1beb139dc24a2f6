"""Drawing an architecture: its cells as graphs, and everything else as a list of what was decided."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.space.cell import Cell
from treadle.nas.space.decisions import Decision, Subset
from treadle.nas.space.model_space import Space
from treadle.search.assignment import key_of
from treadle.search.plots.svg import INK, MARGIN, PALE, PALETTE, PAPER, Canvas, Point, color_at, text_width

# The graphs in an architecture: cells whose operations and connections were decided


SLOT = re.compile(r"(?P<cell>.*)/op_(?P<node>\d+)_(?P<slot>\d+)")
PAIR = re.compile(r"(?P<cell>.*)(?:/|\.layers\.)(?P<node>\d+)_(?P<source>\d+)")


@dataclass(frozen=True)
class Edge:
    """An operation between two states.

    Attributes:
        source: The state that it reads.
        target: The state that it is a part of.
        operation: Its name.
        label: The decision that it was.
    """

    source: int
    target: int
    operation: str
    label: str


@dataclass(frozen=True)
class Graph:
    """A cell of an architecture.

    Attributes:
        name: The label of the cell.
        inputs: How many of its states come from outside.
        edges: Its operations.
        ends: The states that its output concatenates; empty if it is the last state itself.
        labels: The decisions that it shows.
    """

    name: str
    inputs: int
    edges: list[Edge]
    ends: list[int]
    labels: set[str] = field(default_factory=set)

    @property
    def states(self) -> list[int]:
        """The states that are computed, in order."""
        return sorted({edge.target for edge in self.edges})


def find_graphs(architecture: Mapping[str, Any], space: Space | None = None) -> list[Graph]:
    """Return the cells that an architecture decides, in the order of their first decisions.

    Args:
        architecture: What was decided.
        space: Where it was; without it, every node of a cell is taken to be a part of its output.
    """
    return [*_cells(architecture, space), *_pairs(architecture)]


def _cells(architecture: Mapping[str, Any], space: Space | None) -> list[Graph]:
    found: dict[str, list[Edge]] = {}
    labels: dict[str, set[str]] = {}
    for label, value in architecture.items():
        match = SLOT.fullmatch(label)
        reads = "" if match is None else f"{match['cell']}/input_{match['node']}_{match['slot']}"
        if match is None or reads not in architecture:
            continue
        own = [Edge(source, int(match["node"]), str(value), label) for source in architecture[reads]]
        found.setdefault(match["cell"], []).extend(own)
        labels.setdefault(match["cell"], set()).update((label, reads))
    choices = [] if space is None else space.choices.values()
    loose = {one.key for one in choices if isinstance(one, Cell) and one.merge_op == "loose_end"}
    graphs = []
    for name, edges in found.items():
        nodes = sorted({edge.target for edge in edges})
        read = {edge.source for edge in edges}
        ends = [node for node in nodes if node not in read] if name in loose else nodes
        graphs.append(Graph(name, nodes[0], edges, ends, labels[name]))
    return graphs


def _pairs(architecture: Mapping[str, Any]) -> list[Graph]:
    """Return the cells with an operation between every two states, as NAS-Bench-201 has them."""
    found: dict[str, list[Edge]] = {}
    for label, value in architecture.items():
        match = PAIR.fullmatch(label)
        if match is not None and isinstance(value, (str, int)):
            edge = Edge(int(match["source"]), int(match["node"]), str(value), label)
            found.setdefault(match["cell"], []).append(edge)
    graphs = []
    for name, edges in found.items():
        last = max(edge.target for edge in edges)
        wanted = {(node, source) for node in range(1, last + 1) for source in range(node)}
        if {(edge.target, edge.source) for edge in edges} == wanted and len(edges) > 1:
            graphs.append(Graph(name, 1, edges, [], {edge.label for edge in edges}))
    return graphs


LABEL, CHIP = 260.0, 22.0
TAKEN = PALETTE[0]


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
    canvas = Canvas(title)
    top = 48.0
    shown: set[str] = set()
    for graph in find_graphs(architecture, space):
        draw_cell(canvas, graph, MARGIN, top)
        shown |= graph.labels
        top = canvas.reach[1] + 24
    for label, value in architecture.items():
        if label not in shown:
            _draw_decision(canvas, label, value, None if space is None else space.decisions[label], top)
            top += CHIP + 8
    return canvas.svg()


def _draw_decision(canvas: Canvas, label: str, value: Any, decision: Decision | None, top: float) -> None:
    """Draw one decision as a line of chips."""
    canvas.text((MARGIN, top + 15), label, within=LABEL - 12, kind="label")
    taken = [key_of(one) for one in value] if _is_list(value, decision) else [key_of(value)]
    candidates = [*(value if _is_list(value, decision) else [value])] if decision is None else decision.candidates
    x = MARGIN + LABEL
    if not candidates or not taken:
        canvas.text((x, top + 15), "nothing", color=PALE)
        x += text_width("nothing") + 12
    for candidate in candidates:
        name = candidate if isinstance(candidate, str) else key_of(candidate)
        chosen = key_of(candidate) in taken
        width = min(text_width(name) + 18, 180.0)
        fill, edge = (TAKEN, TAKEN) if chosen else (PAPER, PALE)
        canvas.box((x, top), width, CHIP, fill=fill, edge=edge, kind="taken" if chosen else "left")
        ink = PAPER if chosen else INK
        canvas.text((x + width / 2, top + 15), name, color=ink, anchor="middle", within=width - 8)
        x += width + 6


def _is_list(value: Any, decision: Decision | None) -> bool:
    """Whether a value is several positions, and not one value that is a list itself."""
    return isinstance(value, list) if decision is None else isinstance(decision, Subset)


# Drawing a cell: its states as boxes, and between them its operations, wired up from left to right


ROW, GAP, LANE = 30.0, 34.0, 10.0
DASH = "4 3"
STATE, HIGH = 54.0, 24.0
NOTHING = frozenset({"none", "zero", "zeroize"})
"""Names of operations that return zeros: drawn as what is not there."""


def draw_cell(canvas: Canvas, graph: Graph, left: float, top: float) -> None:
    """Draw a cell with its upper left corner at a place."""
    canvas.text((left, top + 14), graph.name or "cell", size=14.0, bold=True, kind="cell")
    plan = _Plan(graph, left, top + 26)
    for edge in graph.edges:
        _draw_wires(canvas, edge, plan)
    for node in graph.ends:
        bus = plan.bus if plan.is_long(node, plan.last + 1) else None
        canvas.wire(plan.wire_start(node), plan.output, level=bus, color=PALE, kind="wire")
    for edge in graph.edges:
        _draw_operation(canvas, edge, plan.operations[id(edge)], plan.operation_width)
    for state, (x, y) in plan.states.items():
        _draw_state(canvas, _state_name(graph, state), (x, y), color_at(state))
    if graph.ends:
        _draw_state(canvas, "output", plan.output, INK)


def _draw_wires(canvas: Canvas, edge: Edge, plan: "_Plan") -> None:
    """Draw what comes to an operation, around all columns between, and what goes from it."""
    place, faint = plan.operations[id(edge)], edge.operation in NOTHING
    color, dash = (PALE, DASH) if faint else (color_at(edge.source), "")
    lane = plan.lanes[edge.source] if plan.is_long(edge.source, plan.column[edge.target]) else None
    canvas.wire(plan.wire_start(edge.source), place, level=lane, color=color, dash=dash, kind="wire")
    end = (place[0] + plan.operation_width, place[1])
    canvas.wire(end, plan.states[edge.target], color=PALE if faint else INK, dash=dash, kind="wire")


def _draw_operation(canvas: Canvas, edge: Edge, place: Point, width: float) -> None:
    x, y = place
    ink, dash = (PALE, DASH) if edge.operation in NOTHING else (INK, "")
    title = f"{edge.label}: {edge.operation}, from state {edge.source} to state {edge.target}"
    canvas.box((x, y - HIGH / 2), width, HIGH, edge=ink, dash=dash, title=title, kind="operation")
    canvas.text((x + width / 2, y + 4), edge.operation, color=ink, anchor="middle", within=width - 8)


def _draw_state(canvas: Canvas, name: str, place: Point, color: str) -> None:
    x, y = place
    canvas.box((x, y - HIGH / 2), STATE, HIGH, fill=color, edge=color, kind="state")
    canvas.text((x + STATE / 2, y + 4), name, color=PAPER, anchor="middle", within=STATE - 4)


def _state_name(graph: Graph, state: int) -> str:
    if state >= graph.inputs:
        is_output = not graph.ends and state == graph.states[-1]
        return "output" if is_output else f"node {state}"
    return "input" if graph.inputs == 1 else f"input {state}"


class _Plan:
    """Where everything in a cell goes.

    A state lies to the right of all that it reads. What is read further on goes over everything between, on a lane of
    its own; what goes to the output runs below.
    """

    def __init__(self, graph: Graph, left: float, top: float) -> None:
        widest = max(text_width(edge.operation) for edge in graph.edges)
        self.operation_width = min(max(widest + 16, 60.0), 150.0)
        self.states: dict[int, Point] = {}
        self.operations: dict[int, Point] = {}
        self.column = _columns(graph)
        self.last = max(self.column.values())
        far = sorted({edge.source for edge in graph.edges if self.is_long(edge.source, self.column[edge.target])})
        self.lanes = {source: top + LANE * number for number, source in enumerate(far)}
        top += LANE * len(far)
        stride = GAP + self.operation_width + GAP + STATE
        columns = [[one for one, own in self.column.items() if own == level] for level in range(self.last + 1)]
        heights = [sum(_height(graph, state) for state in column) for column in columns]
        for number, (column, height) in enumerate(zip(columns, heights, strict=True)):
            x, y = left + number * stride, top + (max(heights) - height) / 2
            for state in column:
                y = self._place(graph, state, x, y)
        self.bus = top + max(heights) + LANE
        self.output = (left + self.last * stride + STATE + GAP, top + max(heights) / 2)

    def is_long(self, state: int, column: int) -> bool:
        """Whether there are columns between a state and another column."""
        return column - self.column[state] > 1

    def _place(self, graph: Graph, state: int, x: float, y: float) -> float:
        """Place a state and the operations before it; return where the next one begins."""
        own, height = _before(graph, state), _height(graph, state)
        self.states[state] = (x, y + height / 2)
        start = y + (height - ROW * len(own)) / 2
        for number, edge in enumerate(own):
            self.operations[id(edge)] = (x - GAP - self.operation_width, start + ROW * (number + 0.5))
        return y + height

    def wire_start(self, state: int) -> Point:
        """Return where the wires of a state begin."""
        x, y = self.states[state]
        return x + STATE, y


def _before(graph: Graph, state: int) -> list[Edge]:
    return [edge for edge in graph.edges if edge.target == state]


def _height(graph: Graph, state: int) -> float:
    return ROW * max(len(_before(graph, state)), 1.4)


def _columns(graph: Graph) -> dict[int, int]:
    """Return for each state how many operations lie before it at most."""
    depth = dict.fromkeys(range(graph.inputs), 0)
    for state in graph.states:
        depth[state] = 1 + max(depth[edge.source] for edge in _before(graph, state))
    return depth
