"""`treadle recsys`: a recommender trained, and what it is for."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from treadle.cli._errors import complain, report_errors
from treadle.cli._launch import parse_launch, run_group
from treadle.cli._options import LaunchOptions, Nproc
from treadle.cli.report import write_page
from treadle.errors import CheckpointError, ConfigError, TreadleError, did_you_mean
from treadle.parallel.launch import worker

if TYPE_CHECKING:
    from treadle.recsys import Config
    from treadle.recsys.bench import Benchmark
    from treadle.recsys.serve.answers import Answers

# Further options of `treadle recsys`, which are settings: what can be judged of them before any data is read


DataSet = Annotated[str | None, typer.Option("--dataset", "-d", metavar="NAME", help="The name of the data set.")]
Files = Annotated[
    list[str] | None,
    typer.Option("--config-file", "--config_files", "-c", metavar="FILE", help="YAML files with settings."),
]
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Of commands whose further options are settings of the recommender door."""


def parse_settings(ctx: typer.Context) -> dict[str, str]:
    """Return the settings that stand on a command line.

    A name that no setting of Treadle's has may be one that the user's own model reads, which shows only when all is
    built. But one that is nearly an option of the command itself, and one that was not given, is a slip.

    Raises:
        ConfigError: An argument is no setting, or nearly an option.
    """
    from treadle.recsys.config.defaults import all_known_names
    from treadle.recsys.config.values import parse_arguments

    left_out = list(_left_out(ctx))
    for argument in ctx.args:
        name = argument.partition("=")[0].removeprefix("--")
        near = did_you_mean(f"--{name}", left_out)
        if argument.startswith("--") and near and name not in all_known_names():
            raise ConfigError(
                f"--{name} on the command line is no option{near} A setting of your own model that is called so goes "
                "into a file, by --config-file"
            )
    return parse_arguments(ctx.args)


def _left_out(ctx: typer.Context) -> Iterator[str]:
    """Yield the options of a command that were not given; model and data set are settings themselves."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        given = source is not None and source.name == "COMMANDLINE"
        if not given and parameter.name not in ("model", "dataset"):
            yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))


TRAIN = "train"
SHOWN = 10
"""How many trials of a search are shown."""


class Group(TyperGroup):
    """Takes what is no command for options of `train`, so that `treadle recsys --model BPR ...` trains."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `train` in front where no command is named."""
        helps = self.get_help_option_names(ctx)
        if args and args[0].startswith("-") and args[0] not in helps:
            args = [TRAIN, *args]
        return super().parse_args(ctx, args)


recsys = typer.Typer(cls=Group, no_args_is_help=True)

Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="NAME", help="A model, FILE.py:NAME, recbole:NAME, or the full name of a class."
    ),
]
Written = Annotated[
    str | None, typer.Option("--model", "-m", metavar="NAME", help="The model, if it is one of a file: FILE.py:NAME.")
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL_FILE", help="The .pth file that a training saved.")]
Place = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="The .pth file that a training saved, the folder of a run, or an export."),
]
Length = Annotated[int, typer.Option("--k", "-k", metavar="K", help="How many items each list has.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a .csv, .tsv or .parquet file instead.")
]


@recsys.callback()
def about() -> None:
    """Train a recommender, and use it.

    Without a command it trains. Every setting of the recommender door is an
    option: --name=value.

    \b
    Example:
      treadle recsys --model LightGCN --dataset ml-100k --learning_rate=0.001
      treadle recsys recommend saved/LightGCN-Jan-31-2026_12-00-00.pth 196 186
      treadle recsys tune -m BPR -d ml-100k -s "learning_rate log 1e-4,1e-2"
      treadle recsys bench --models BPR,LightGCN --dataset ml-100k
    """


