"""Workers of a search in a database, some of which are killed: `python -m tests.search.server_program JOB`.

A job is JSON: `url`, `folder`, `trials`, `strategy`, `workers`, `kills`. The workers are forks of this program, which
has loaded everything once; each that is killed is started again. A trial has steps, and a checkpoint after each; one
that was interrupted resumes from its checkpoint. The folder says which trial began and which step was done, each as
often as that happened.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treadle import nas, search

STEPS = 3
STEP_SECONDS = 0.005


def make(url: str, folder: Path, trials: int, strategy: str, promotion: str | None = None) -> nas.Search:
    """Return the search."""
    space = {f"x{place}": nas.one_of(*"abcd") for place in range(8)}
    strategies: dict[str, Any] = {"nsga2": nas.Nsga2(6)}
    return nas.Search(
        space,
        judge_in(folder),
        strategy=strategies.get(strategy, strategy),
        promotion=promotion,
        trials=trials,
        store=url,
        run_dir=folder / "search",
        name="search",
        seed=3,
    )


def judge_in(folder: Path) -> Callable[[dict[str, Any]], float]:
    """Return what judges a trial, and keeps its checkpoints in a folder."""
    folder.mkdir(exist_ok=True)

    def say(name: str, *words: Any) -> None:
        with (folder / f"{name}.txt").open("a") as file:
            file.write(f"{' '.join(map(str, words))}\n")

    def judge(taken: dict[str, Any]) -> float:
        number = nas.current_trial()
        say("begun", number)
        checkpoint = folder / f"checkpoint_{number}"
        first = int(checkpoint.read_text() or 0) if checkpoint.exists() else 0
        trial = search.this_trial()
        level = float(sum(value == "a" for value in taken.values()))
        for step in range(first, trial.budget or STEPS):
            time.sleep(STEP_SECONDS)
            say("steps", number, step)
            if step > trial.last_step:
                nas.report_intermediate_result(level, step=step)
            checkpoint.write_text(str(step + 1))
        say("done", number)
        return level

    return judge


def said(folder: Path, name: str) -> list[str]:
    """Return what trials have said under a name."""
    path = folder / f"{name}.txt"
    return path.read_text().splitlines() if path.exists() else []


def forked(job: dict[str, Any]) -> int:
    """Start a worker."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        make(job["url"], Path(job["folder"]), job["trials"], job["strategy"], job.get("promotion")).run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(job: dict[str, Any]) -> None:
    """Run the search by its workers, and kill one after the other: evenly over the search, however fast it is."""
    from optuna.storages import RDBStorage

    for driver in ("psycopg", "pymysql"):
        if find_spec(driver) is not None:
            import_module(driver)
    folder = Path(job["folder"])
    nas.Search({"x": nas.one_of(1, 2)}, lambda taken: 0.0, store="memory", trials=1).run()
    RDBStorage("sqlite://")  # loads and maps the tables
    chance, kills = random.Random(7), 0
    workers = [forked(job) for _ in range(job["workers"])]
    try:
        while kills < job["kills"]:
            if len(said(folder, "done")) >= job["trials"] * 9 // 10 * (kills + 1) // job["kills"]:
                place = chance.randrange(len(workers))
                os.kill(workers[place], signal.SIGKILL)
                _, status = os.waitpid(workers[place], 0)
                assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status
                workers[place] = forked(job)
                kills += 1
            time.sleep(0.002)
        while workers:
            _, status = os.waitpid(workers.pop(), 0)
            assert status == 0, status
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
