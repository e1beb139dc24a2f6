"""How a trainer calls its callbacks; the numbers are those of the behaviours that are kept from the old library."""

from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import EVENTS, TrainerCallback
from treadle.callbacks import (
    DEFAULT_CALLBACKS,
    LogMetricsCallback,
    MoveModulesToDeviceCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    RunStatsMonitor,
    TerminateOnNaNCallback,
    get_default_callbacks,
)
from treadle.errors import CallbackError


class First(TrainerCallback):
    calls: list[str] = []

    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        self.calls.append("first")


class Second(TrainerCallback):
    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        First.calls.append("second")


def test_d4_callbacks_run_in_list_order_once_each(make_trainer: Any, data: TensorDataset) -> None:
    First.calls.clear()
    make_trainer(Second, First).train(data, num_epochs=2)
    assert First.calls == ["second", "first", "second", "first"]


def test_d5_two_callbacks_of_one_class_are_refused_by_name(make_trainer: Any) -> None:
    with pytest.raises(CallbackError, match="First was given twice") as caught:
        make_trainer(First(), First())
    assert isinstance(caught.value, ValueError)


def test_d5_a_subclass_beside_its_base_is_no_duplicate(make_trainer: Any) -> None:
    class Derived(First):
        pass

    assert len(list(make_trainer(First, Derived).callback_handler)) == 2


def test_d6_a_class_is_built_without_arguments(make_trainer: Any) -> None:
    (callback,) = make_trainer(First).callback_handler
    assert type(callback) is First


def test_d7_a_custom_event_reaches_only_those_who_define_it_with_its_arguments(make_trainer: Any) -> None:
    got: list[dict[str, Any]] = []

    class Listener(TrainerCallback):
        def on_masks_drawn(self, trainer: Any, **kwargs: Any) -> None:
            got.append(kwargs)

    trainer = make_trainer(First, Listener)
    trainer.callback_handler.call_event("on_masks_drawn", trainer=trainer, count=3)
    assert got == [{"count": 3}]


def test_d8_extra_outputs_of_the_loss_reach_the_callbacks_with_batch_and_step(
    make_trainer: Any, data: TensorDataset
) -> None:
    seen: list[tuple[str, int, int]] = []

    class Reader(TrainerCallback):
        def on_train_step_end(
            self, trainer: Any, batch: Any = None, batch_output: Any = None, step: int = 0, **kwargs: Any
        ) -> None:
            seen.append((batch_output["extra"], len(batch[0]), step))

    trainer = make_trainer(Reader)
    plain = trainer.calculate_train_batch_loss
    trainer.calculate_train_batch_loss = lambda batch: {**plain(batch), "extra": "here"}
    trainer.calculate_train_batch_loss.__name__ = "calculate_train_batch_loss"
    trainer.train(data, num_epochs=1)
    assert seen == [("here", 8, 0), ("here", 8, 1), ("here", 8, 2), ("here", 8, 3)]


def test_the_defaults_are_classes_in_the_known_order() -> None:
    assert (
        MoveModulesToDeviceCallback,
        TerminateOnNaNCallback,
        PrintProgressCallback,
        ProgressBarCallback,
        LogMetricsCallback,
        RunStatsMonitor,
    ) == DEFAULT_CALLBACKS
    assert get_default_callbacks() == DEFAULT_CALLBACKS
    assert ProgressBarCallback not in get_default_callbacks(progress_bar=False)
    assert len(get_default_callbacks(progress_bar=False)) == 5


@pytest.mark.parametrize(
    "event", ["on_update_start", "on_train_step_start", "on_train_step_end", "on_update_end", "on_eval_step_end"]
)
def test_no_default_callback_does_anything_in_a_step(make_trainer: Any, event: str) -> None:
    assert event in EVENTS
    assert make_trainer(*DEFAULT_CALLBACKS).callback_handler.listeners(event) == []


def test_the_package_exports_every_callback_it_has() -> None:
    import pkgutil
    from importlib import import_module

    from treadle import callbacks

    defined = {
        name
        for module in pkgutil.iter_modules(callbacks.__path__)
        for name, value in vars(import_module(f"treadle.callbacks.{module.name}")).items()
        if isinstance(value, type) and issubclass(value, TrainerCallback) and not name.startswith("_")
    }
    assert defined <= set(callbacks.__all__)
    assert all(hasattr(callbacks, name) for name in callbacks.__all__)
