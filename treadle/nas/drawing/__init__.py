"""Pictures of what a search decides: architectures, and how the weights of candidates went."""

from treadle.nas.drawing.architecture import draw
from treadle.nas.drawing.weights import draw_weights

__all__ = ["draw", "draw_weights"]
