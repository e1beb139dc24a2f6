"""A training in a process of its own: what it does to memory, or what kills it, is its own affair."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.leaving import LeavingRequests, leave

LAST_WORDS = 2000
"""Characters of what a process said that are told of one that died."""


def run_alone(given: Mapping[str, Any], folder: Path) -> str:
    """Train an entry in a process of its own, and return why it died without a word, if it did.

    Args:
        given: What `treadle.recsys.bench.entry.main` reads.
        folder: The folder of the run.

    Raises:
        KeyboardInterrupt: Ctrl-C; the training saved itself first.
        PreemptedExit: SIGTERM or SIGUSR1; the training saved itself first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, said = folder / "entry.json", folder / "entry.log"
    asked.write_text(json.dumps(dict(given), default=str), encoding="utf-8")
    requests: list[int] = []
    command = [sys.executable, "-m", "treadle.recsys.bench", str(asked)]
    # Apart from the terminal: Ctrl-C comes to this process, which hands it on once.
    apart: dict[str, Any] = {"stdin": subprocess.PIPE, "start_new_session": True, "env": _environment()}
    with said.open("ab") as output, subprocess.Popen(command, stdout=output, stderr=output, **apart) as process:

        def hand_on(number: int) -> None:
            requests.append(number)
            process.send_signal(number)

        try:
            with LeavingRequests(hand_on):
                status = process.wait()
        except BaseException:
            process.terminate()
            raise
    if requests:
        leave(requests[-1], f"the benchmark is saved, with {folder.name} under way; start the same command to go on")
    if status == 0:
        return ""
    died = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"its process ended with {died}: {_last_words(said)}"


def _environment() -> dict[str, str]:
    """Return the environment of the process: it finds the same Treadle, and the user's own modules."""
    own = [str(Path(__file__).parents[3]), *(path for path in sys.path if path), os.getcwd()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(own))}


def _last_words(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:].strip().splitlines()
    return lines[-1] if lines else "it said nothing"
