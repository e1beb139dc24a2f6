"""A search from a config: what it is about, how it is told, what is left in its folder."""

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from omegaconf import DictConfig, OmegaConf, open_dict

from treadle.cli.report import write_page
from treadle.config import ConfigDict, LazyCall, LazyConfig
from treadle.config.overrides import parse_override
from treadle.errors import ConfigError, did_you_mean
from treadle.files.atomic_io import replace_text
from treadle.nas import Search
from treadle.runs.reader import PANELS
from treadle.search.space.config_space import fill_values, find_dimensions
from treadle.search.space.dimensions import Categorical
from treadle.search.space.domains import Choice, Domain, Range, is_domain, parse_domain
from treadle.search.trial.lines import TrialLines, parameters_in, values_in
from treadle.tools.run_config import load_config

# A config with domains in it, from the file and from the command line


SEARCH = "search"
CHOICES = "choices"


def load_search_config(config: ConfigDict, changes: Sequence[str]) -> tuple[ConfigDict, dict[str, Any]]:
    """Return a config with domains in the place of values, and the settings of its search.

    Domains stand in the config itself, in its `search.choices` by key, or in the changes.

    Args:
        config: The config, as it was loaded.
        changes: Overrides, of which some are domains: `optim.lr=log(1e-4,1e-2)`.

    Raises:
        ConfigError: A key is not there, or a domain cannot be read.
    """
    domains = [_split(text) for text in changes if is_domain(text.partition("=")[2])]
    LazyConfig.apply_overrides(config, [text for text in changes if not is_domain(text.partition("=")[2])])
    settings = _settings(config)
    choices = settings.pop(CHOICES, None) or {}
    if not isinstance(choices, Mapping):
        raise ConfigError(f"search.choices is {choices!r}; it holds domains by key: {{'optim.lr': 'log(1e-4, 1e-2)'}}")
    for key, given in (*choices.items(), *domains):
        _put(config, str(key), _domain(str(key), given))
    return config, settings


