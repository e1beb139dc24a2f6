"""Drawing a cell: its states as boxes, and between them its operations, wired up from left to right."""

from treadle.nas.drawing.graphs import Edge, Graph
from treadle.nas.drawing.svg import FAINT, INK, Picture, colour_of, width_of

ROW, GAP, LANE = 30.0, 34.0, 10.0
BEND = 26.0
STATE, HIGH = 54.0, 24.0
NOTHING = frozenset({"none", "zero", "zeroize"})
"""Names of operations that return zeros: drawn as what is not there."""


def draw_cell(picture: Picture, graph: Graph, left: float, top: float) -> None:
    """Draw a cell with its upper left corner at a place."""
    picture.text(left, top + 14, graph.name or "cell", size=14.0, bold=True, kind="cell")
    plan = _Plan(graph, left, top + 26)
    for edge in graph.edges:
        _draw_wires(picture, edge, plan)
    for node in graph.ends:
        if plan.is_long(node, plan.last + 1):
            picture.detour(plan.right_of(node), plan.output, plan.bus, BEND, colour=FAINT, kind="wire")
        else:
            picture.curve(plan.right_of(node), plan.output, colour=FAINT, kind="wire")
    for edge in graph.edges:
        _draw_operation(picture, edge, plan.operations[id(edge)], plan.operation_width)
    for state, (x, y) in plan.states.items():
        _draw_state(picture, _name_of(graph, state), (x, y), colour_of(state))
    if graph.ends:
        _draw_state(picture, "output", plan.output, INK)


def _draw_wires(picture: Picture, edge: Edge, plan: "_Plan") -> None:
    """Draw what comes to an operation, around all columns between, and what goes from it."""
    place, faint = plan.operations[id(edge)], edge.operation in NOTHING
    colour = FAINT if faint else colour_of(edge.source)
    start = plan.right_of(edge.source)
    if plan.is_long(edge.source, plan.column[edge.target]):
        level = plan.lanes[edge.source]
        picture.detour(start, place, level, BEND, colour=colour, kind="wire", dashed=faint)
    else:
        picture.curve(start, place, colour=colour, kind="wire", dashed=faint)
    end = (place[0] + plan.operation_width, place[1])
    picture.curve(end, plan.states[edge.target], colour=FAINT if faint else INK, kind="wire", dashed=faint)


def _draw_operation(picture: Picture, edge: Edge, place: tuple[float, float], width: float) -> None:
    faint = edge.operation in NOTHING
    (x, y), ink = place, FAINT if edge.operation in NOTHING else INK
    title = f"{edge.label}: {edge.operation}, from state {edge.source} to state {edge.target}"
    picture.box(x, y - HIGH / 2, width, HIGH, edge=ink, kind="operation", title=title, dashed=faint)
    picture.text(x + width / 2, y + 4, edge.operation, colour=ink, anchor="middle", within=width - 8)


def _draw_state(picture: Picture, name: str, place: tuple[float, float], colour: str) -> None:
    x, y = place
    picture.box(x, y - HIGH / 2, STATE, HIGH, fill=colour, edge=colour, kind="state")
    picture.text(x + STATE / 2, y + 4, name, colour="#ffffff", anchor="middle", within=STATE - 4)


def _name_of(graph: Graph, state: int) -> str:
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
        widest = max(width_of(edge.operation) for edge in graph.edges)
        self.operation_width = min(max(widest + 16, 60.0), 150.0)
        self.states: dict[int, tuple[float, float]] = {}
        self.operations: dict[int, tuple[float, float]] = {}
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

    def right_of(self, state: int) -> tuple[float, float]:
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
