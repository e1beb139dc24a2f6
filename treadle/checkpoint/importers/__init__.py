"""Checkpoints and weights of torch and of other systems, read without running what is in them."""
