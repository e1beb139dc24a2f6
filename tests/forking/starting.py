"""Starts Python programs for tests: forked from a server where that is possible, else as usual."""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.forking.process import Process, Reported, ask

ROOT = Path(__file__).parents[2]


def start(
    *arguments: str,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
    launches: bool = False,
    without_treadle: bool = False,
) -> "Process | subprocess.Popen[bytes]":
    """Start `python` with these arguments: `-m`, a module and what it is told, or a script.

    Args:
        arguments: The arguments.
        stdout: The file that takes what it prints; by default, as with `stderr`, that of this process.
        stderr: The file that takes its errors; by default that of what it prints.
        cwd: Its working folder.
        env: All of its environment.
        new_session: Whether it has a session of its own.
        launches: Whether it starts workers by torch's launcher.
        without_treadle: Whether it imports the package itself, as on a system that is another one by then.
    """
    environment, folder = dict(os.environ if env is None else env), cwd or Path.cwd()
    errors = stdout if stderr is None else stderr
    if sys.platform != "linux":
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=errors,
            cwd=folder,
            env=environment,
            start_new_session=new_session,
        )
    status, told = os.pipe()
    with open(os.devnull, "rb") as nothing:
        pid = ask(
            _server(without_treadle)[0],
            arguments,
            [nothing.fileno(), stdout.fileno() if stdout else 1, errors.fileno() if errors else 2, told],
            folder=str(folder),
            environment=environment,
            new_session=new_session,
            launches=launches,
        )
    os.close(told)
    return Reported(arguments, pid, status)


def popen(command: Sequence[str], *, env: Mapping[str, str], start_new_session: bool) -> Any:
    """Start a command of this interpreter, for code under test that calls `subprocess.Popen` so."""
    assert command[0] == sys.executable
    return start(*command[1:], env=env, new_session=start_new_session, launches=True)


def run_command(command: Sequence[str], *, env: Mapping[str, str], **streams: Any) -> Any:
    """Run a command of this interpreter, for code under test that calls `subprocess.run` so; all it prints is kept."""
    assert command[0] == sys.executable
    return run(*command[1:], env=env)


def run(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
    launches: bool = False,
    without_treadle: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run `python` with these arguments to its end, and return its status and what it printed."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = start(
            *arguments,
            stdout=output,
            stderr=errors,
            cwd=cwd,
            env=env,
            launches=launches,
            without_treadle=without_treadle,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            # Asked to go, a launcher takes its workers along; killed, it would leave them behind.
            process.terminate()
            process.wait()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, output.read(), errors.read())


@cache
def _server(without_treadle: bool) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Start a server of this process, and return the socket that it listens at."""
    own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.forking.server",
            str(others.fileno()),
            *(["--without-treadle"] * without_treadle),
        ],
        pass_fds=[others.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    others.close()

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own, process
