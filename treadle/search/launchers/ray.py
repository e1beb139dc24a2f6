"""Workers on the machines of a Ray cluster, which decides where there is room.

Ray carries only the address of the search and the module path; tasks and reports go over the same line as those of
worker processes. All machines must see the same files, and reach this one.
"""

import json
import os
import sys
from typing import Any

from treadle.errors import importing
from treadle.search.launchers.base import Ended
from treadle.search.launchers.processes import Processes, WorkerHandle
from treadle.search.launchers.wire import ADDRESS, WorkerServer
from treadle.search.launchers.worker import PATH, main


class Ray(Processes):
    """Keeps up to `workers` workers in the cluster.

    Args:
        workers: How many.
        ended: Called with each trial that has ended.
        timeout: Seconds that a trial may take; None is any number.
        resources: What Ray is to reserve for each worker, such as `{"num_gpus": 1}`.

    Raises:
        MissingDependencyError: Ray is not installed.
    """

    def __init__(
        self, workers: int, ended: Ended, *, timeout: float | None = None, resources: dict[str, Any] | None = None
    ) -> None:
        with importing("ray", extra="ray", user="launcher='ray'"):
            import ray
        self._ray: Any = ray
        self._resources = dict(resources or {})
        if not ray.is_initialized():
            ray.init()
        super().__init__(workers, ended, timeout=timeout)

    def listen(self) -> WorkerServer:
        """Return where workers call, at an address that the cluster reaches."""
        return WorkerServer(self._ray.util.get_node_ip_address())

    def spawn(self, name: str) -> WorkerHandle:
        """Have Ray start a worker."""
        path = [os.path.abspath(entry) for entry in sys.path]
        remote = self._ray.remote(_serve).options(max_retries=0, **self._resources)
        return RayWorker(self._ray, remote.remote(self.exchange.address(name), path))


def _serve(address: str, path: list[str]) -> None:
    os.environ[ADDRESS], os.environ[PATH] = address, json.dumps(path)
    main()


class RayWorker:
    """A worker that Ray has started, as if it were a process.

    Args:
        ray: The library.
        reference: What Ray calls the work.
    """

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def ended(self) -> str | None:
        """Return in words how it ended; None while it runs or waits for room."""
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            self._ray.get(self._reference)
        except Exception as error:  # Ray's word for a worker that was killed, or what the worker itself raised
            return f"died ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'})"
        return "ended by itself"

    def kill(self) -> None:
        """End it."""
        self._ray.cancel(self._reference, force=True)