@recsys.command(TRAIN, context_settings=SETTINGS)
def train(
    ctx: typer.Context,
    model: Model = None,
    dataset: DataSet = None,
    files: Files = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Resume the run of this .pth file, or of its folder.")
    ] = None,
    saved: Annotated[bool, typer.Option("--saved/--not-saved", help="Keep the best model and the run.")] = True,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every setting.")] = False,
    nproc: Nproc = None,
) -> None:
    """Train a model, test it, and show its metrics.

    Further options are settings: --epochs=50, --train_batch_size=4096. The
    best model is kept in saved/, and the run in the folder of the same name.
    With --run_dir=DIR the run is kept there: the same command, started again,
    resumes where it was.

    \b
    Example:
      treadle recsys train --model BPR --dataset ml-100k --epochs=20
      treadle recsys train -m SASRec -d ml-1m -c sasrec.yaml --run_dir=runs/a
    """
    with report_errors("recsys"), worker.ready():
        launch = parse_launch(LaunchOptions(nproc))
        parse_settings(ctx)  # judged here, once for all processes
        if resume is not None and not resume.exists():
            raise CheckpointError(f"--resume {resume} is not there; give the .pth file of a run, or its folder")
        if launch.is_needed:
            flags = ["--not-saved"] * (not saved) + ["--verbose"] * verbose
            raise typer.Exit(run_group("recsys", _again(model, dataset, files, resume, flags, ctx.args), launch, ""))
        from treadle.recsys import Config
        from treadle.recsys.quick_start import build, fit_and_test

        config = Config(_model_class(model), dataset, separate(files), argv=ctx.args)
        trainer, data, *parts = build(config)
        if worker.is_first():
            typer.echo(str(config) if verbose else _described(config, data))
        if resume is not None:
            trainer.resume_checkpoint(resume)
        result = fit_and_test(trainer, *parts, saved=saved)
        if worker.is_first():
            _show_metrics({"valid": result["best_valid_result"], "test": result["test_result"]})
        if saved:
            _show_run(trainer, parts)


def _show_run(trainer: Any, parts: list[Any]) -> None:
    """Write the page of a run that has ended, with its metrics by groups, which all processes calculate together."""
    from treadle.recsys.evaluation.group_panels import write_group_panels

    train_data, _, test_data = parts
    if trainer.run_dir is not None:
        write_group_panels(trainer, train_data, test_data, trainer.run_dir)
        if worker.is_first():
            write_page([trainer.run_dir])


def _again(model: Any, dataset: Any, files: Any, resume: Any, flags: list[str], rest: list[str]) -> list[str]:
    """Return the command line for each of several processes."""
    named = {"--model": model, "--dataset": dataset, "--resume": resume}
    options = [text for name, value in named.items() if value is not None for text in (name, str(value))]
    options += [text for file in files or () for text in ("--config-file", str(file))]
    return ["recsys", TRAIN, *options, *flags, *rest]


def _model_class(name: str | None) -> Any:
    """Return the class that a full name, or a file and a name, stands for; another name is left for the registry."""
    if name is None or not ("." in name or ":" in name):
        return name
    from treadle.recsys import compat
    from treadle.recsys.model_registry import locate_model

    # The process is this command's: what a file imports from recbole while it runs is served, too.
    compat.install_names()
    return locate_model(name)


def _described(config: "Config", data: Any) -> str:
    if data.uid_field is None or data.iid_field is None:
        rows = f"{len(data):,} rows"
    else:
        rows = f"{data.user_num - 1:,} users, {data.item_num - 1:,} items, {len(data):,} interactions"
    return f"{config.model} on {config.dataset}: {rows}"


def _show_metrics(results: Mapping[str, Mapping[str, float] | None]) -> None:
    """Print metrics side by side, one row each."""
    from rich.console import Console
    from rich.table import Table

    there = {name: result for name, result in results.items() if result}
    if not there:
        return
    table = Table("metric", box=None, pad_edge=False, header_style="bold")
    for name in there:
        table.add_column(name, justify="right")
    for metric in next(iter(there.values())):
        table.add_row(metric, *(f"{result[metric]:.4f}" for result in there.values()))
    Console().print(table)
    if there.get("test"):
        _show_groups(there["test"])


