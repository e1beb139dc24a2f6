"""`treadle search`: what a config leaves open, decided by trials."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli._consent import Allow, confirm_source
from treadle.cli._errors import report_errors
from treadle.parallel.launch import worker

WORDS = ("status", "best", "export", "retry", "stop")
"""What may be asked of a search that there is, in the place of a config."""

Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Changes to the config, and what to search: key=log(1e-4,1e-2), key=one_of(64,128), key=int(2,8), "
        "key=uniform(0,0.5).",
    ),
]


def search(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|WORD", help="A lazy config; or status, best, export, retry or stop, and a search's folder."
        ),
    ],
    changes: Changes = None,
    trials: Annotated[int | None, typer.Option("--trials", "-n", metavar="N", help="How many trials to run.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar="NAME",
            help="random, grid, tpe, gp, qmc, surrogate, evolution, nsga2 or nsga3.",
        ),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective", "-m", metavar="NAME[=min]", help="A metric to make large, or small; several make a front."
        ),
    ] = None,
    pruner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Stop bad trials early: median, hyperband or halving.")
    ] = None,
    promotion: Annotated[
        str | None,
        typer.Option(
            metavar="NAME(...)",
            help="Train little at first and promote the best: asha(1,27), halving(1,27), hyperband(1,27), pbt(1,27).",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="What all chance comes from.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", "-o", metavar="DIR", help="The search's folder; by default in runs/.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="A database that several machines share, or another journal.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", metavar="N", help="Trials at a time.")] = None,
    launcher: Annotated[str | None, typer.Option(metavar="NAME", help="inline, processes, torchrun or ray.")] = None,
    nproc: Annotated[int | None, typer.Option(metavar="N", help="With torchrun, processes of each trial.")] = None,
    retries: Annotated[int | None, typer.Option(metavar="N", help="How often a failed trial is run again.")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With a word: the name of the search, in a store with several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all trials as JSON at the end.")] = False,
    allow: Allow = None,
) -> None:
    """Search for the best values, or the best architecture, of a config.

    A config with space and trainer is a search of architectures; any other is
    trained as by 'treadle train', with values in the place of what is searched.
    The same command after a kill resumes: no finished trial is run again.

    \b
    Example:
      treadle search configs/gpt.py "optim.lr=log(1e-4,1e-2)" -m "loss=min" -n 20
      treadle search configs/nas.py --strategy evolution --trials 200
      treadle search status runs/gpt-search
      treadle search export runs/gpt-search trials.csv
    """
    options = {
        "trials": trials,
        "strategy": strategy,
        "pruner": pruner,
        "promotion": promotion,
        "seed": seed,
        "store": store,
        "workers": workers,
        "launcher": launcher,
        "processes": nproc,
        "retries": retries,
    }
    if config in WORDS:
        with report_errors("search"):
            from treadle.cli._stored_search import about_search

            about_search(config, changes or [], name, as_json=as_json)
        return
    with report_errors("search"), worker.ready():
        confirm_source(config, allow)
        from treadle.cli._search import run_search

        given = {name: value for name, value in options.items() if value is not None}
        run_search(config, changes or [], given, objective or [], run_dir, as_json=as_json)
