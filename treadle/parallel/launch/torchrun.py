"""torchrun's agent, as the command line wants it: a signal is passed on, and what is final is not tried again."""

import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from treadle.parallel.launch import worker
from treadle.parallel.launch.spec import DEFAULT_RESTARTS, MEETING_SECONDS, Launch
from treadle.runs.preemption import handled_signals, known_signals

SIGNALS = known_signals("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
HERE = "127.0.0.1"


def make_group(command: Sequence[str], launch: Launch, name: str, folder: Path) -> "Group":
    """Return the group of processes that runs `command` on this machine.

    Args:
        command: The command line of each process.
        launch: How many, and where machines meet.
        name: A name that the launchers on all machines agree on.
        folder: Where the processes leave their reports.
    """
    alone = launch.most_machines == 1 and not launch.endpoint
    numbered = {} if launch.machine is None else {"rank": launch.machine}
    hosted = {} if launch.is_rendezvous_host is None else {"is_host": launch.is_rendezvous_host}
    meeting = RendezvousParameters(
        backend="static" if numbered else "c10d",
        endpoint=launch.endpoint or "localhost:0",
        run_id=name,
        min_nodes=launch.least_machines,
        max_nodes=launch.most_machines,
        local_addr=HERE if alone else None,
        timeout=MEETING_SECONDS,
        **numbered,
        **hosted,
    )
    host, _, port = launch.endpoint.rpartition(":") if numbered else ("", "", "")
    spec = WorkerSpec(
        role="treadle",
        local_world_size=launch.processes,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=get_rendezvous_handler(meeting),
        max_restarts=DEFAULT_RESTARTS if launch.restarts is None else launch.restarts,
        master_addr=host or None,
        master_port=int(port) if port else None,
        local_addr=HERE if alone else None,
    )
    return Group(spec, folder)


class Group(LocalElasticAgent):
    """The processes of one command on this machine.

    A signal to the launcher is a request: it is passed on to the processes, which save together and leave. A second
    Ctrl-C kills them. A mistake of the user's, which every start would repeat, ends the group at once.

    Args:
        spec: What to run, and with whom.
        folder: Where the processes leave their reports.

    Attributes:
        signal: The first signal that asked the group to leave; None if none did.
        refusal: What the user has to mend before the command can be run; empty if there is nothing.
        failure: In words, which process failed last, and how; empty if none did.
    """

    def __init__(self, spec: WorkerSpec, folder: Path) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=str(folder / "logs")))
        self.signal: int | None = None
        self.refusal = self.failure = ""
        self._folder = folder
        self._heeded = handled_signals(SIGNALS)

    def run_to_end(self) -> bool:
        """Run until the processes are done, and return whether they came to their end."""
        # What the agent says of signals and failures is said here, for people.
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        before = {number: signal.signal(number, self._on_signal) for number in self._heeded}
        try:
            result = self.run()
        except SignalException as caught:
            self.signal = self.signal or int(caught.sigval)
            return False
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._rdzv_handler.shutdown()
        return result is not None and not result.is_failed()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # Those of the attempt before would be taken for what ends this one.
        for report in self._folder.glob("*.json"):
            report.unlink()
        started: dict[int, Any] = super()._start_workers(worker_group)
        # The agent has just set handlers of its own, which would kill the processes before they could save.
        for number in SIGNALS:
            signal.signal(number, self._on_signal if number in self._heeded else signal.SIG_IGN)
        # The signal may have come while no process was there to be told.
        if self.signal is not None:
            self._pass_on(signal.SIGTERM)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state not in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            return result
        killed = _killed(result)
        told = [] if killed else worker.reports(self._folder)
        first = min(told, key=lambda report: report.time, default=None)
        if first is not None and first.state == worker.REFUSED:
            self.refusal = first.message
        if self.signal is not None or self.refusal:
            # The processes were asked to leave, or would be refused again.
            self._remaining_restarts = 0
            return result
        self.failure = killed or _failed(result, first)
        if self._remaining_restarts:
            left = f"{self._remaining_restarts} of {worker_group.spec.max_restarts} restarts are left"
            _tell(f"{self.failure}; starting all processes again ({left})")
        return result

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pcontext is None:
            raise SignalException(f"signal {number}", signal.Signals(number))
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            self._pass_on(signal.SIGKILL)
            return
        self.signal = self.signal or number
        # Always SIGTERM: a terminal sends its SIGINT to the processes as well, and two of them would not let them save.
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        if isinstance(self._pcontext, SubprocessContext):
            for handler in self._pcontext.subprocess_handlers.values():
                # By its handle: the number of a process that has ended may be that of a stranger by now.
                handler.proc.send_signal(number)


def _killed(result: RunResult) -> str:
    """Return, in words, which process was killed at the very first; empty if none was.

    What the others then died of is only what followed: the agent ends them by SIGTERM.
    """
    earliest = min(failure.timestamp for failure in result.failures.values())
    for rank, failure in result.failures.items():
        if failure.timestamp == earliest and failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            return f"process {rank} was killed by {signal.Signals(-failure.exitcode).name}"
    return ""


def _failed(result: RunResult, first: worker.Report | None) -> str:
    """Return, in words, which process failed first, having shown its traceback."""
    if first is not None and first.state == worker.FAILED:
        _tell(first.message)
        return f"process {first.rank} failed"
    rank, failure = next(iter(result.failures.items()))
    return f"process {rank} ended with status {failure.exitcode}"


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
