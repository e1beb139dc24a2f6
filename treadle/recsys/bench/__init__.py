"""Several models under one protocol: trained, tested, and put into one table."""

from treadle.recsys.bench.benchmark import Benchmark
from treadle.recsys.bench.leaderboard import Leaderboard
from treadle.recsys.bench.protocol import Protocol
from treadle.recsys.bench.records import Record

__all__ = ["Benchmark", "Leaderboard", "Protocol", "Record"]
