"""Writes metrics to MLflow."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, require
from treadle.events import get_event_storage
from treadle.writers.event_writer import EventWriter
from treadle.writers.remembered_run import RememberedRun
from treadle.writers.unwritten import Rows, Unwritten, numbers_in

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

BATCH = 1000
"""How many metrics MLflow takes at once."""


class MlflowWriter(EventWriter):
    """Writes scalars to a run of an MLflow experiment, at a server or in a local folder.

    The run is begun at the first write. A training run that goes on from a checkpoint goes on with the same run
    there, whose id is in `folder`, and sends no iteration twice. Characters that MLflow takes in no name become
    underscores, and "ndcg@10" becomes "ndcg_at_10".

    Args:
        experiment: The experiment, made if it is not there.
        tracking_uri: The server or the folder; by default what MLflow itself is set to. Recent versions of MLflow
            take a folder only if `MLFLOW_ALLOW_FILE_STORE=true` is in the environment.
        run_name: The name of the run.
        params: The settings to show beside the metrics.
        folder: Where it is remembered which run this is.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.

    Raises:
        MissingDependencyError: mlflow is not installed.
    """

    def __init__(
        self,
        experiment: str = "treadle",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        params: Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] = ".",
        window_size: int = 20,
    ) -> None:
        require("mlflow", extra="mlflow", user=type(self).__name__)
        self._experiment, self._uri, self._run_name = experiment, tracking_uri, run_name
        self._params = dict(params or {})
        self._unwritten = Unwritten(window_size)
        self._remembered = RememberedRun(Path(folder) / "mlflow_run.json")
        self._names: dict[str, str] = {}
        self._client: MlflowClient | None = None
        self._run_id: str | None = None

    def write(self) -> None:
        """Send what is new."""
        storage = get_event_storage()
        if (life := self._unwritten.new_life(storage)) is not None:
            self.close()
            self._run_id = self._remembered.begin(life)
        if self._client is None:
            self._client = self._begun()
        rows: Rows = {}
        for iteration, values in self._unwritten.take(storage).items():
            rows[iteration] = {self._name(name): value for name, value in numbers_in(values).items()}
        unsent = self._remembered.unsent(rows)
        self._send(self._client, unsent)
        self._remembered.remember(str(self._run_id), unsent)

    def close(self) -> None:
        """Mark the run as finished."""
        if self._client is not None:
            self._client.set_terminated(str(self._run_id))
            self._client = None

    def _begun(self) -> "MlflowClient":
        from mlflow.tracking import MlflowClient

        client = MlflowClient(self._uri)
        if self._run_id is not None:
            client.update_run(self._run_id, status="RUNNING")
            return client
        known = client.get_experiment_by_name(self._experiment)
        experiment = client.create_experiment(self._experiment) if known is None else known.experiment_id
        self._run_id = client.create_run(experiment, run_name=self._run_name).info.run_id
        for name, value in self._params.items():
            client.log_param(self._run_id, self._name(name), value)
        return client

    def _send(self, client: "MlflowClient", rows: Rows) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, iteration) for iteration, values in rows.items() for name, value in values.items()
        ]
        for begin in range(0, len(metrics), BATCH):
            client.log_batch(str(self._run_id), metrics=metrics[begin : begin + BATCH])

    def _name(self, name: str) -> str:
        """Return `name` as MLflow takes it.

        Raises:
            ConfigError: Another name became the same.
        """
        allowed = re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))
        if self._names.setdefault(allowed, name) != name:
            raise ConfigError(f"MLflow has {name!r} and {self._names[allowed]!r} both as {allowed!r}; rename one")
        return allowed
