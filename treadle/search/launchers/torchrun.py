"""Several processes for each trial, started by torchrun on this machine."""

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from treadle.errors import ConfigError
from treadle.search.launchers.base import COMPLETE, Ended, Ending, Launcher, answer_report
from treadle.search.launchers.processes import WORKER, Process, worker_environment
from treadle.search.launchers.wire import GONE, Connection, WorkerMessage, WorkerServer
from treadle.search.trial.task import Task
from treadle.search.trial.trial import RunningTrial


@dataclass
class TrialGroup:
    """The processes of one trial."""

    task: Task
    session: RunningTrial
    process: Process
    ranks: dict[Connection, int] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    """What process 0 was told, report by report."""
    waiting: list[tuple[Connection, int]] = field(default_factory=list)
    """Others, with the number of the report that they want the same answer to."""
    counts: dict[int, int] = field(default_factory=dict)
    endings: dict[int, Ending] = field(default_factory=dict)
    since: float | None = None
    """When the first process began; before that they load their libraries."""


class Torchrun(Launcher):
    """Starts a group of processes for each trial. All of them may report; what process 0 says counts, all learn of it.

    Args:
        workers: How many trials run at a time.
        ended: Called with each trial that has ended.
        processes: How many processes a trial has.
        timeout: Seconds that a trial may take; None is any number.

    Raises:
        ConfigError: A trial has no process.
    """

    def __init__(self, workers: int, ended: Ended, *, processes: int, timeout: float | None = None) -> None:
        super().__init__(workers, ended)
        if processes < 1:
            raise ConfigError(f"processes={processes} must be 1 or more")
        self.processes, self.timeout = processes, timeout
        self.exchange = WorkerServer()
        self._groups: dict[str, TrialGroup] = {}
        self._started = 0

    @property
    def running(self) -> int:
        """How many trials are running."""
        return len(self._groups)

    def start(self, task: Task, session: RunningTrial) -> None:
        """Start the processes of a trial."""
        name = str(self._started)
        self._started += 1
        launch = ["--standalone", f"--nproc-per-node={self.processes}", "--max-restarts=0", "-m", WORKER]
        environment = worker_environment(self.exchange.address(name), self.workers * self.processes)
        process = Process([sys.executable, "-m", "torch.distributed.run", *launch], environment)
        self._groups[name] = TrialGroup(task, session, process)

    def wait(self, seconds: float) -> None:
        """Deal with the next message of a process, or with a group that has died or takes too long."""
        said = self.exchange.next(seconds)
        if said is not None and said.worker in self._groups:
            self._hear(said.worker, self._groups[said.worker], said)
        for name, group in list(self._groups.items()):
            if self._is_late(group):
                self._end(name, Ending.failed("TimeoutError", f"the trial took longer than {self.timeout:g} seconds"))
            elif (how := group.process.ended()) is not None:
                words = f"the processes' launcher {how}"
                self._end(name, group.endings.get(0) or Ending.failed("WorkerError", words))

    def _hear(self, name: str, group: TrialGroup, said: WorkerMessage) -> None:
        if said.message is GONE:
            if said.line in group.ranks and group.ranks[said.line] not in group.endings:
                self._end(name, Ending.failed("WorkerError", f"process {group.ranks[said.line]} of the trial died"))
        elif "ready" in said.message:
            group.since = group.since or time.monotonic()
            group.ranks[said.line] = int(said.message["rank"])
            said.line.send_if_there({"task": group.task.encoded()})
        elif "ended" in said.message:
            self._note_end(name, group, said)
        else:
            self._reply(group, said)

    def _is_late(self, group: TrialGroup) -> bool:
        began, limit = group.since, self.timeout
        return began is not None and limit is not None and time.monotonic() - began > limit

    def _reply(self, group: TrialGroup, said: WorkerMessage) -> None:
        """Answer a report: that of process 0 is taken, the others are told the same."""
        rank = group.ranks[said.line]
        if rank == 0:
            group.answers.append(answer_report(group.session, said.message))
        place = group.counts.get(rank, 0)
        group.counts[rank] = place + 1
        group.waiting.append((said.line, place))
        self._answer_waiting(group)

    def _answer_waiting(self, group: TrialGroup) -> None:
        """Answer the reports that process 0 has made too; once it has ended, all of them."""
        known = len(group.answers)
        due = [entry for entry in group.waiting if entry[1] < known or 0 in group.endings]
        group.waiting = [entry for entry in group.waiting if entry not in due]
        for line, number in due:
            line.send_if_there(group.answers[number] if number < known else {"stop": False})

    def _note_end(self, name: str, group: TrialGroup, said: WorkerMessage) -> None:
        rank = group.ranks[said.line]
        ending = group.endings[rank] = Ending(said.message["ended"], said.message["error"])
        self._answer_waiting(group)
        # Where one has stopped, the others wait for it in vain.
        if ending.state != COMPLETE or len(group.endings) == self.processes:
            for line in group.ranks:
                line.send_if_there({"task": None})
            self._end(name, group.endings.get(0, ending) if ending.state == COMPLETE else ending)

    def _end(self, name: str, ending: Ending) -> None:
        group = self._groups.pop(name)
        group.process.kill()
        self.ended(group.session, ending)

    def close(self) -> None:
        """End all groups."""
        for group in self._groups.values():
            group.process.kill()
        self._groups.clear()
        self.exchange.close()
