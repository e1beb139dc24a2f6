"""Several models under one protocol: trained, tested, and put into one table."""

from treadle.recsys.bench.benchmark import Benchmark
from treadle.recsys.bench.leaderboard import Leaderboard, Record
from treadle.recsys.bench.protocol import Protocol

__all__ = ["Benchmark", "Leaderboard", "Protocol", "Record"]
