"""The graphs in an architecture: cells whose operations and connections were decided."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.nas.cell import Cell
from treadle.nas.space import Space

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


def graphs_in(architecture: Mapping[str, Any], space: Space | None = None) -> list[Graph]:
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
    loose = _with_loose_ends(space)
    graphs = []
    for name, edges in found.items():
        nodes = sorted({edge.target for edge in edges})
        read = {edge.source for edge in edges}
        ends = [node for node in nodes if node not in read] if name in loose else nodes
        graphs.append(Graph(name, nodes[0], edges, ends, labels[name]))
    return graphs


def _with_loose_ends(space: Space | None) -> set[str]:
    choices = [] if space is None else space.choices.values()
    return {one.key for one in choices if isinstance(one, Cell) and one.merge_op == "loose_end"}


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
