"""Callbacks: what may happen at each event of a run, and the table that calls only who listens."""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from treadle.checkpoint.format.shards import materialised
from treadle.config.arguments import accepted_names, checked_names
from treadle.errors import CallbackError, StopTrainingError, UnknownEventError, did_you_mean

logger = logging.getLogger(__name__)

Handler = Callable[..., None]

EVENTS: tuple[str, ...] = (
    "on_init_end",
    "on_training_run_start",
    "on_train_epoch_start",
    "on_update_start",
    "on_train_step_start",
    "on_train_step_end",
    "on_update_end",
    "on_log",
    "on_train_epoch_end",
    "on_eval_epoch_start",
    "on_eval_step_start",
    "on_eval_step_end",
    "on_eval_epoch_end",
    "on_training_run_epoch_end",
    "on_stop_training_error",
    "on_training_run_end",
    "on_evaluation_run_start",
    "on_evaluation_run_end",
    "on_exception",
)
"""Every event, in the order of a run."""

MICRO_BATCH_EVENTS = ("on_train_step_start", "on_train_step_end")
"""Those within an update, which nobody comes by where its micro-batches are recorded or under way all at once."""

OTHER_PEOPLES_NAMES: dict[str, str] = {
    "on_batch_start": "on_train_step_start",
    "on_batch_end": "on_train_step_end",
    "on_train_batch_start": "on_train_step_start",
    "on_train_batch_end": "on_train_step_end",
    "on_validation_batch_end": "on_eval_step_end",
    "on_step_begin": "on_update_start",
    "on_step_end": "on_update_end",
    "on_optimizer_step": "on_update_end",
    "on_epoch_begin": "on_train_epoch_start",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_training_run_epoch_end",
    "on_validation_epoch_start": "on_eval_epoch_start",
    "on_validation_epoch_end": "on_eval_epoch_end",
    "on_validation_end": "on_eval_epoch_end",
    "on_fit_start": "on_training_run_start",
    "on_fit_end": "on_training_run_end",
    "on_train_begin": "on_training_run_start",
    "on_train_start": "on_training_run_start",
    "on_train_end": "on_training_run_end",
}
"""Names of events in other libraries, and ours for the same moment."""


