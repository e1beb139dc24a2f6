"""Negative sampling on the device of the ids: seeded, addressed by position, and exact.

`NegativeSampler.sample(users, count, seed=...)` is what training calls; `UniformNegatives`, `PopularityNegatives` and
`HardNegatives` are its kinds. `evaluation_negatives` draws what a sampled evaluation ranks against.
"""

from treadle.recsys.data.sampling.counter_random import random_below, random_bits, random_unit, row_counters
from treadle.recsys.data.sampling.evaluation_negatives import EvaluationMode, evaluation_negatives
from treadle.recsys.data.sampling.negative_samplers import (
    HardNegatives,
    NegativeSampler,
    PairScorer,
    PopularityNegatives,
    UniformNegatives,
)
from treadle.recsys.data.sampling.user_items import UserItems, is_member, seen_by_phase

__all__ = [
    "EvaluationMode",
    "HardNegatives",
    "NegativeSampler",
    "PairScorer",
    "PopularityNegatives",
    "UniformNegatives",
    "UserItems",
    "evaluation_negatives",
    "is_member",
    "random_below",
    "random_bits",
    "random_unit",
    "row_counters",
    "seen_by_phase",
]
