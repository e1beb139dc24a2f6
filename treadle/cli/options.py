"""Arguments and options that several commands have."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

SEVERAL = "Several processes"


class LauncherName(StrEnum):
    """Who starts the processes of a command."""

    PROCESSES = "processes"
    RAY = "ray"


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Changes to the config: key=value, +key=value to add a key, ~key to remove one."
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Nproc = Annotated[
    str | None,
    typer.Option(
        "--nproc", metavar="N", help="Processes on this machine; 'gpu' for one on each GPU.", rich_help_panel=SEVERAL
    ),
]
Nnodes = Annotated[
    str,
    typer.Option(metavar="N", help="Machines; 2:4 for a group that may shrink and grow.", rich_help_panel=SEVERAL),
]
NodeRank = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of this machine, if you give the numbers.", rich_help_panel=SEVERAL),
]
RdzvEndpoint = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where several machines meet.", rich_help_panel=SEVERAL)
]
RdzvId = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="What the machines agree on to be one run; by default its folder.", rich_help_panel=SEVERAL
    ),
]
MasterAddr = Annotated[
    str, typer.Option(metavar="HOST", help="The same as --rdzv-endpoint, in two parts.", rich_help_panel=SEVERAL)
]
MasterPort = Annotated[int | None, typer.Option(metavar="PORT", help="The other part.", rich_help_panel=SEVERAL)]
MaxRestarts = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How often all processes are started again when one has died; 3 with several.",
        rich_help_panel=SEVERAL,
    ),
]
Launcher = Annotated[
    LauncherName,
    typer.Option("--launch", help="Who starts the processes: this command, or a Ray cluster.", rich_help_panel=SEVERAL),
]
