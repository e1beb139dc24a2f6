"""Callbacks by themselves: which methods are events, who is called when, and how a session ends."""

import copy
import logging
from typing import Any

import pytest

from tests.interrupting import Counter
from treadle.callback import EVENTS, OTHER_PEOPLES_NAMES, CallbackHandler, TrainerCallback, listens
from treadle.errors import CallbackError, StopTrainingError, UnknownEventError

TRAINER: Any = object()


def test_the_parent_has_a_method_for_every_event_and_listens_to_none() -> None:
    assert all(callable(getattr(TrainerCallback, event)) for event in EVENTS)
    assert not any(listens(TrainerCallback(), event) for event in EVENTS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_train_step_ends", "on_train_step_end"),
        ("on_training_run_epoch_ended", "on_training_run_epoch_end"),
        ("on_initend", "on_init_end"),
        ("on_eval_epochs_end", "on_eval_epoch_end"),
    ],
)
def test_a_misspelt_event_fails_where_the_class_is_written_and_names_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(UnknownEventError) as caught:
        type("Typo", (TrainerCallback,), {name: lambda self, trainer: None})
    assert str(caught.value) == (
        f"Typo.{name} is called by no event; did you mean {meant!r}? "
        "If it is an event of your own, list it in custom_events."
    )
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_an_event_of_another_library_fails_with_the_name_it_has_here() -> None:
    for name, ours in OTHER_PEOPLES_NAMES.items():
        assert ours in EVENTS
        with pytest.raises(UnknownEventError) as caught:
            type("Ported", (TrainerCallback,), {name: lambda self, trainer: None})
        assert str(caught.value) == (
            f"Ported.{name} is called by no event; the event for that moment is {ours!r}. "
            "If it is an event of your own, list it in custom_events."
        )


def test_an_event_of_ones_own_needs_no_declaration_unless_its_name_is_near_another() -> None:
    class Far(TrainerCallback):
        def on_masks_drawn(self, trainer: Any, **kwargs: Any) -> None: ...

    class Near(TrainerCallback):
        custom_events = frozenset({"on_train_step_ended"})

        def on_train_step_ended(self, trainer: Any, **kwargs: Any) -> None: ...

    assert listens(Far(), "on_masks_drawn")
    assert listens(Near(), "on_train_step_ended")


class Logs(TrainerCallback):
    """Writes what it is told into a list shared by all."""

    calls: list[Any] = []

    def on_log(self, trainer: Any, **kwargs: Any) -> None:
        self.calls.append((type(self).__name__, kwargs))

    def close(self) -> None:
        self.calls.append((type(self).__name__, "close"))


class MoreLogs(Logs):
    pass


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Logs.calls.clear()


def test_only_who_listens_is_in_the_table() -> None:
    class Silent(TrainerCallback):
        pass

    handler = CallbackHandler([Silent, Logs, MoreLogs()])
    assert [type(callback).__name__ for callback in handler.listeners("on_log")] == ["Logs", "MoreLogs"]
    assert len(handler.table["on_log"]) == 2
    assert handler.table["on_update_end"] == ()


def test_an_override_that_takes_few_arguments_gets_only_those() -> None:
    got: list[Any] = []

    class Few(TrainerCallback):
        def on_train_step_end(self, trainer: Any, step: int = 0) -> None:  # type: ignore[override]
            got.append(step)

        def on_train_epoch_end(self, trainer: Any) -> None:  # type: ignore[override]
            got.append("end")

    handler = CallbackHandler([Few])
    handler.call_event("on_train_step_end", TRAINER, batch=1, batch_output=2, step=3)
    handler.call_event("on_train_epoch_end", TRAINER, more="of it")
    assert got == [3, "end"]


def test_an_object_that_inherits_from_nothing_may_be_a_callback() -> None:
    class Duck:
        def on_log(self, trainer: Any, scalars: Any) -> None:
            Logs.calls.append(scalars)

    handler = CallbackHandler([Duck()])
    handler.call_event("on_log", TRAINER, scalars={"a": 1}, nonfinite=None)
    handler.start_session("on_training_run_start", TRAINER)
    handler.end_session()
    assert Logs.calls == [{"a": 1}]
    assert handler.state_dict() == {}