def unlocked_config(config: DictConfig, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a config that was changed."""
    copied = copy.deepcopy(config)
    OmegaConf.set_readonly(copied, False)
    with open_dict(copied):
        change(copied)
    return copied


def _settings(config: ConfigDict) -> dict[str, Any]:
    """Return what the config says of its search, as plain data; objects stay what they are."""
    if SEARCH not in config:
        return {}
    found = config[SEARCH]
    if not isinstance(found, DictConfig):
        raise ConfigError(f"search in the config is {found!r}; it holds settings of the search, such as trials")
    return {str(key): _plain(found[key]) for key in found}


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _split(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.strip(), value


def _domain(key: str, given: Any) -> Domain:
    if isinstance(given, (Choice, Range)):
        return given
    if isinstance(given, (list, tuple)):
        return Choice(tuple(given))
    if isinstance(given, str):
        return parse_domain(given)
    raise ConfigError(f"search.choices: {key} is {given!r}; write a domain, such as 'log(1e-4, 1e-2)', or a list")


def _put(config: ConfigDict, key: str, domain: Domain) -> None:
    """Put a domain where a value stands; a key that is not there is added if it begins with a plus."""
    # The override says whether the key is there, and names the nearest if it is not.
    LazyConfig.apply_overrides(config, [f"{key}=null"])
    *way, last = parse_override(f"{key}=null").parts
    holder: Any = config
    for part in way:
        holder = holder[int(part) if OmegaConf.is_list(holder) else part]
    if OmegaConf.is_list(holder):
        holder[int(last)] = domain
        return
    with open_dict(holder):
        holder[last] = domain


TRAINING = "treadle.cli.search_trial.train_trial"
"""What a trial of a config for `treadle train` calls; by name, for other processes to find it."""
RESULTS = "results.json"
BEST = "best.yaml"
OWN = ("search", "space", "trainer", "objective")
"""Keys of a config that say what a search is, and are no part of what is trained."""


def run_search(
    source: str,
    changes: Sequence[str],
    options: Mapping[str, Any],
    objectives: Sequence[str],
    run_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run a search, tell about each trial, and leave results in its folder.

    Args:
        source: The config file.
        changes: Overrides, and domains by key.
        options: Arguments of the search that the command line gives.
        objectives: What to make large or small: names, with `=min` or `=max` behind.
        run_dir: The folder; None is one in `runs/` with the name of the config.
        as_json: Whether to print the results as JSON.
    """
    if not Path(source).is_file():
        load_config(source)  # says what is there instead
    config, settings = load_search_config(load_config(source), changes)
    settings.update(options)
    if objectives:
        settings["objectives"] = _objectives(objectives)
    folder = Path(run_dir or settings.pop("run_dir", None) or Path("runs") / f"{Path(source).stem}-search")
    settings.pop("run_dir", None)
    search = _search(config, settings, folder, quiet=as_json)
    results = search.run()
    replace_text(folder / RESULTS, json.dumps(results, indent=1, allow_nan=False, default=str))
    saved = _save_best(config, results, folder)
    if as_json:
        typer.echo(json.dumps(results, default=str))
    else:
        _say_best(results, folder, saved)
        drawn = sorted((folder / PANELS).glob("*.svg"))
        typer.echo(f"drawings: {', '.join(map(str, drawn))}")
    write_page([folder])
    if results["best"] is None:
        raise typer.Exit(1)  # whoever waits for a result in a script learns that there is none


def _search(config: ConfigDict, settings: dict[str, Any], folder: Path, *, quiet: bool) -> Search:
    known = list(inspect.signature(Search).parameters)
    for name in settings:
        if name not in known:
            raise ConfigError(f"search.{name}: a search takes no {name!r}{did_you_mean(name, known)}")
    lines = TrialLines(typer.echo)
    settings = {"run_dir": folder, "on_trial": None if quiet else lines, **settings}
    if int(settings.get("workers", 1)) > 1:
        settings.setdefault("launcher", "processes")
    space, trainer = _subject(config, folder)
    search = lines.search = Search(space, trainer, **settings)
    return search


def _subject(config: ConfigDict, folder: Path) -> tuple[Any, Any]:
    """Return what is searched, and what judges it."""
    if "space" in config:
        if "trainer" not in config:
            raise ConfigError("the config has a `space`, but no `trainer`; add trainer = LazyCall(MyTrainer)(...)")
        return config.space, config.trainer
    if "objective" in config:
        return _without(config, OWN), config.objective
    trained = _without(config, ("search",))
    _check_values(trained)
    return trained, LazyCall(TRAINING)(folder=str(folder))


def _check_values(config: Any) -> None:
    """Look at the keys of a config with every value that is listed for them, before a trial fails by one.

    Raises:
        ConfigError: A key is misspelt, or one of the values is none that its key takes.
    """
    from treadle.engine.config.builders import complete

    dimensions = find_dimensions(config)
    first = {label: dimension.options()[0] for label, dimension in dimensions.items()}
    complete(fill_values(config, first))
    for label, dimension in dimensions.items():
        others = dimension.options()[1:] if isinstance(dimension, Categorical) else dimension.options()[-1:]
        for value in others:
            complete(fill_values(config, {**first, label: value}))


def _without(config: ConfigDict, keys: Sequence[str]) -> Any:
    return unlocked_config(config, lambda copied: [copied.pop(key) for key in keys if key in copied])


def _objectives(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, _, direction = text.partition("=")
        found[name] = direction or "max"
    return found


def _save_best(config: ConfigDict, results: dict[str, Any], folder: Path) -> Path | None:
    """Write the config with the best values, if what was searched are values of it."""
    best = results["best"]
    if best is None or "space" in config:
        return None
    path = folder / BEST
    decided = fill_values(_without(config, OWN if "objective" in config else ("search",)), best["parameters"])
    LazyConfig.save(decided, path)
    return path


def _say_best(results: dict[str, Any], folder: Path, saved: Path | None) -> None:
    states = [trial["state"] for trial in results["trials"]]
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed") if state in states
    )
    typer.echo(f"{folder}: {counts or 'no trials'}")
    if len(results["objectives"]) > 1:
        for number in results["pareto"]:
            trial = results["trials"][number]
            typer.echo(f"front: trial {number}  {values_in(trial)}  {parameters_in(trial['parameters'])}")
    elif results["best"] is not None:
        best = results["best"]
        typer.echo(f"best: trial {best['number']}  {values_in(best)}  {parameters_in(best['parameters'])}")
    if saved is not None:
        typer.echo(f"the config with these values: {saved}")
