"""Recipes of docs/architecture.md that no other test follows: each adds a thing of its own, in this one file."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from treadle import Trainer, TrainerCallback
from treadle.callback import EVENTS
from treadle.cli._options import LaunchOptions, with_launch_options
from treadle.config import LazyConfig, files
from treadle.errors import ConfigError
from treadle.search import Search, one_of
from treadle.search.assignment import Assignment
from treadle.search.store.history import Proposal
from treadle.search.strategies import STRATEGIES
from treadle.search.strategies.base import Strategy


class Restarts(TrainerCallback):
    """Listens to an event of its trainer's, whose name is near one that there is."""

    custom_events = frozenset({"on_train_epoch_begin"})

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_train_epoch_begin(self, trainer: Any, epoch: int, **kwargs: Any) -> None:
        self.epochs.append(epoch)


class Telling(Trainer):
    """Fires an event of its own."""

    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        self.fire("on_train_epoch_begin", epoch=self.progress.epoch)


def test_a_callback_event_of_ones_own_reaches_who_listens() -> None:
    model, callback = nn.Linear(2, 1), Restarts()
    trainer = Telling(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(callback,))
    trainer.train([(torch.ones(2), torch.zeros(1))] * 4, num_epochs=2, per_device_batch_size=2)
    assert callback.epochs == [0, 1]
    assert "on_train_epoch_begin" not in EVENTS


def test_an_option_of_a_command_stands_beside_those_of_several_processes() -> None:
    given: list[Any] = []

    def train(
        config: str, shout: Annotated[bool, typer.Option("--shout", help="Louder.")] = False, *, options: LaunchOptions
    ) -> None:
        given.append((config, shout, options.nproc))

    app = typer.Typer()
    app.command()(with_launch_options(train))
    done = CliRunner().invoke(app, ["a.py", "--shout", "--nproc", "2"])
    assert done.exit_code == 0, done.output
    assert given == [("a.py", True, "2")]


class Largest(Strategy):
    """Takes the last option of every decision: there is one setting to try."""

    name = "largest"

    def propose(self, proposal: Proposal) -> Assignment:
        return proposal.searched.decide(lambda dimension: dimension.options()[-1])


@pytest.mark.parametrize("by_name", [False, True])
def test_a_search_strategy_of_ones_own_is_asked_for_each_trial(monkeypatch: pytest.MonkeyPatch, by_name: bool) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setitem(STRATEGIES, "largest", Largest)
    strategy = "largest" if by_name else Largest()
    space = {"x": one_of(1, 2, 3), "y": one_of("a", "b")}
    found = Search(space, lambda at: at["x"], strategy=strategy, trials=2, duplicates="run", store="memory").run()
    assert [trial["parameters"] for trial in found["trials"]] == [{"x": 3, "y": "b"}] * 2


def test_a_source_of_configs_is_a_suffix_and_a_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text("steps = 3\n[optim]\nlr = 0.1\n")
    with pytest.raises(ConfigError, match=r"no config file; its name must end in one of \.py, \.yaml, \.yml"):
        LazyConfig.load(path)
    monkeypatch.setattr(files, "SUFFIXES", (*files.SUFFIXES, ".toml"))
    monkeypatch.setattr(files, "from_yaml", lambda text, file: tomllib.loads(text))
    config = LazyConfig.apply_overrides(LazyConfig.load(path), ["optim.lr=0.2"])
    assert (config.steps, config.optim.lr) == (3, 0.2)
