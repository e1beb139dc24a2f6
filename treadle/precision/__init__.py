"""Number formats: what runs in half precision, how the loss is scaled for it, and how fp32 products are rounded."""

from treadle.precision.custom_loop import CustomLoopForward, ScaledPasses, ScaledSteps
from treadle.precision.formats import KINDS, Precision, PrecisionName, precision_for
from treadle.precision.loss_scaling import LossScaler, LossScaling
from treadle.precision.sparse import SparseProducts
from treadle.precision.tf32 import SinglePrecision

__all__ = [
    "KINDS",
    "CustomLoopForward",
    "LossScaler",
    "LossScaling",
    "Precision",
    "PrecisionName",
    "ScaledPasses",
    "ScaledSteps",
    "SinglePrecision",
    "SparseProducts",
    "precision_for",
]
