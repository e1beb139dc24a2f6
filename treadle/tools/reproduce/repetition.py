"""Some steps of a run made again, in a folder of their own."""

import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from treadle.errors import ConfigError, TreadleError
from treadle.runs.place import moved
from treadle.trainer import Trainer

# A folder into which nothing is written while a block runs, whoever tries


_guarded: list[str] = []
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "shutil.rmtree": (0,),
}
"""Events of Python that change a folder, and which of their arguments are the paths."""


class GuardedFolderError(TreadleError):
    """A program tried to write into the folder of a run that is only looked at."""


@contextmanager
def write_guard(folder: Path) -> Iterator[None]:
    """Have an error raised wherever this process would write into a folder, or remove something from it."""
    _watch()
    # Worked out before it is in the list: what is looked up while it is there is looked at by the watch itself.
    place = os.path.realpath(folder)
    _guarded.append(place)
    try:
        yield
    finally:
        _guarded.remove(place)


@cache
def _watch() -> None:
    """Have this process look at what it writes; once, for Python does not let go of a watch."""
    sys.addaudithook(_look)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guarded:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITING:
            _refuse_if_guarded(path)
    elif event in CHANGES:
        for place in CHANGES[event]:
            _refuse_if_guarded(arguments[place])


def _refuse_if_guarded(path: Any) -> None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    full = os.path.realpath(os.fsdecode(path))
    if any(full == folder or full.startswith(folder + os.sep) for folder in _guarded):
        raise GuardedFolderError(
            f"the program would write {full}, in the folder of the run that is being verified, by a path of its own; "
            "have it use trainer.run_dir"
        )


RECORDS = ("status.json", "heartbeat.json", "report.html", "manifest.json", "config.yaml", "log.txt")
LEFT_BEHIND = ("checkpoints", ".lock", *RECORDS)
"""What of a run's folder its repetition does not begin with."""


class _StepsReached(SystemExit):
    """Ends a program once the steps that are wanted are made; nothing that handles errors sees it."""


@dataclass(frozen=True)
class Repetition:
    """Steps of a run to be made again.

    Attributes:
        run: The folder of the run; nothing in it is changed.
        named: The folder that the program names for it.
        after: The step whose checkpoint to resume from; 0 for the beginning.
        to: The last step.
        scratch: An empty folder to work in.
    """

    run: Path
    named: Path
    after: int
    to: int
    scratch: Path

    @property
    def folder(self) -> Path:
        """Where the repetition is kept."""
        return self.scratch / "run"

    def make(self, start: Callable[[], Any]) -> None:
        """Run a program until the steps are made.

        Raises:
            ConfigError: The program did not train in the folder of the run.
        """
        self._prepare()
        trained: list[Trainer] = []
        with ExitStack() as stack:
            stack.enter_context(write_guard(self.run))
            stack.enter_context(moved(self._moved))
            stack.enter_context(self._stopping(trained))
            # What the program prints is what it printed when the run was made.
            stack.enter_context(redirect_stdout(StringIO()))
            stack.enter_context(redirect_stderr(StringIO()))
            try:
                start()
            except _StepsReached:
                pass
            except SystemExit as left:
                if left.code not in (None, 0):
                    raise ConfigError(f"the program left with status {left.code}") from left
        if not trained:
            raise ConfigError(f"the program ended without training in {self.named}")

    def _prepare(self) -> None:
        """Put into the scratch folder what the run had at the step to resume from."""
        self.folder.mkdir(parents=True)
        if not self.after:
            return
        name = f"step_{self.after:08d}"
        target = self.folder / "checkpoints"
        shutil.copytree(self.run / "checkpoints" / name, target / name, copy_function=_link_or_copy)
        (target / "last").write_text(name, encoding="utf-8")
        for path in self.run.iterdir():
            if path.name not in LEFT_BEHIND:
                copy = shutil.copytree if path.is_dir() else shutil.copyfile
                copy(path, self.folder / path.name)

    def _moved(self, folder: Path, chosen: bool) -> Path:
        """Return where a run of the program is kept: this one in its place, others each in one of its own."""
        full = Path(os.path.realpath(folder))
        if full.is_relative_to(os.path.realpath(self.scratch)):
            return folder
        if not chosen or full in (Path(os.path.realpath(self.named)), Path(os.path.realpath(self.run))):
            return self.folder
        return self.scratch / "others" / f"{zlib.crc32(str(full).encode()):08x}"

    @contextmanager
    def _stopping(self, trained: list[Trainer]) -> Iterator[None]:
        """Have the training of the run end behind the last step, with all of its checkpoints kept."""
        train = Trainer.carry_out

        def run_training(trainer: Trainer) -> Any:
            if trainer.run_dir is None or os.path.realpath(trainer.run_dir) != os.path.realpath(self.folder):
                return train(trainer)
            trained.append(trainer)
            self._shorten(trainer)
            train(trainer)
            raise _StepsReached

        with patch.object(Trainer, "carry_out", run_training):
            yield

    def _shorten(self, trainer: Trainer) -> None:
        spec = trainer.settings
        policy = replace(spec.checkpoints, keep_last=None, on_error="raise")
        trainer.this_run.spec = replace(spec, checkpoints=policy, resume="auto" if self.after else spec.resume)
        # One step more than is compared: before it all that follows the last one is done, such as logs, evaluations
        # and checkpoints, and doors that count iterations from 0 have reported the one of that number.
        run, updater, epoch = trainer.this_run, trainer.this_run.updater, trainer.this_run.epoch
        attempt = updater.attempt

        def attempt_if_wanted(*args: Any) -> None:
            self._end_if_made(trainer)
            attempt(*args)

        def run_epoch_if_wanted() -> None:
            self._end_if_made(trainer)
            epoch()

        vars(updater).update(attempt=attempt_if_wanted)
        vars(run).update(epoch=run_epoch_if_wanted)

    def _end_if_made(self, trainer: Trainer) -> None:
        if trainer.progress.step > self.to:
            raise _StepsReached


def _link_or_copy(source: str, target: str) -> None:
    """Give a file that nobody changes a second name, or copy it where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
