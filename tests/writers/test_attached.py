"""Writers of a trainer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.interrupting import starts_of
from treadle import Trainer
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.events import get_event_storage
from treadle.writers import CommonMetricPrinter, CSVWriter, EventWriter, JSONWriter, TensorboardWriter, WritersCallback


class Noting(EventWriter):
    """A writer of your own: notes the newest values, and when it is closed."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def write(self) -> None:
        self.notes.append(get_event_storage().latest())

    def close(self) -> None:
        self.notes.append("closed")


class Duck:
    """A writer that is no `EventWriter` and has nothing to close."""

    written = 0

    def write(self) -> None:
        self.written += 1


def data(count: int = 12) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, 3, generator=generator), torch.randn(count, 1, generator=generator))


def make(*writers: Any, callbacks: tuple[Any, ...] = (), **kwargs: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    arguments = {"seed": 5, "device": "cpu"} | kwargs
    return Trainer(model, nn.MSELoss(), optimizer, (*callbacks, WritersCallback(*writers)), **arguments)


def train(trainer: Trainer, epochs: int = 2, **kwargs: Any) -> Trainer:
    arguments: dict[str, Any] = {"per_device_batch_size": 4, "log_every": 2, "eval_dataset": data(8)}
    loading = {"num_workers": 0, "persistent_workers": False}
    trainer.train(data(), epochs, **(arguments | {"train_dataloader_kwargs": loading} | kwargs))
    return trainer


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_b32_the_final_evaluation_reaches_every_writer_before_it_is_closed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines: list[str] = []
    noting = Noting()
    trainer = make(
        JSONWriter(tmp_path / "metrics.json"),
        CSVWriter(tmp_path / "metrics.csv"),
        CommonMetricPrinter(show=lines.append),
        TensorboardWriter(tmp_path / "tb"),
        noting,
    )
    train(trainer)
    final = trainer.run_history.get_latest_metric("eval_loss_epoch")
    assert trainer.progress.step == 6
    last = rows_of(tmp_path / "metrics.json")[-1]
    assert (last["iteration"], last["eval_loss_epoch"]) == (6, final)
    header, *_, table = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    cells = dict(zip(header, table, strict=True))
    assert (cells["iteration"], float(cells["eval_loss_epoch"])) == ("6", final)
    assert f"eval {final:.4g}" in lines[-1]
    logged = EventAccumulator(str(tmp_path / "tb")).Reload().Scalars("eval_loss_epoch")[-1]
    assert (logged.step, logged.value) == (6, pytest.approx(final))
    assert noting.notes[-2]["eval_loss_epoch"] == (final, 6)
    assert noting.notes[-1] == "closed"


def test_b33_a_trainer_writes_one_line_for_each_step_that_reported(tmp_path: Path) -> None:
    trainer = train(make(JSONWriter(tmp_path / "metrics.json")))
    rows = rows_of(tmp_path / "metrics.json")
    assert [row["iteration"] for row in rows] == [2, 3, 4, 6]
    assert ["eval_loss_epoch" in row for row in rows] == [False, True, False, True]
    assert [row["train_loss_epoch"] for row in rows if "train_loss_epoch" in row] == (
        trainer.run_history.get_metric_values("train_loss_epoch")
    )


@pytest.mark.parametrize("stop_at", [3, 4, 5])
def test_b34_a_run_that_was_cut_and_goes_on_writes_the_same_lines(tmp_path: Path, stop_at: int) -> None:
    class Dies(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == stop_at:
                raise RuntimeError("of something")

    def settings(folder: str) -> dict[str, Any]:
        return {"run_dir": tmp_path / folder}

    train(make(JSONWriter(tmp_path / "whole.json"), **settings("whole")), save_every=2)
    with pytest.raises(RuntimeError, match="of something"):
        train(make(JSONWriter(tmp_path / "cut.json"), callbacks=(Dies,), **settings("cut")), save_every=2)
    again = make(JSONWriter(tmp_path / "cut.json"), callbacks=(), **settings("cut"))
    train(again, save_every=2, resume="auto")
    assert starts_of(tmp_path / "cut") == [0, (stop_at - 1) // 2 * 2]
    assert (tmp_path / "cut.json").read_text() == (tmp_path / "whole.json").read_text()


def test_a_second_run_of_one_trainer_begins_a_new_file(tmp_path: Path) -> None:
    trainer = make(JSONWriter(tmp_path / "metrics.json"))
    train(trainer, 2)
    train(trainer, 1)
    assert [row["iteration"] for row in rows_of(tmp_path / "metrics.json")] == [2, 3]
    assert [row["iteration"] for row in rows_of(tmp_path / "metrics.json.1")] == [2, 3, 4, 6]


def test_a_run_that_dies_writes_what_there_was_and_closes(tmp_path: Path) -> None:
    class Dies(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.storage.put_scalar("step", trainer.progress.step)
            if trainer.progress.step == 5:
                raise RuntimeError("of something")

    noting = Noting()
    with pytest.raises(RuntimeError, match="of something"):
        train(make(noting, callbacks=(Dies,)))
    assert noting.notes[-2]["step"] == (5, 5)
    assert noting.notes[-1] == "closed"


def test_a_writer_that_a_run_dies_of_is_not_asked_again_and_others_write_what_there_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Duck):
        def write(self) -> None:
            super().write()
            raise RuntimeError("of a full disk")

    broken, noting = Broken(), Noting()
    trainer = make(broken, noting)
    for attempt in (1, 2):
        with pytest.raises(RuntimeError, match="of a full disk"):
            train(trainer)
        assert broken.written == attempt
    assert len(noting.notes) == 4
    assert noting.notes[1::2] == ["closed", "closed"]
    assert not caplog.text


def test_an_evaluation_by_itself_writes_nothing_and_leaves_the_files_alone(tmp_path: Path) -> None:
    train(make(JSONWriter(tmp_path / "metrics.json")))
    before = (tmp_path / "metrics.json").read_bytes()
    make(JSONWriter(tmp_path / "metrics.json")).evaluate(data())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("metrics.json", before)]


def test_only_the_first_process_writes() -> None:
    trainer, duck = make(), Duck()
    callback = WritersCallback(duck)
    trainer.processes.rank = 1
    callback.on_training_run_start(trainer)
    callback.on_log(trainer)
    assert duck.written == 0
    trainer.processes.rank = 0
    callback.on_training_run_start(trainer)
    callback.on_log(trainer)
    assert duck.written == 1
    callback.close()


def test_writers_are_closed_last_first_and_one_failure_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    def writer(name: str) -> EventWriter:
        class Failing(Noting):
            def close(self) -> None:
                closed.append(name)
                raise RuntimeError(name)

        return Failing()

    with pytest.raises(RuntimeError, match=r"^second$"):
        WritersCallback(writer("first"), writer("second")).close()
    assert closed == ["second", "first"]
    assert caplog.messages == ["closing Failing failed"] * 2


@pytest.mark.parametrize("given", [3, Noting, "metrics.json"])
def test_what_is_no_writer_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        WritersCallback(Duck(), given)
    assert str(caught.value) == f"{given!r} is no writer; pass an object with a method write()"


def test_a_writer_must_say_how_it_writes() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?write'?"):
        type("Empty", (EventWriter,), {})()
