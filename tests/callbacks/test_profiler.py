import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import ProfilerCallback
from treadle.errors import ConfigError


def test_the_chosen_steps_are_recorded_into_a_trace(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    trainer = make_trainer(ProfilerCallback(first_step=2, num_steps=3, folder=tmp_path / "traces"))
    trainer.train(data, num_epochs=2)
    (path,) = (tmp_path / "traces").iterdir()
    assert path.name == "trace_steps_2_to_4.json"
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    assert names.count("aten::mse_loss") == 3


def test_a_run_that_ends_while_it_is_recorded_still_leaves_a_trace(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    trainer = make_trainer(ProfilerCallback(first_step=3, num_steps=99), run_dir=tmp_path)
    trainer.train(data, num_epochs=1)
    assert (tmp_path / "profile" / "trace_steps_3_to_4.json").is_file()


def test_a_run_that_dies_while_it_is_recorded_stops_the_recording(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    class Failing(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            raise RuntimeError("broken")

    profiler = ProfilerCallback(first_step=1, folder=tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        make_trainer(profiler, Failing).train(data, num_epochs=1)
    assert profiler._profiler is None
    assert list(tmp_path.iterdir()) == []


def test_steps_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="first_step=0 and num_steps=5 must both be at least 1"):
        ProfilerCallback(first_step=0)
