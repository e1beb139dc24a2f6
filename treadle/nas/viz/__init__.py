"""Pictures of what a search decides: architectures, and how the weights of candidates went."""

from treadle.nas.viz.architecture import draw
from treadle.nas.viz.weight_history import draw_weights

__all__ = ["draw", "draw_weights"]
