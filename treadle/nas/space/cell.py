"""A cell: a small graph whose operations and connections are to be decided."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.space.choice import Choice, Ranked, make_module
from treadle.nas.space.choosers import Fixed
from treadle.nas.space.decisions import Architecture, Condition, Decision, Subset
from treadle.nas.space.fixed_modules import ChosenCell, initial_states
from treadle.nas.space.layer_choice import LayerChoice
from treadle.nas.space.value_choice import FREEZE_KEY
from treadle.search.assignment import key_of

# The cell of NAS-Bench-201: every pair of states is joined by one operation


MakeOperation = Callable[[int, int], nn.Module]


class NasBench201Cell(nn.Module):
    """A cell of a few states, each the sum of one operation on every earlier one.

    The choice between state j and state i is labelled `<label>/<i>_<j>`; without a label, by its place.

    Args:
        op_candidates: Functions, by name or in a list, which make an operation for a number of input and of output
            channels.
        in_features: Channels of the input.
        out_features: Channels of every other state.
        num_tensors: How many states there are, the input among them.
        label: Its name; cells that share one have the same operations.
    """

    def __init__(
        self,
        op_candidates: Mapping[str, MakeOperation] | Sequence[MakeOperation],
        in_features: int,
        out_features: int,
        num_tensors: int = 4,
        label: str | None = None,
    ) -> None:
        super().__init__()
        if num_tensors < 2:
            raise ConfigError(f"NasBench201Cell {label or ''}: num_tensors={num_tensors} must be at least 2")
        self.num_tensors = num_tensors
        self.layers = nn.ModuleDict()
        for node in range(1, num_tensors):
            for place in range(node):
                width = in_features if place == 0 else out_features
                name = None if label is None else f"{label}/{node}_{place}"
                self.layers[f"{node}_{place}"] = _choice(op_candidates, width, out_features, name)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last state."""
        states = [inputs]
        for node in range(1, self.num_tensors):
            total: Any = self.layers[f"{node}_0"](states[0])
            for place in range(1, node):
                total = total + self.layers[f"{node}_{place}"](states[place])
            states.append(total)
        return states[-1]


def _choice(
    makers: Mapping[str, MakeOperation] | Sequence[MakeOperation], width: int, out: int, label: str | None
) -> LayerChoice:
    if isinstance(makers, Mapping):
        return LayerChoice({name: make(width, out) for name, make in makers.items()}, label)
    return LayerChoice([make(width, out) for make in makers], label)


Operation = nn.Module | Callable[[int, int, int], nn.Module]
MERGES = ("all", "loose_end")
MOST_RANKED = 20_000
"""How many ways to fill a node are compared at most."""


