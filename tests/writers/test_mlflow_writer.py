"""Metrics in a local store of MLflow, read back by MLflow."""

from pathlib import Path
from typing import Any

import pytest

from tests.writers.conftest import resumed
from treadle.errors import ConfigError
from treadle.events import EventStorage
from treadle.writers import MlflowWriter

pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


@pytest.fixture(autouse=True)
def local_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow keeps its store of files for those who say that they want it."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def writer_in(folder: Path, **kwargs: Any) -> MlflowWriter:
    return MlflowWriter("tests", tracking_uri=(folder / "store").as_uri(), folder=folder, **kwargs)


def runs_in(folder: Path) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient((folder / "store").as_uri())
    experiment = client.get_experiment_by_name("tests")
    return list(client.search_runs([experiment.experiment_id]))


def curve(folder: Path, run: Any, name: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    history = MlflowClient((folder / "store").as_uri()).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in history]


def test_scalars_are_written_once_smoothed_or_raw(storage: EventStorage, tmp_path: Path) -> None:
    writer = writer_in(tmp_path, run_name="first", params={"lr": 0.1}, window_size=2)
    for iteration, value in enumerate([1.0, 3.0, 8.0]):
        storage.iter = iteration
        storage.put_scalar("train/loss", value)
        storage.put_scalar("lr", value, smoothing_hint=False)
        writer.write()
        writer.write()
    storage.put_scalars({"ndcg@10": 0.5, "a:b?c": float("nan")})
    writer.write()
    writer.close()
    (run,) = runs_in(tmp_path)
    assert (run.info.run_name, run.info.status, run.data.params) == ("first", "FINISHED", {"lr": "0.1"})
    assert curve(tmp_path, run, "train/loss") == [(0, 1.0), (1, 2.0), (2, 5.5)]
    assert curve(tmp_path, run, "lr") == [(0, 1.0), (1, 3.0), (2, 8.0)]
    assert curve(tmp_path, run, "ndcg_at_10") == [(2, 0.5)]
    assert set(run.data.metrics) == {"train/loss", "lr", "ndcg_at_10", "a_b_c"}


def test_b34_a_run_that_goes_on_keeps_one_curve(tmp_path: Path) -> None:
    first, writer = EventStorage(), writer_in(tmp_path)
    with first:
        for iteration in range(5):
            first.put_scalar("loss", float(iteration), smoothing_hint=False, cur_iter=iteration)
            writer.write()
            if iteration == 2:
                first.iter = 2
                checkpoint = resumed(first)
        writer.close()
    with checkpoint:
        again = writer_in(tmp_path)
        for iteration in (3, 4, 5):
            checkpoint.put_scalar("loss", float(iteration), smoothing_hint=False, cur_iter=iteration)
            again.write()
        assert [run.info.status for run in runs_in(tmp_path)] == ["RUNNING"]
        again.close()
    (run,) = runs_in(tmp_path)
    assert run.info.status == "FINISHED"
    assert curve(tmp_path, run, "loss") == [(step, float(step)) for step in range(6)]


def test_a_new_run_is_a_run_of_its_own(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for _ in range(2):
        with EventStorage() as storage:
            storage.put_scalar("loss", 1.0)
            writer.write()
    writer.close()
    assert len(runs_in(tmp_path)) == 2


def test_two_metrics_that_mlflow_cannot_tell_apart_are_refused(storage: EventStorage, tmp_path: Path) -> None:
    storage.put_scalars({"a?": 1.0, "a!": 2.0})
    with pytest.raises(ConfigError, match=r"^MLflow has 'a\?' and 'a!' both as 'a_'; rename one$"):
        writer_in(tmp_path).write()


def test_many_metrics_are_sent_in_several_batches(storage: EventStorage, tmp_path: Path) -> None:
    storage.put_scalars({f"metric {place}": float(place) for place in range(1005)})
    writer = writer_in(tmp_path)
    writer.write()
    writer.close()
    (run,) = runs_in(tmp_path)
    assert len(run.data.metrics) == 1005
