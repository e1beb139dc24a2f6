"""Writers for a trainer: a callback that tells them when to write."""

import logging
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.events.storage import EventStorage

if TYPE_CHECKING:
    from treadle.trainer import Trainer

logger = logging.getLogger(__name__)


class WritersCallback(TrainerCallback):
    """Has writers write whenever a trainer logs, evaluates or ends an epoch, and closes them in the end.

    Give it last, so that what other callbacks report is written too. Only the first process writes, and only in
    training runs.

    ```python
    callbacks = (*DEFAULT_CALLBACKS, WritersCallback(JSONWriter("metrics.json"), TensorboardWriter("tb")))
    ```

    Args:
        *writers: Anything with a `write` that asks `get_event_storage()`, and a `close` if it needs one; each an
            `EventWriter`, say. They write in this order.
    """

    def __init__(self, *writers: Any) -> None:
        for writer in writers:
            if isinstance(writer, type) or not callable(getattr(writer, "write", None)):
                raise ConfigError(f"{writer!r} is no writer; pass an object with a method write()")
        self._writers = writers
        self._storage: EventStorage | None = None
        self._failed: list[Any] = []

    def on_training_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take note of where the metrics are."""
        self._failed = []
        self._storage = trainer.storage if trainer.processes.is_main else None

    def on_log(self, trainer: "Trainer", scalars: Any = None, **kwargs: Any) -> None:
        """Write what came with the log."""
        self._write()

    def on_train_epoch_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Write the metrics of training."""
        self._write()

    def on_eval_epoch_end(self, trainer: "Trainer", is_intermediate: bool = False, **kwargs: Any) -> None:
        """Write the metrics of the evaluation."""
        self._write()

    def on_training_run_epoch_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Write what was reported at the end of the epoch."""
        self._write()

    def on_training_run_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Write what is left."""
        self._write()
        self._storage = None

    def on_exception(self, trainer: "Trainer", exception: BaseException, **kwargs: Any) -> None:
        """Write what there was before the run died; a writer that it died of is left alone."""
        try:
            self._write()
        finally:
            self._storage = None

    def close(self) -> None:
        """Close every writer, the last first; one failure hides no other.

        Raises:
            Exception: The first failure, after all of them were closed.
        """
        failures: list[Exception] = []
        for writer in reversed(self._writers):
            try:
                getattr(writer, "close", lambda: None)()
            except Exception as failure:
                logger.exception("closing %s failed", type(writer).__name__)
                failures.append(failure)
        if failures:
            raise failures[0]

    def _write(self) -> None:
        if self._storage is not None:
            with self._storage:
                for writer in self._writers:
                    self._write_to(writer)

    def _write_to(self, writer: Any) -> None:
        if any(writer is one for one in self._failed):
            return
        try:
            writer.write()
        except Exception:
            self._failed.append(writer)
            raise
