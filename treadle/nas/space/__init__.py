"""The space of a model: choices, decisions, values that are still open, and the space that reads them."""
