"""A callback that is not told where to write writes into the folder of the run, or here if there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interrupting import make_trainer, samples
from treadle.callbacks import (
    ModelEmaCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    WSDCheckpointCallback,
)
from treadle.schedules import WSDLrScheduler

WRITES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "the best model": (SaveBestModelCallback, "best_model.pt", "best_model.pt"),
    "the average": (ModelEmaCallback, "ema_model.pt", "ema_model.pt"),
    "training states": (SaveTrainingStateCallback, "training_states/final", "training_states/final"),
    "before and after a decay": (
        WSDCheckpointCallback,
        "wsd_checkpoints/checkpoint_6_post_decay.pt",
        "checkpoints/checkpoint_6_post_decay.pt",
    ),
}


def train(run_dir: Path | None, callback: Any) -> None:
    schedule = WSDLrScheduler.create_scheduler_fn(decay_phase_ratio=0.5)
    trainer = make_trainer(run_dir, callback)
    trainer.train(samples(), 2, eval_dataset=samples(8), create_scheduler_fn=schedule)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("what", list(WRITES))
def test_a_callback_without_a_path_writes_into_the_folder_of_the_run(what: str, tmp_path: Path, here: Path) -> None:
    make, in_run, _ = WRITES[what]
    train(tmp_path / "run", make())
    assert (tmp_path / "run" / in_run).exists()
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("what", list(WRITES))
def test_a_callback_without_a_path_and_without_a_run_folder_writes_here(what: str, here: Path) -> None:
    make, _, in_working_directory = WRITES[what]
    train(None, make())
    assert (here / in_working_directory).exists()


@pytest.mark.parametrize("what", list(WRITES))
def test_a_path_that_is_given_is_kept(what: str, tmp_path: Path, here: Path) -> None:
    make, in_run, _ = WRITES[what]
    name = Path(in_run).name
    single = in_run == name
    given = {"save_path": tmp_path / "given" / name} if single else {"save_dir": tmp_path / "given"}
    train(tmp_path / "run", make(**given))
    assert (tmp_path / "given" / name).exists()
    assert not (tmp_path / "run" / in_run).exists()
    assert list(here.iterdir()) == []


def test_a_callback_used_in_two_runs_writes_into_the_folder_of_each(tmp_path: Path, here: Path) -> None:
    callback = SaveBestModelCallback()
    assert callback.save_path == "best_model.pt"
    for run in ("first", "second"):
        train(tmp_path / run, callback)
        assert callback.save_path == tmp_path / run / "best_model.pt"
    train(None, callback)
    assert callback.save_path == "best_model.pt"
    assert [path.name for path in here.iterdir()] == ["best_model.pt"]
