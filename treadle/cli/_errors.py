"""What went wrong, told in one message on stderr; only an error in somebody's program brings its traceback along."""

import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from treadle.errors import TreadleError
from treadle.files.bounded_io import printable
from treadle.parallel.launch import worker
from treadle.runs.preemption import EXIT_CODE, PreemptedExit
from treadle.runs.provenance import is_library

TRACEBACK = "TREADLE_TRACEBACK"
"""The environment variable that has every error shown with its traceback."""

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as in a shell."""

_CONFIG_FILE = "_treadle_config_"
"""What the names of modules begin with that are config files."""


@contextmanager
def report_errors(command: str) -> Iterator[None]:
    """Run the body of a command: a mistake of the user's ends it with one message and status 1.

    Args:
        command: The name of the command, which the message begins with.
    """
    try:
        yield
    except (KeyboardInterrupt, PreemptedExit) as left:
        _leave(command, left)
    except Exception as error:
        if is_typer_exit(error):
            raise
        _tell(command, error)
        raise typer.Exit(1) from error


def _tell(command: str, error: Exception) -> None:
    """Say what went wrong: to the launcher if there is one, which says it once for all processes."""
    if is_user_error(error) and not os.environ.get(TRACEBACK):
        if not worker.report(worker.REFUSED, error_message(error)):
            complain(command, error_message(error))
        return
    text = format_error(command, error)
    if not worker.report(worker.FAILED, text):
        typer.echo(text, err=True)


def format_error(command: str, error: Exception) -> str:
    """Return an error with its traceback.

    Treadle's own error adds where in the config it was; the traceback that matters is then that of its cause.
    """
    cause = _root(error)
    if cause is None or os.environ.get(TRACEBACK):
        return "".join(traceback.format_exception(error)).rstrip()
    text = "".join(traceback.format_exception(cause)).rstrip()
    return text if cause is error else f"{text}\n{_message(command, error_message(error))}"


def error_message(error: BaseException) -> str:
    """Return what an error says, with a line for each note that was added to it, or to Treadle's errors behind it.

    >>> error = ValueError("the loss is a list")
    >>> error.add_note("at step 1, epoch 1")
    >>> print(error_message(error))
    the loss is a list
    at step 1, epoch 1
    """
    notes = list(getattr(error, "__notes__", ()))
    cause = error.__cause__
    while isinstance(cause, TreadleError):
        notes += getattr(cause, "__notes__", ())
        cause = cause.__cause__
    return "\n".join([str(error), *notes])


def _leave(command: str, left: BaseException) -> None:
    """End a command that was asked to leave, by Ctrl-C or by another signal, with the status of that."""
    if worker.report(worker.LEFT, str(left)):
        # To the launcher a process that left in good order is no failure; it gives the status itself.
        raise typer.Exit(0)
    complain(command, str(left) or "interrupted")
    raise typer.Exit(EXIT_CODE if isinstance(left, PreemptedExit) else INTERRUPTED)


def is_typer_exit(error: Exception) -> bool:
    """Whether an exception is typer's own: an exit, or a wrong use of an option, which typer shows itself."""
    return isinstance(error, (typer.Exit, typer.Abort)) or hasattr(error, "exit_code")


def complain(command: str, message: str) -> None:
    """Write a message to stderr, broken between words where a terminal is known to be narrow."""
    typer.echo(_message(command, message), err=True)


def _message(command: str, message: str) -> str:
    return with_width("\n".join(map(printable, f"treadle {command}: {message}".split("\n"))), sys.stderr.isatty())


def with_width(text: str, is_terminal: bool) -> str:
    """Return `text` in lines that fit the terminal; as it is where there is none, for programs to read."""
    if not is_terminal and "COLUMNS" not in os.environ:
        return text
    width = max(40, shutil.get_terminal_size().columns)
    lines = [
        textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return "\n".join(lines)


def is_user_error(error: Exception) -> bool:
    """Whether the message says it all: an error of Treadle's that no code of the user's stands behind.

    A target that was called with a wrong argument is one; a target that failed inside is not, for that is a program to
    be mended, and its traceback says where.
    """
    if not isinstance(error, TreadleError):
        return False
    cause = _root(error)
    return cause is None or isinstance(cause, OSError) or not any(map(_is_own_code, _frames(cause)))


def _root(error: Exception) -> BaseException | None:
    """Return the first error behind `error` that is none of Treadle's; None if all of them are."""
    cause: BaseException | None = error
    while isinstance(cause, TreadleError):
        cause = cause.__cause__
    return cause


def _frames(error: BaseException) -> Iterator[FrameType]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame


def _is_own_code(frame: FrameType) -> bool:
    """Whether a frame is neither Treadle's, nor a library's, nor a line of a config file, which the message names."""
    file = frame.f_code.co_filename
    if file.startswith("<"):
        return False
    if frame.f_code.co_name == "<module>" and str(frame.f_globals.get("__name__")).startswith(_CONFIG_FILE):
        return False
    return not is_library(os.path.abspath(file))