def _show_groups(result: Mapping[str, float]) -> None:
    """Print the metrics of the test by groups, a table for each division."""
    from rich.console import Console
    from rich.table import Table

    from treadle.recsys.trainers.results import group_tables

    for heads, rows in group_tables(result).values():
        table = Table(heads[0], box=None, pad_edge=False, header_style="bold")
        for name in heads[1:]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        Console().print("", table)


# Using a model ------------------------------------------------------------------------------------------------


@recsys.command()
def recommend(
    model_file: Place,
    users: Annotated[
        list[str] | None, typer.Argument(metavar="USER...", help="Users, by the tokens that the data has.")
    ] = None,
    k: Length = 10,
    output: Output = None,
    model: Written = None,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Items that a user has, too.")] = False,
    history: Annotated[
        str | None, typer.Option("--history", metavar="ITEM,...", help="What somebody did, oldest first.")
    ] = None,
    all_users: Annotated[bool, typer.Option("--all-users", help="Every user of the data, to a .parquet file.")] = False,
) -> None:
    """Recommend items to users, to somebody with a history, or to everybody.

    A user that the data does not have gets what is popular, and is marked so.
    With --all-users the file is written in parts; the same command, started
    again, does only what is left.

    \b
    Example:
      treadle recsys recommend saved/BPR-Jan-31-2026_12-00-00.pth 196 186 -k 5
      treadle recsys recommend saved/EASE.pth --history 242,302,377
      treadle recsys recommend saved/EASE.pth --all-users -o top.parquet
    """
    with report_errors("recsys recommend"):
        exclude_seen = False if include_seen else None
        if all_users:
            _recommend_to_all(model_file, model, users, history, output, k, exclude_seen)
            return
        if history is not None and len(users or ()) > 1:
            raise ConfigError("--history is what one user did; name one, or none")
        if not users and history is None:
            raise ConfigError("name users, or give --history ITEM,... or --all-users")
        past = None if history is None else [one for one in history.split(",") if one]
        found = _recommender(model_file, model).recommend(users or None, k, history=past, exclude_seen=exclude_seen)
        _show_or_write(found, output)


def _recommend_to_all(
    place: Path,
    name: str | None,
    users: list[str] | None,
    history: str | None,
    output: Path | None,
    k: int,
    exclude_seen: bool | None,
) -> None:
    """Write the best items of every user, and say how far it is where somebody watches."""
    from treadle.recsys.serve.every_user import recommend_to_file
    from treadle.recsys.serve.saved import checksum_of

    if users or history is not None:
        raise ConfigError("--all-users is everybody; leave users and --history out")
    if output is None:
        raise ConfigError("--all-users needs --output FILE.parquet")

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{done:,} of {total:,} users", nl=done == total, err=True)

    recommender = _recommender(place, name)
    recommend_to_file(recommender, output, k, exclude_seen=exclude_seen, of=checksum_of(place), progress=tell)
    typer.echo(f"written to {output}")


@recsys.command()
def similar(
    model_file: ModelFile,
    items: Annotated[list[str], typer.Argument(metavar="ITEM...", help="Items, by the tokens that the data has.")],
    k: Length = 10,
    output: Output = None,
    model: Written = None,
) -> None:
    """Find the items most like others.

    \b
    Example:
      treadle recsys similar saved/BPR-Jan-31-2026_12-00-00.pth 242 302 -k 5
    """
    with report_errors("recsys similar"):
        _show_or_write(_recommender(model_file, model).similar_items(items, k), output)


