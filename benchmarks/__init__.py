"""Measurements of Treadle against its peers; each script is run as `python -m benchmarks.<name>`."""
