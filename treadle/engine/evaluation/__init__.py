"""Evaluation: a model over a data set, and evaluators that make numbers of what it says."""

from treadle.engine.evaluation.bleu_evaluator import BLEUEvaluator
from treadle.engine.evaluation.evaluators import ClsEvaluator, DatasetEvaluator, DatasetEvaluators, PPLEvaluator
from treadle.engine.evaluation.inference import inference_context, inference_on_dataset
from treadle.engine.evaluation.reg_evaluator import RegEvaluator

__all__ = [
    "BLEUEvaluator",
    "ClsEvaluator",
    "DatasetEvaluator",
    "DatasetEvaluators",
    "PPLEvaluator",
    "RegEvaluator",
    "inference_context",
    "inference_on_dataset",
]
