"""What a server counts, as Prometheus reads it."""

from collections import Counter
from collections.abc import Iterator

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The bounds of the histogram of how long requests take."""


class Histogram:
    """How many values are at most so large, and their sum.

    Args:
        bounds: The bounds, rising.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        place = next((place for place, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))
        self._counts[place] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Yield the lines of the histogram."""
        total = 0
        comma = "," if labels else ""
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self._sum:.6f}"
        yield f"{name}_count{braces} {total}"


class Statistics:
    """Requests, batches and models since the server began. Only the thread of the event loop counts."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram((1, 2, 4, 8, 16, 32, 64))
        self._model_seconds = Histogram(SECONDS)
        self.loads = 0
        self.failed_loads = 0

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests[path, status] += 1
        self._seconds.setdefault(path, Histogram(SECONDS)).add(seconds)

    def batch(self, size: int, seconds: float) -> None:
        """Count requests that were answered together."""
        self._batches.add(size)
        self._model_seconds.add(seconds)

    def text(self, *, loaded_at: float, fresh: bool) -> str:
        """Return everything in Prometheus' text format.

        Args:
            loaded_at: When the model that answers was loaded, in seconds since 1970.
            fresh: Whether what it was loaded from is there still.
        """
        lines = ["# HELP treadle_requests_total Requests that were answered.", "# TYPE treadle_requests_total counter"]
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'treadle_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += ["# HELP treadle_request_seconds How long they took.", "# TYPE treadle_request_seconds histogram"]
        for path, seconds in sorted(self._seconds.items()):
            lines += seconds.lines("treadle_request_seconds", f'path="{path}"')
        lines += ["# HELP treadle_batch_size Requests answered together.", "# TYPE treadle_batch_size histogram"]
        lines += self._batches.lines("treadle_batch_size")
        lines += ["# HELP treadle_model_seconds How long a batch took.", "# TYPE treadle_model_seconds histogram"]
        lines += self._model_seconds.lines("treadle_model_seconds")
        gauges = {
            "treadle_model_loaded_timestamp_seconds": ("When the model that answers was loaded.", "gauge", loaded_at),
            "treadle_model_source_present": ("Whether the run of the model is there still.", "gauge", int(fresh)),
            "treadle_model_loads_total": ("Models that were loaded.", "counter", self.loads),
            "treadle_model_failed_loads_total": ("Models that could not be loaded.", "counter", self.failed_loads),
        }
        for name, (about, kind, value) in gauges.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"
