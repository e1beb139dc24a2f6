"""The trainers of this door: a base, one for each way of a step, and the one that is built from a config."""
