"""Evaluation: a model over a data set, and evaluators that make numbers of what it says."""

from treadle.engine.evaluation.evaluators import ClsEvaluator, DatasetEvaluator, DatasetEvaluators, PPLEvaluator
from treadle.engine.evaluation.inference import inference_context, inference_on_dataset

__all__ = [
    "ClsEvaluator",
    "DatasetEvaluator",
    "DatasetEvaluators",
    "PPLEvaluator",
    "inference_context",
    "inference_on_dataset",
]
