"""The small things a trainer offers besides its loop."""

from typing import Any

import pytest
import torch
from torch import nn

from treadle.callback import EVENTS, TrainerCallback
from treadle.trainer import Trainer


class Listens(TrainerCallback):
    def on_log(self, trainer: Any, **kwargs: Any) -> None: ...

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None: ...


class AlsoListens(Listens):
    pass


def test_the_loop_is_shown_with_who_acts_where(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(Listens, AlsoListens).show_loop()
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [event for event, _ in lines] == list(EVENTS)
    acting = {event: names for event, names in lines if names != "-"}
    assert acting == {"on_update_end": "Listens, AlsoListens", "on_log": "Listens, AlsoListens"}


def test_the_end_of_building_comes_before_the_attributes_of_a_subclass(make_trainer: Any) -> None:
    class Late(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.mine = 1

    seen: list[bool] = []

    class Watch(TrainerCallback):
        def on_init_end(self, trainer: Any, **kwargs: Any) -> None:
            seen.append(hasattr(trainer, "mine"))

    make_trainer(Watch, kind=Late)
    assert seen == [False]


def test_alone_there_is_nothing_to_gather(make_trainer: Any) -> None:
    trainer = make_trainer()
    rows = torch.arange(4.0).view(2, 2)
    assert trainer.gather(rows) is rows
    assert trainer.gather(rows, padding_value=0) is rows
    assert trainer.gather(torch.tensor(1.0)).dim() == 0


def test_printing_goes_to_the_console(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer().print("hello", 3)
    assert capsys.readouterr().out == "hello 3\n"


def test_the_old_names_of_the_processes_are_still_there(make_trainer: Any) -> None:
    trainer = make_trainer()
    facade = trainer._accelerator
    assert (facade.num_processes, facade.process_index, facade.device) == (1, 0, torch.device("cpu"))
    assert facade.is_main_process
    assert facade.is_local_main_process
    assert facade.unwrap_model(trainer.model) is trainer.model
    assert torch.equal(facade.gather(torch.ones(2)), torch.ones(2))
    facade.wait_for_everyone()


def test_optimizers_have_names(make_trainer: Any) -> None:
    trainer = make_trainer()
    assert trainer.optimizers() == {"optimizer": trainer.optimizer}
    model = nn.Linear(2, 1)
    both = {"a": torch.optim.SGD([model.weight], lr=0.1), "b": torch.optim.SGD([model.bias], lr=0.1)}
    assert Trainer(model, None, both, callbacks=(), device="cpu").optimizers() == both
    assert Trainer(model, None, None, callbacks=(), device="cpu").optimizers() == {}
