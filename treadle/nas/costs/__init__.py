"""What networks cost: operations, parameters, time; as numbers, and as parts of a loss."""

from treadle.nas.costs.cost import Cost
from treadle.nas.costs.flops import flops_of
from treadle.nas.costs.latency import latency_of
from treadle.nas.costs.parameters import parameters_of
from treadle.nas.costs.penalty import ExpectedCost, Penalty

__all__ = ["Cost", "ExpectedCost", "Penalty", "flops_of", "latency_of", "parameters_of"]