@recsys.command()
def export(
    model_file: Place,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PLACE", help="A file, or for --what model a folder.")
    ],
    what: Annotated[
        str,
        typer.Option("--what", metavar="WHAT", help="top-k (of every user), items or users (their vectors), or model."),
    ] = "top-k",
    k: Length = 10,
    model: Written = None,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="NAME", help="Of a model: onnx (the default) or torch.export."),
    ] = None,
) -> None:
    """Write the best items of every user, vectors, or the model as a program.

    Tables are .csv, .tsv, .parquet or .arrow files, vectors .npz files as
    well. A model becomes a folder that answers without its code and its data:
    recommend and serve take it. It is compared with the model first.

    \b
    Example:
      treadle recsys export saved/BPR-Jan-31-2026_12-00-00.pth -o top.parquet
      treadle recsys export saved/BPR-Jan-31-2026_12-00-00.pth -o v.npz --what items
      treadle recsys export saved/BPR-Jan-31-2026_12-00-00.pth -o shop --what model
    """
    with report_errors("recsys export"):
        from treadle.recsys import Recommender
        from treadle.recsys.serve.tables import check_format

        if what not in ("top-k", "items", "users", "model"):
            raise ConfigError(f"--what {what!r} does not exist; there are top-k, items, users and model")
        if format is not None and what != "model":
            raise ConfigError("--format is for --what model alone; of tables the name of the file decides")
        if what != "model" and not (output.suffix == ".npz" and what != "top-k"):
            check_format(output)
        recommender = _recommender(model_file, model)
        if not isinstance(recommender, Recommender):
            raise ConfigError(f"{model_file} is an export already; name the .pth file or the run that it was made of")
        if what == "model":
            from treadle.recsys.serve.exported import export_recommender

            export_recommender(recommender, output, format or "onnx")
        elif what == "top-k":
            recommender.export_recommendations(output, k)
        else:
            recommender.export_embeddings(output, what.removesuffix("s"))
        typer.echo(f"written to {output}")


def _recommender(place: Path, name: str | None) -> "Answers":
    from treadle.recsys import load_recommender

    return load_recommender(place, model=_model_class(name))


def _show_or_write(found: Any, output: Path | None) -> None:
    if output is None:
        typer.echo(str(found))
    else:
        typer.echo(f"written to {found.write(output)}")


@recsys.command()
def serve(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A .pth file, the folder of a run or of an export, or one whose newest model is served."
        ),
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0 takes a free port.")] = 8124,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Where to listen; by default for this machine alone.")
    ] = "127.0.0.1",
    model: Written = None,
    most_items: Annotated[int, typer.Option("--max-k", metavar="N", min=1, help="The longest list.")] = 1000,
    most_history: Annotated[
        int, typer.Option("--max-history", metavar="N", min=1, help="The longest history.")
    ] = 10_000,
    most_bytes: Annotated[int, typer.Option("--max-body", metavar="BYTES", min=1, help="The largest body.")] = 1 << 20,
    patience: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="For a request to come, and for its answer.")
    ] = 10.0,
    refresh: Annotated[
        float, typer.Option("--refresh", metavar="SECONDS", help="Between two looks for a newer model.")
    ] = 2.0,
    index: Annotated[
        bool, typer.Option("--index/--exact", help="Look for items by an index, where ranking all takes too long.")
    ] = False,
) -> None:
    """Answer requests for recommendations over HTTP.

    POST /recommend and /similar, GET /health and /metrics; the page at / tries
    them, and /docs says what can be asked. A newer model is taken up without a
    pause. SIGTERM and Ctrl-C let requests that are under way be answered.

    \b
    Example:
      treadle recsys serve saved
      curl -d '{"history": ["242", "302"], "k": 5}' \\
        -H 'Content-Type: application/json' http://127.0.0.1:8124/recommend
    """
    with report_errors("recsys serve"):
        from functools import partial

        from treadle.recsys.serve.saved import load_recommender
        from treadle.recsys.serve.server.app import Options
        from treadle.recsys.serve.server.limits import LOOPBACK
        from treadle.recsys.serve.server.process import serve as serve_model

        options = Options(
            most_items=most_items,
            most_history=most_history,
            most_bytes=most_bytes,
            patience=patience,
            refresh=refresh,
            any_host=host not in LOOPBACK,
        )
        load: Any = partial(load_recommender, model=_model_class(model))
        if index:
            from treadle.recsys.serve.index import indexed

            load = indexed(load)
        serve_model(run, host=host, port=port, options=options, announce=typer.echo, load=load)