class Cell(Choice):
    """A graph of nodes, each the sum of operations on earlier states; which ones and on which states is decided.

    The first states are the inputs of the cell; node i is state i. For each of its operations, k, an architecture
    has `<label>/op_<i>_<k>`, the name of the operation, and `<label>/input_<i>_<k>`, a list of the one state that it
    reads. The operations of a node that read the same state share their weights while nothing is decided.

    Args:
        op_candidates: The operations by name, or in a list: modules, which are copied for each connection, or functions
            called with the node, 0 and the state that is read, which return the module.
        num_nodes: How many nodes there are.
        num_ops_per_node: How many operations each node sums.
        num_predecessors: How many inputs the cell has.
        merge_op: What the output concatenates: "all" nodes, or each "loose_end" that no other node reads.
        preprocessor: Turns the list of inputs into the list of first states.
        postprocessor: Called with the output and the first states.
        concat_dim: Along which dimension nodes are concatenated.
        partial_channels: In how many parts the channels are divided, one of which goes through the operations; see
            `PartialChannels`. Operations are made for the channels of one part.
        label: Its name; by default its place in the model.
    """

    def __init__(
        self,
        op_candidates: Mapping[str, Operation] | Sequence[Operation],
        num_nodes: int,
        num_ops_per_node: int = 1,
        num_predecessors: int = 1,
        merge_op: str = "all",
        preprocessor: nn.Module | None = None,
        postprocessor: nn.Module | None = None,
        concat_dim: int = 1,
        *,
        partial_channels: int = 1,
        label: str | None = None,
    ) -> None:
        super().__init__(label)
        listed = not isinstance(op_candidates, Mapping)
        named: dict[Any, Operation] = dict(enumerate(op_candidates)) if listed else dict(op_candidates)  # type: ignore[arg-type]
        if not named or min(num_nodes, num_ops_per_node, num_predecessors) < 1:
            raise ConfigError(f"Cell {label or ''}: it needs an operation, a node, an operation per node and an input")
        if merge_op not in MERGES:
            raise ConfigError(f"Cell {label or ''}: merge_op={merge_op!r} is unknown; use one of {MERGES}")
        self.names: list[Any] = list(named)
        self.num_ops_per_node, self.num_predecessors = num_ops_per_node, num_predecessors
        self.nodes = range(num_predecessors, num_predecessors + num_nodes)
        self.merge_op, self.concat_dim, self.partial_channels = merge_op, concat_dim, partial_channels
        self.preprocessor = preprocessor
        self.edges = nn.ModuleDict()
        for node in self.nodes:
            for place in range(node):
                self.edges[f"{node}_{place}"] = nn.ModuleDict(
                    {
                        str(name): make_module(one, node, 0, place, maker="Cell: an operation's function")
                        for name, one in named.items()
                    }
                )
        self.postprocessor = postprocessor

    def operation_label(self, node: int, slot: int) -> str:
        """Return the label of the decision which operation a node has in one of its slots."""
        return f"{self.current_label}/op_{node}_{slot}"

    def input_label(self, node: int, slot: int) -> str:
        """Return the label of the decision which state that operation reads."""
        return f"{self.current_label}/input_{node}_{slot}"

    def edge_label(self, node: int, place: int) -> str:
        """Return the row that weighs the operations between a state and a node."""
        return f"{self.current_label}/edge_{node}_{place}"

    def defaults(self, node: int, slot: int) -> tuple[list[int], Any]:
        """Return the state and the operation of a slot in a space that nobody decided on."""
        return [slot % node], self.names[0]

    def operation(self, node: int, place: int, name: Any) -> nn.Module:
        """Return the operation called `name` between a state and a node."""
        edge: Any = self.edges[f"{node}_{place}"]
        operation: nn.Module = edge[str(name)]
        return operation

    def operations(self, node: int, place: int) -> list[nn.Module]:
        """Return all operations between a state and a node."""
        return [self.operation(node, place, name) for name in self.names]

    def forward(self, *inputs: Any) -> Any:
        """Return the output of the cell for its inputs, which come one by one or in a list."""
        states = initial_states(self.preprocessor, inputs)
        if len(states) != self.num_predecessors:
            raise ConfigError(
                f"{self.current_label or 'Cell'} has {self.num_predecessors} inputs and was called with {len(states)}"
            )
        for node in self.nodes:
            states.append(self.chooser.node(self, node, states))
        ends = self.nodes if self.merge_op == "all" else self.chooser.loose_ends(self)
        output: Tensor = torch.cat([states[node] for node in ends], self.concat_dim)
        return output if self.postprocessor is None else self.postprocessor(output, states[: self.num_predecessors])

    def _slots(self) -> Iterable[tuple[int, int]]:
        return product(self.nodes, range(self.num_ops_per_node))

    def decisions(self, place: str) -> list[Decision]:
        """Return the operation and the state of every slot."""
        assert self.key
        found: list[Decision] = []
        for node, slot in self._slots():
            source, name = self.defaults(node, slot)
            found.append(Decision(self.operation_label(node, slot), tuple(self.names), name, place))
            found.append(Subset(self.input_label(node, slot), tuple(range(node)), source, place))
        return found

    def branches(self) -> Mapping[str, Sequence[Condition]]:
        """Return the conditions for each operation: that one of the node's slots has it, on that state."""
        found: dict[str, list[Condition]] = {}
        for node, slot in self._slots():
            for place, name in product(range(node), self.names):
                wanted = {
                    self.operation_label(node, slot): frozenset([key_of(name)]),
                    self.input_label(node, slot): frozenset([key_of([place])]),
                }
                found.setdefault(f"edges.{node}_{place}.{name}", []).append(wanted)
        return found

    def frozen(self, architecture: Mapping[str, Any], memo: dict[Any, Any]) -> nn.Module:
        """Return a cell of copies of the chosen operations, each with weights of its own."""
        slots = range(self.num_ops_per_node)
        sources = [[architecture[self.input_label(node, slot)][0] for slot in slots] for node in self.nodes]
        operations: list[list[nn.Module]] = []
        for node, places in zip(self.nodes, sources, strict=True):
            names = [architecture[self.operation_label(node, slot)] for slot in slots]
            chosen = [self.operation(node, place, name) for place, name in zip(places, names, strict=True)]
            # Two slots may have taken the same operation, which are two from now on.
            memos: list[dict[Any, Any]] = [
                {FREEZE_KEY: architecture} if one in chosen[:at] else memo for at, one in enumerate(chosen)
            ]
            operations.append([deepcopy(one, own) for one, own in zip(chosen, memos, strict=True)])
        ends = self.nodes if self.merge_op == "all" else Fixed(architecture).loose_ends(self)
        before, after = deepcopy(self.preprocessor, memo), deepcopy(self.postprocessor, memo)
        how = (self.concat_dim, before, after, self.partial_channels)
        return ChosenCell(operations, sources, list(ends), *how).train(self.training)

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return a row for each connection, with a weight for each operation."""
        assert self.key
        edges = ((node, place) for node in self.nodes for place in range(node))
        return {self.edge_label(node, place): tuple(self.names) for node, place in edges}

    def ranked(self, scores: Mapping[str, Sequence[float]], most: int) -> list[Ranked]:
        """Return the ways to fill each node, best first: the strongest operations, from different states."""
        return [self._ranked_node(node, scores, most) for node in self.nodes]

    def _ranked_node(self, node: int, scores: Mapping[str, Sequence[float]], most: int) -> Ranked:
        edges: list[list[tuple[float, int, int]]] = []
        for place in range(node):
            own = scores[self.edge_label(node, place)]
            order = sorted(range(len(own)), key=lambda name: -own[name])
            edges.append([(own[name], place, name) for name in order])
        wanted = self.num_ops_per_node
        # With fewer states than slots, a state is read by several operations.
        pools = edges if node >= wanted else [edge for _ in range(-(-wanted // node)) for edge in edges]
        depth = min(len(self.names), most)
        while depth > 1 and len(list(combinations(range(len(pools)), wanted))) * depth**wanted > MOST_RANKED:
            depth -= 1
        found: dict[str, tuple[float, Architecture]] = {}
        for chosen in combinations(pools, wanted):
            for parts in product(*(edge[:depth] for edge in chosen)):
                if len(set(parts)) == wanted or node < wanted:
                    part = self._part(node, sorted(parts, key=lambda one: one[1:]))
                    found.setdefault(key_of(part), (sum(one[0] for one in parts), part))
        return sorted(found.values(), key=lambda pair: -pair[0])[:most]

    def _part(self, node: int, parts: Sequence[tuple[float, int, int]]) -> Architecture:
        part: Architecture = {}
        for slot, (_, place, name) in enumerate(parts):
            part[self.operation_label(node, slot)] = self.names[name]
            part[self.input_label(node, slot)] = [place]
        return part

    def reason_not_differentiable(self) -> str | None:
        """Return why its operations cannot be weighed against each other; None if they can."""
        if self.merge_op == "all":
            return None
        return "which nodes are loose ends is not known while all connections are weighed; use merge_op='all'"
