"""Optimizers: parameter groups, state, learning rates, and which weights are trained."""