# Searching ----------------------------------------------------------------------------------------------------


@recsys.command(context_settings=SETTINGS)
def tune(
    ctx: typer.Context,
    model: Model = None,
    dataset: DataSet = None,
    files: Files = None,
    search: Annotated[
        list[str] | None,
        typer.Option("--search", "-s", metavar="LINE", help="What to try, such as 'learning_rate log 1e-4,1e-2'."),
    ] = None,
    space: Annotated[
        Path | None, typer.Option("--space", "--params_file", metavar="FILE", help="A file of such lines.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", "-n", metavar="N", help="How many trials there are to be.")] = 20,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where the search is kept.")] = Path("search"),
    seed: Annotated[int, typer.Option("--search-seed", metavar="N", help="Decides what is tried.")] = 0,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="bayes, exhaustive, random, grid, tpe, gp, qmc, surrogate, evolution, nsga2 or nsga3.",
        ),
    ] = "bayes",
    workers: Annotated[int, typer.Option("--workers", "-w", metavar="N", help="Trials at a time.")] = 1,
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where trials run: inline, processes or ray.")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Give hopeless trials up early.")] = True,
) -> None:
    """Search for the settings with the best score on validation.

    A line is `name kind values`: choice [32,64], uniform 0,1, quniform
    0,1,0.1, log 1e-4,1e-2, int 1,4, or loguniform -8,0 (powers of e). The test
    part is never looked at. The same command resumes after a kill; with a
    larger --trials it continues from there.

    \b
    Example:
      treadle recsys tune -m BPR -d ml-100k -s "learning_rate log 1e-4,1e-2" \\
        -s "embedding_size choice [32,64,128]" --trials 30 --epochs=50
    """
    with report_errors("recsys tune"), worker.ready():
        from treadle.recsys.tune.search import Search
        from treadle.recsys.tune.space import parse_space, read_space

        settings = parse_settings(ctx)
        lines = [*(search or ())]
        dimensions = ([] if space is None else read_space(space)) + (
            parse_space(lines, where="--search") if lines or space is None else []
        )
        starts: dict[str, Any] = {} if launcher is None else {"launcher": launcher}
        made = Search(
            dimensions,
            folder,
            model=_model_class(model),
            dataset=dataset,
            config_file_list=separate(files),
            config_dict=settings,
            seed=seed,
            prune=prune,
            strategy=strategy,
            workers=workers,
            **starts,
        )
        _show_search(made.run(trials, tell=typer.echo), folder)


