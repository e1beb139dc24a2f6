"""Evaluation: a model over a data set, and evaluators that make numbers of what it says."""

from treadle.engine.evaluation.cls_evaluator import ClsEvaluator
from treadle.engine.evaluation.dataset_evaluator import DatasetEvaluator, DatasetEvaluators
from treadle.engine.evaluation.inference import inference_context, inference_on_dataset
from treadle.engine.evaluation.ppl_evaluator import PPLEvaluator

__all__ = [
    "ClsEvaluator",
    "DatasetEvaluator",
    "DatasetEvaluators",
    "PPLEvaluator",
    "inference_context",
    "inference_on_dataset",
]
