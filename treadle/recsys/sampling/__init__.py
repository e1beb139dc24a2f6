"""Negative sampling on the device of the ids: seeded, addressed by position, and exact.

`NegativeSampler.sample(users, count, seed=...)` is what training calls; `UniformNegatives`, `PopularityNegatives` and
`HardNegatives` are its kinds. `evaluation_negatives` draws what a sampled evaluation ranks against.
"""

from treadle.recsys.sampling.counter_random import random_below, random_bits, random_unit, row_counters
from treadle.recsys.sampling.evaluation_negatives import EvaluationMode, evaluation_negatives
from treadle.recsys.sampling.hard_negatives import HardNegatives, PairScorer
from treadle.recsys.sampling.popularity_negatives import PopularityNegatives
from treadle.recsys.sampling.sampler import NegativeSampler
from treadle.recsys.sampling.uniform_negatives import UniformNegatives
from treadle.recsys.sampling.user_items import UserItems, is_member, seen_by_phase

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
