"""Optimizers: parameter groups, state, learning rates, and which weights are trained."""

from treadle.optim.muon import MuonGroups, muon_groups

__all__ = ["MuonGroups", "muon_groups"]
