"""torch's compiler, with what its code for CPUs is slow at said in another way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

from treadle.execution import window_pooling


@dataclass(frozen=True)
class CpuCompiler:
    """A backend for `torch.compile` that makes the code of its default one, but for masks and max pooling.

    Args:
        settings: Settings of the compiler, by their names.
    """

    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a graph, compiled for such inputs."""
        # The compiler takes a while to load.
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.decomposition import select_decomp_table

        patches = {"joint_custom_pre_pass": RecomputedMasks(), **self.settings}
        table = {**select_decomp_table(), **window_pooling.decompositions()}
        return compile_fx(graph, inputs, config_patches=patches, decompositions=table)  # type: ignore[return-value]


class RecomputedMasks(CustomGraphPass):
    """Has booleans computed again in the backward pass, not kept from the forward pass.

    An activation such as ReLU has to know which elements it let through. The compiler keeps that as booleans, the
    smallest thing there is to keep, and code for CPUs writes them one at a time: this took more than half of a step
    of a small convolutional network. What was compared is at hand in the backward pass, or costs less to keep.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Mark what gives booleans in the graph of both passes."""
        for node in graph.nodes:
            if _is_mask(node) and "recompute" not in node.meta:
                node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}

    def uuid(self) -> Any:
        """Return what tells code that was compiled with this, and with these windows, from other code in caches."""
        return get_hash_for_files((__file__, window_pooling.__file__))


def _is_mask(node: torch.fx.Node) -> bool:
    """Whether a node of a graph gives booleans, the same each time."""
    value, operation = node.meta.get("val"), node.target
    if not isinstance(operation, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
        return False
    return value.dtype is torch.bool and torch.Tag.nondeterministic_seeded not in operation.tags
