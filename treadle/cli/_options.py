"""Arguments and options that several commands have."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.parallel.launch.spec import Launcher

SEVERAL = "Several processes"

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Changes to the config: key=value, +key=value to add a key, ~key to remove one."
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the whole configuration and all that log.txt has, with times.")
]
Nproc = Annotated[
    str | None,
    typer.Option(
        "--nproc", metavar="N", help="Processes on this machine; 'gpu' for one on each GPU.", rich_help_panel=SEVERAL
    ),
]


@dataclass(frozen=True)
class LaunchOptions:
    """What a command line says of several processes, an option for each field."""

    nproc: Nproc = None
    nnodes: Annotated[
        str,
        typer.Option(metavar="N", help="Machines; 2:4 for a group that may shrink and grow.", rich_help_panel=SEVERAL),
    ] = "1"
    node_rank: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of this machine, if you give the numbers.", rich_help_panel=SEVERAL),
    ] = None
    rdzv_endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where several machines meet.", rich_help_panel=SEVERAL)
    ] = ""
    rdzv_id: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the machines agree on to be one run; by default its folder.",
            rich_help_panel=SEVERAL,
        ),
    ] = ""
    master_addr: Annotated[
        str, typer.Option(metavar="HOST", help="The same as --rdzv-endpoint, in two parts.", rich_help_panel=SEVERAL)
    ] = ""
    master_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="The other part.", rich_help_panel=SEVERAL)
    ] = None
    max_restarts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How often all processes are started again when one has died; 3 with several.",
            rich_help_panel=SEVERAL,
        ),
    ] = None
    launcher: Annotated[
        Launcher,
        typer.Option(
            "--launch", help="Who starts the processes: this command, or a Ray cluster.", rich_help_panel=SEVERAL
        ),
    ] = Launcher.PROCESSES


def with_launch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with every field of `LaunchOptions` as an option, in place of its parameter `options`."""
    own = inspect.signature(command)
    spread = inspect.signature(LaunchOptions).parameters

    @wraps(command)
    def with_options(**given: Any) -> None:
        options = LaunchOptions(**{name: given.pop(name) for name in spread})
        command(**given, options=options)

    kept = [parameter for name, parameter in own.parameters.items() if name != "options"]
    with_options.__signature__ = own.replace(parameters=[*kept, *spread.values()])  # type: ignore[attr-defined]
    return with_options
