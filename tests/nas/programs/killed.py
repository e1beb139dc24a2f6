"""One-shot searches that are killed again and again: `python -m tests.nas.programs.killed FOLDER WAY`.

Each attempt is a process of its own, forked from one that has torch loaded, and dies by SIGKILL in the middle of an
operation on its folder, wherever the search is then. The outcome of the last one is written to be compared.
"""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.nas.small import make, small
from treadle import nas

WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "darts": (nas.DartsTrainer, {"unrolled": True}),
    "gumbel": (nas.GumbelDartsTrainer, {}),
    "enas": (nas.EnasTrainer, {}),
    "spos": (nas.SposTrainer, {}),
}
KILLS = 6
LATEST = 150
"""The last operation on its folder at which an attempt is killed; a whole search has some hundred."""
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def search(folder: Path, way: str, outcome: Path) -> None:
    """Search, going on where the search in the folder was, and write the supernet and the architecture."""
    kind, options = WAYS[way]
    # What an attempt draws when it starts is another each time: only the checkpoint knows better.
    torch.manual_seed(os.getpid())
    trainer = make(kind, small(), run_dir=folder, num_epochs=2, **options)
    trainer.fit(resume="auto", save_every=1, log_every=1)
    save_file({name: value.contiguous() for name, value in trainer.supernet.state_dict().items()}, outcome)
    outcome.with_suffix(".txt").write_text(nas.key_of(trainer.export()))


def die_at(operation: int, folder: Path) -> None:
    """Kill this process at one of its operations on the folder."""
    counted = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal counted
        if event in EVENTS and str(arguments[0]).startswith(str(folder)):
            counted += 1
            if counted == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def attempt(folder: Path, way: str, outcome: Path, kill_at: int | None) -> int:
    """Search in a process of its own; return the number of the signal that it died by."""
    child = os.fork()
    if child == 0:
        if kill_at is not None:
            die_at(kill_at, folder)
        search(folder, way, outcome)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"{way} failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main() -> None:
    """Search each way once through and once through kills; say how many there were."""
    place = Path(sys.argv[1])
    torch.set_num_threads(1)
    for way in WAYS:
        attempt(place / f"{way} whole", way, place / f"{way}.whole.safetensors", None)
        chance = random.Random(way)
        deaths = [
            attempt(place / f"{way} cut", way, place / f"{way}.cut.safetensors", chance.randrange(1, LATEST))
            for _ in range(KILLS)
        ]
        attempt(place / f"{way} cut", way, place / f"{way}.cut.safetensors", None)
        print("killed", way, deaths.count(signal.SIGKILL), flush=True)


if __name__ == "__main__":
    main()