class TrainerCallback:
    """The parent of every callback: override the events to act on.

    Each event gets the trainer and keyword arguments; an override takes only those it names. State that must
    survive a restart belongs into `state_dict` and `load_state_dict`; what was opened is closed in `close`.
    An event of your own, fired by `trainer.callback_handler.call_event`, is listed in `custom_events` if its
    name is near that of a built-in one.
    """

    custom_events: frozenset[str] = frozenset()
    unique: bool = True
    """Whether a trainer takes only one of exactly this class; of others none may have a state, which has that name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _reject_misspelt_events(cls)
        own = vars(cls).get("__init__")
        if own is not None and cls.__module__.startswith("treadle.callbacks."):
            setattr(cls, "__init__", checked_names(own))  # noqa: B010 - mypy knows it as a method

    def on_init_end(self, trainer: Any, **kwargs: Any) -> None:
        """Called once the trainer is built, before a subclass's own attributes exist."""

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        """Called when everything is ready and the first epoch is about to begin."""

    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        """Called before the first batch of an epoch."""

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        """Called before the data of an update is fetched."""

    def on_train_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        """Called before the loss of a micro-batch."""

    def on_train_step_end(
        self, trainer: Any, batch: Any = None, batch_output: Any = None, step: int = 0, **kwargs: Any
    ) -> None:
        """Called after the loss of a micro-batch, before its gradient."""

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Called after the weights were updated and the schedule moved on."""

    def on_log(self, trainer: Any, scalars: Any = None, **kwargs: Any) -> None:
        """Called when a log is due, with the scalars that just came from the device."""

    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        """Called after the last batch of an epoch, when its loss is recorded."""

    def on_eval_epoch_start(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Called before an evaluation; `is_intermediate` says that it is in the middle of an epoch."""

    def on_eval_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        """Called before the loss of an evaluation batch."""

    def on_eval_step_end(self, trainer: Any, batch: Any = None, batch_output: Any = None, **kwargs: Any) -> None:
        """Called after the loss of an evaluation batch."""

    def on_eval_epoch_end(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Called after an evaluation, when its metrics are recorded."""

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        """Called when an epoch's training and evaluation are both done."""

    def on_stop_training_error(self, trainer: Any, **kwargs: Any) -> None:
        """Called when somebody asked to stop and the run is about to end."""

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        """Called when the run is over, stopped runs included."""

    def on_evaluation_run_start(self, trainer: Any, **kwargs: Any) -> None:
        """Called before `Trainer.evaluate` begins."""

    def on_evaluation_run_end(self, trainer: Any, **kwargs: Any) -> None:
        """Called after `Trainer.evaluate` ends."""

    def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
        """Called when a run dies of `exception`, which is raised again afterwards."""

    def begin_session(self, trainer: Any, *, training: bool) -> None:
        """Get ready for a run, or for an evaluation by itself; called before the event that opens it.

        What a callback cannot do without is done here, and not at that event: a subclass may have other plans for it.
        """

    def close(self) -> None:
        """Release files, threads and handlers; called last, however the run ended."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""


Callback = TrainerCallback


def _reject_misspelt_events(cls: type) -> None:
    """Refuse a method that looks like an event and is none, in a class or in one that is mixed in."""
    known = {*EVENTS, *getattr(cls, "custom_events", ())}
    for parent in cls.__mro__:
        for name in vars(parent):
            if name in known or parent.__module__.partition(".")[0] == "treadle":
                continue
            if name.startswith("on_"):
                _reject_misspelt_event(cls, name)
            elif name.startswith("_on_") and name[1:] in EVENTS:
                raise UnknownEventError(f"{cls.__name__}.{name} is called by no event; did you mean {name[1:]!r}?")


def _reject_misspelt_event(cls: type, name: str) -> None:
    ours = OTHER_PEOPLES_NAMES.get(name)
    hint = f"; the event for that moment is {ours!r}." if ours else did_you_mean(name, EVENTS)
    if hint:
        raise UnknownEventError(
            f"{cls.__name__}.{name} is called by no event{hint} "
            "If it is an event of your own, list it in custom_events."
        )


def complete(callback: Any) -> None:
    """Give a callback what a parent of Treadle's sets when it is built, if its own `__init__` did not call that.

    It is what the parent has by default; arguments are taken from attributes of the same name.

    Raises:
        CallbackError: The parent needs an argument for which there is no attribute.
    """
    kind = type(callback)
    parent = next((one for one in kind.__mro__ if one.__module__.startswith("treadle.callbacks.")), None)
    if parent is None or getattr(kind, "__init__") is getattr(parent, "__init__"):  # noqa: B009 - mypy
        return
    own, parameters = vars(callback), inspect.signature(parent).parameters
    required = [name for name, one in parameters.items() if one.default is one.empty]
    missing = [f"self.{name}" for name in required if name not in own]
    if missing:
        needed = f"{', '.join(missing)}, which {parent.__name__} needs"
        raise CallbackError(f"{kind.__name__} neither calls super().__init__() nor sets {needed}")
    if all(name in own for name in vars(parent(**{name: own[name] for name in required}))):
        return
    for name, value in vars(parent(**{name: own[name] for name in parameters if name in own})).items():
        own.setdefault(name, value)


def listens(callback: object, event: str) -> bool:
    """Whether `callback` has something of its own to do at `event`."""
    method = getattr(type(callback), event, None) or getattr(callback, event, None)
    return method is not None and method is not getattr(TrainerCallback, event, None)


def accepting(method: Handler) -> Handler:
    """Return `method`, or a wrapper that passes on only the keyword arguments its signature takes."""
    names = accepted_names(method, follow_wrapped=True)
    if names is None:
        return method

    def call(trainer: Any, **kwargs: Any) -> None:
        method(trainer, **{name: value for name, value in kwargs.items() if name in names})

    return call


class _Table(dict[str, tuple[Handler, ...]]):
    """For each event the handlers to call, looked up in the callbacks the first time it is asked for."""

    def __init__(self, handler: "CallbackHandler") -> None:
        super().__init__()
        self._handler = handler

    def __missing__(self, event: str) -> tuple[Handler, ...]:
        # Once per event: signatures are looked at here and not at each call. New callbacks clear the table.
        listening = [callback for callback in self._handler.active if listens(callback, event)]
        self[event] = tuple(accepting(getattr(callback, event)) for callback in listening)
        return self[event]


class CallbackHandler:
    """The callbacks of a trainer and, for each event, the table of those that listen.

    Attributes:
        callback_list: The callbacks, in the order they are called.
        table: For each event the handlers to call; an empty entry means that nobody listens.
        on_stop: Asked when a callback wants to stop; True takes it as a request to be met later.
    """

    def __init__(self, callbacks: Iterable[Any] = ()) -> None:
        self.callback_list: list[Any] = []
        self.on_stop: Callable[[StopTrainingError], bool] = lambda error: False
        self.table = _Table(self)
        self._started: list[Any] | None = None
        self._starting = False
        self.add_callbacks(callbacks)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.callback_list)

    def add_callbacks(self, callbacks: Iterable[Any]) -> None:
        """Add several callbacks in order; each an instance, or a class to be built without arguments."""
        for callback in callbacks:
            self.add_callback(callback)

    def add_callback(self, callback: Any) -> None:
        """Add a callback: an instance, or a class to be built without arguments.

        Raises:
            CallbackError: One of exactly this class is there already, or it is no callback.
        """
        instance = callback() if isinstance(callback, type) else callback
        complete(instance)
        kind = type(instance)
        if getattr(kind, "unique", True) and kind in map(type, self.callback_list):
            raise CallbackError(
                f"{kind.__name__} was given twice; a trainer takes one callback of each class, "
                f"so pass a single {kind.__name__} or a subclass of it"
            )
        if not isinstance(instance, TrainerCallback) and not any(listens(instance, event) for event in EVENTS):
            raise CallbackError(f"{instance!r} is no callback: it has none of the methods {list(EVENTS)}")
        if not isinstance(instance, TrainerCallback):
            _reject_misspelt_events(kind)
        self.callback_list.append(instance)
        # While callbacks are being started, the loop over `callback_list` comes to this one itself.
        if self._started is not None and not self._starting:
            self._started.append(instance)
        self.table.clear()

    def clear_callbacks(self) -> None:
        """Remove every callback; those that a run has started are closed when it ends, and see no more of it."""
        self.callback_list = []
        self.table.clear()

    @property
    def callbacks(self) -> list[Any]:
        """The callbacks in the order they are called: `callback_list` by pytorch-accelerated's name."""
        return self.callback_list

    @property
    def active(self) -> list[Any]:
        """The callbacks that events reach: during a run those that started or came later, otherwise all."""
        if self._started is None:
            return self.callback_list
        present = set(map(id, self.callback_list))
        return [callback for callback in self._started if id(callback) in present]

    def listeners(self, event: str) -> list[Any]:
        """Return the callbacks that act at `event`, in the order they are called."""
        return [callback for callback in self.callback_list if listens(callback, event)]

    def call_event(self, event: str, trainer: Any, **kwargs: Any) -> None:
        """Call every callback that listens to `event`, in registration order.

        A wish to stop ends the event at once, unless `on_stop` takes it as a request to be met later.
        """
        for handler in self.table[event]:
            try:
                handler(trainer, **kwargs)
            except StopTrainingError as error:
                if not self.on_stop(error):
                    raise

    @contextmanager
    def session(self, event: str | None, trainer: Any) -> Iterator[None]:
        """Fire the event that opens a run; while entered, events reach only callbacks that came through it.

        Without an event, whoever runs inside fires it.

        However the run ends, every callback that was started is closed, last first; a failure of one hides no
        other, nor the failure of the run. A session inside another, such as an evaluation by a callback, opens
        and closes nothing of its own.
        """
        if self._started is not None:
            if event is not None:
                self.call_event(event, trainer)
            yield
            return
        try:
            self.start_session(event, trainer)
            yield
        except BaseException as error:
            self.fire_exception(trainer, error)
            self._close()
            raise
        self.end_session()

    def start_session(self, event: str | None, trainer: Any) -> None:
        """Fire the event that opens a run, one callback after the other; `session` does this and the closing."""
        self._started, self._starting = [], True
        try:
            # A callback may add others, which are started after it.
            for callback in self.callback_list:
                # Noted before it starts: one that fails half-way through its start is closed, too.
                self._started.append(callback)
                self.table.clear()
                if isinstance(callback, TrainerCallback):
                    callback.begin_session(trainer, training=event != "on_evaluation_run_start")
                if event is not None and listens(callback, event):
                    accepting(getattr(callback, event))(trainer)
        finally:
            self._starting = False

    def end_session(self) -> None:
        """Close every callback that was started.

        Raises:
            Exception: The first failure of a `close`, after all of them were called.
        """
        for failure in self._close():
            raise failure

    def _close(self) -> list[Exception]:
        """Close every callback that was started, last first, and return what went wrong."""
        started, self._started = self._started or [], None
        self.table.clear()
        failures: list[Exception] = []
        for callback in reversed(started):
            try:
                getattr(callback, "close", lambda: None)()
            except Exception as failure:
                logger.exception("closing %s failed", type(callback).__name__)
                failures.append(failure)
        return failures

    def fire_exception(self, trainer: Any, exception: BaseException) -> None:
        """Tell every callback of `exception`; their own failures are logged and do not hide it."""
        for callback in self.active:
            if not listens(callback, "on_exception"):
                continue
            try:
                accepting(callback.on_exception)(trainer, exception=exception)
            except Exception:
                logger.exception("%s failed in on_exception", type(callback).__name__)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every callback that has some, by class name."""
        states = {type(callback).__name__: _callback_state(callback) for callback in self.callback_list}
        return {name: state for name, state in states.items() if state}

    reads_pieces = True

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand each callback its state; one that is new to the run keeps its own."""
        for callback in self.callback_list:
            if type(callback).__name__ in state:
                own = state[type(callback).__name__]
                callback.load_state_dict(own if getattr(callback, "reads_pieces", False) else materialised(own))


def _callback_state(callback: Any) -> dict[str, Any]:
    return callback.state_dict() if hasattr(callback, "state_dict") else {}
