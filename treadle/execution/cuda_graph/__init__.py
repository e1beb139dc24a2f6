"""Steps recorded as CUDA graphs and replayed."""