def test_an_attribute_error_inside_a_callback_is_not_swallowed() -> None:
    class Typo(TrainerCallback):
        def on_log(self, trainer: Any, **kwargs: Any) -> None:
            self.no_such_thing()  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="no_such_thing"):
        CallbackHandler([Typo]).call_event("on_log", TRAINER)


def test_a_callback_can_be_copied_and_asked_for_what_it_lacks() -> None:
    callback = copy.deepcopy(Logs())
    assert isinstance(callback, Logs)
    assert not hasattr(callback, "on_something_else")


def test_callbacks_are_added_listed_and_cleared() -> None:
    handler = CallbackHandler()
    handler.add_callbacks([Logs, MoreLogs])
    assert [type(callback) for callback in handler] == [type(callback) for callback in handler.callback_list]
    handler.call_event("on_log", TRAINER)
    handler.clear_callbacks()
    handler.call_event("on_log", TRAINER)
    assert [name for name, _ in Logs.calls] == ["Logs", "MoreLogs"]


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(CallbackError, match=r"'bar' is no callback: it has none of the methods \['on_init_end'"):
        CallbackHandler(["bar"])


def test_a_wish_to_stop_ends_the_event_unless_it_is_taken_as_a_request() -> None:
    class Stops(TrainerCallback):
        def on_log(self, trainer: Any, **kwargs: Any) -> None:
            raise StopTrainingError("enough")

    handler = CallbackHandler([Stops, Logs])
    with pytest.raises(StopTrainingError):
        handler.call_event("on_log", TRAINER)
    assert Logs.calls == []
    taken: list[str] = []
    handler.on_stop = lambda error: bool(taken.append(str(error)) or True)
    handler.call_event("on_log", TRAINER)
    assert taken == ["enough"]
    assert Logs.calls == [("Logs", {})]


def test_a_session_reaches_only_those_that_came_through_its_start() -> None:
    class FailsToStart(TrainerCallback):
        def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
            raise OSError("no space")

        def close(self) -> None:
            Logs.calls.append("half open, closed all the same")

    handler = CallbackHandler([Logs, FailsToStart, MoreLogs])
    with pytest.raises(OSError, match="no space"):
        handler.start_session("on_training_run_start", TRAINER)
    handler.call_event("on_log", TRAINER)
    handler.end_session()
    assert Logs.calls == [("Logs", {}), "half open, closed all the same", ("Logs", "close")]


def test_closing_goes_last_first_and_one_failure_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(TrainerCallback):
        def close(self) -> None:
            raise OSError("disk full")

    handler = CallbackHandler([Logs, Fails, MoreLogs])
    handler.start_session("on_training_run_start", TRAINER)
    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="disk full"):
        handler.end_session()
    assert Logs.calls == [("MoreLogs", "close"), ("Logs", "close")]
    assert "closing Fails failed" in caplog.text
    handler.end_session()


def test_after_a_session_every_callback_is_reached_again() -> None:
    handler = CallbackHandler([Logs])
    handler.start_session("on_training_run_start", TRAINER)
    handler.add_callback(MoreLogs)
    handler.call_event("on_log", TRAINER)
    handler.end_session()
    Logs.calls.clear()
    handler.call_event("on_log", TRAINER)
    assert Logs.calls == [("Logs", {}), ("MoreLogs", {})]


def test_an_exception_is_told_to_all_and_their_own_failures_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    class Fails(TrainerCallback):
        def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
            raise OSError("disk full")

    class Listens(TrainerCallback):
        def on_exception(self, trainer: Any, exception: BaseException) -> None:  # type: ignore[override]
            told.append(str(exception))

    with caplog.at_level(logging.ERROR):
        CallbackHandler([Fails, Listens]).fire_exception(TRAINER, ValueError("the cause"))
    assert told == ["the cause"]
    assert "Fails failed in on_exception" in caplog.text


class Counts(Counter, TrainerCallback):
    pass


def test_the_state_of_callbacks_is_kept_by_class_and_only_where_there_is_some() -> None:
    first, second = Counts(), Counts()
    first.count = 3
    state = CallbackHandler([Logs, first]).state_dict()
    assert state == {"Counts": {"count": 3}}
    CallbackHandler([second]).load_state_dict(state)
    assert second.count == 3
    CallbackHandler([second, Logs]).load_state_dict({})
    assert second.count == 3
