"""In a launcher that was forked itself: torch's agent has its workers forked as well."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from tests.forking.process import Child, ask


def fork_workers(server: socket.socket) -> None:
    """Have a server fork every worker that torch's agent would start, with this process as its parent."""
    started = SubprocessHandler._popen

    def forked(handler: Any, arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
        if arguments[0] != sys.executable:
            return started(handler, tuple(arguments), dict(environment))
        files = (file.fileno() if file else number for number, file in ((1, handler._stdout), (2, handler._stderr)))
        pid = ask(
            server,
            arguments[1:],
            [0, *files],
            folder=os.getcwd(),
            environment=environment,
            new_session=True,
            launches=False,
        )
        return Child(arguments, pid)

    # For a word in its log, torch's rendezvous looks through all modules, frame by frame: a second of a core.
    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
    SubprocessHandler._popen = forked  # type: ignore[method-assign,assignment]
