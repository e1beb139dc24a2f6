"""RecBole's KGAT, timed as `recbole_timed` does it, with a stand-in for the old dgl that it needs.

The model asks dgl for two things: a graph whose edges have types, and the adjacency of the edges of one type.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any


class Graph:
    """Edges with data, which are chosen by what the data says."""

    def __init__(self, ends: tuple[Any, Any], nodes: int | None = None) -> None:
        self.source, self.target = ends
        self.nodes = nodes or int(max(self.source.max(), self.target.max())) + 1
        self.edata: dict[str, Any] = {}

    def filter_edges(self, wanted: Any) -> Any:
        """Return the places of edges that a function of all of them says yes to."""
        return wanted(SimpleNamespace(data=self.edata)).nonzero().flatten()

    def adjacency_matrix(self, transpose: bool, scipy_fmt: str) -> Any:
        """Return from where to where edges lead, as a matrix of ones."""
        import numpy as np
        from scipy.sparse import coo_matrix

        if transpose or scipy_fmt != "coo":
            raise NotImplementedError("only the plain matrix in coordinates is there")
        ends = (self.source.numpy(), self.target.numpy())
        return coo_matrix((np.ones(len(ends[0])), ends), shape=(self.nodes, self.nodes))


def edge_subgraph(graph: Graph, edges: Any, preserve_nodes: bool) -> Graph:
    """Return the graph of all nodes and some edges."""
    if not preserve_nodes:
        raise NotImplementedError("nodes stay as they are")
    return Graph((graph.source[edges], graph.target[edges]), graph.nodes)


if __name__ == "__main__":
    import recbole_timed

    dgl = ModuleType("dgl")
    dgl.graph, dgl.edge_subgraph = Graph, edge_subgraph  # type: ignore[attr-defined]
    sys.modules["dgl"] = dgl
    recbole_timed.main()