def _show_search(found: Any, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    names = list(found.best.params)
    table = Table("trial", *names, box=None, pad_edge=False, header_style="bold")
    table.add_column("score", justify="right")
    ended = [trial for trial in found.trials if trial.score is not None and trial.state == "complete"]
    better = -1 if found.bigger else 1
    for trial in sorted(ended, key=lambda one: better * one.score)[:SHOWN]:
        table.add_row(str(trial.number), *(_short(trial.params[name]) for name in names), f"{trial.score:.4f}")
    Console().print(table)
    typer.echo(f"the settings of trial {found.best.number} are in {folder / 'best.json'}")
    typer.echo(f"its model is in {found.best.model_file}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# `treadle recsys bench`: several recommenders under one protocol


@recsys.command("bench", context_settings=SETTINGS)
def bench(
    ctx: typer.Context,
    models: Annotated[str, typer.Option("--models", metavar="A,B,...", help="Models, with commas between them.")],
    dataset: DataSet = None,
    files: Files = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N,N,...", help="Train each model once with each of these.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where all is kept.")] = Path("bench"),
) -> None:
    """Train several models under one protocol, and rank them.

    All have the same split, metrics and seeds. Further options are settings of
    all models; --BPR.embedding_size=32 is one of BPR alone. The same command
    resumes after a kill: what is done is not done again. A model that fails
    costs no other, and is tried again by the next command.

    \b
    Example:
      treadle recsys bench --models BPR,LightGCN,KGAT --dataset ml-100k \\
        --seeds 2020,2021,2022 --epochs=50
    """
    with report_errors("recsys bench"), worker.ready():
        from treadle.recsys.bench import Benchmark, Protocol

        names = [name.strip() for name in models.split(",") if name.strip()]
        protocol = Protocol(names, dataset, separate(files), parse_settings(ctx))
        made = Benchmark(protocol, folder, seeds=_numbers(seeds))
        table = made.run(typer.echo)
        _show(table.columns(), table.rows(), len(table.metrics))
        typer.echo("\n".join([*table.notes(), f"the table is in {folder / 'leaderboard.md'}"]))
        _write_leaderboard(made)
        _show_page(made)
        if table.failed:
            raise typer.Exit(1)


@recsys.command("page")
def page(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The --folder of a treadle recsys bench.")],
    users: Annotated[
        str | None,
        typer.Option("--users", metavar="A,B,...", help="Show these users, by the tokens that the data has."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write this file instead.")
    ] = None,
) -> None:
    """Write the page of a benchmark: models, and what single users get.

    It shows models by metrics, time and memory, with intervals, and for one
    user the history beside the recommendations of each model. It is one file,
    and needs nothing beside it. Without --users it shows some of the test.

    \b
    Example:
      treadle recsys page bench
      treadle recsys page bench --users 196,186 -o two.html
    """
    with report_errors("recsys page"):
        from treadle.recsys.bench.summary import read_leaderboard, summarize
        from treadle.tools.report.leaderboard import NAME, write_leaderboard

        board = read_leaderboard(folder)
        chosen = None if users is None else [one.strip() for one in users.split(",") if one.strip()]
        typer.echo(write_leaderboard(summarize(folder, board, chosen), output or folder / NAME))


def _write_leaderboard(made: "Benchmark") -> None:
    """Write the page of models and users, and say where it is; what hinders it costs no training."""
    from treadle.recsys.bench.summary import summarize
    from treadle.tools.report.leaderboard import NAME, write_leaderboard

    try:
        written = write_leaderboard(summarize(made.folder, made.leaderboard()), made.folder / NAME)
    except TreadleError as error:
        complain("recsys bench", str(error))
    else:
        typer.echo(f"the page of models and users is {written}")


def separate(files: list[str] | None) -> list[str]:
    """Return files one by one; RecBole's users give several in one text, with spaces between them."""
    return [file for text in files or () for file in ([text] if Path(text).exists() else text.split())]


def _numbers(text: str | None) -> list[int]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    wrong = next((part for part in parts if not part.isdecimal()), None)
    if wrong is not None:
        raise ConfigError(f"--seeds {text!r}: {wrong!r} is no whole number; give numbers with commas between them")
    return list(map(int, parts))


def _show(columns: list[str], rows: list[list[str]], metrics: int) -> None:
    """Print the table as far as a terminal has room for it: of several metrics, the one that decides."""
    from rich.console import Console
    from rich.table import Table

    places = [*range(3), *range(2 + metrics, len(columns) - 1)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place in places:
        table.add_column(columns[place], justify="left" if columns[place] == "model" else "right")
    for row in rows:
        table.add_row(*(row[place] for place in places))
    Console().print(table)


def _show_page(made: "Benchmark") -> None:
    """Write the page of a benchmark, and say where it is."""
    from treadle.tools.report.page import NAME

    page = write_page(made.run_folders(), made.folder / NAME, together=made.folder, title=made.leaderboard().title())
    if page is not None:
        typer.echo(f"the page is {page}")
