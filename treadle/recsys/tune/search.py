"""A search over settings: trials of `treadle.search`, judged on validation alone, gone on with after a kill."""

import copy
import json
import logging
import os
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, TreadleError, did_you_mean
from treadle.files.atomic_io import replace_text
from treadle.recsys.bench.cost import fingerprint_rows
from treadle.recsys.config.configurator import Config
from treadle.recsys.config.defaults import SAMPLE, all_known_names, packaged
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.preparation import create_dataset
from treadle.recsys.quick_start import build
from treadle.recsys.trainers.loop.model_file import storable
from treadle.recsys.tune.space import Dimension, SettingsSpace, check_comparable
from treadle.runs.html_table import html_table
from treadle.runs.lock import RunLock
from treadle.runs.status import FINISHED, STOPPED
from treadle.search import (
    Grid,
    PrunedError,
    StopAtBudgetCallback,
    StopSearchError,
    TrialContext,
    report_intermediate_result,
    this_trial,
)
from treadle.search import Search as TrialSearch
from treadle.search.store.history import Proposal
from treadle.search.store.store import optuna
from treadle.search.strategies import STRATEGIES
from treadle.search.strategies.optuna import OptunaStrategy
from treadle.search.trial.lines import trial_line

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

BEST = "best.json"
JOURNAL_BEFORE, JOURNAL = "journal.log", "search.journal"
"""Where trials were kept by earlier versions, and where they are kept."""
TRIALS, MODEL = "trials", "model.json"
SCORE = "valid_score"
FREE = (
    "data_path",
    "checkpoint_dir",
    "run_dir",
    "state",
    "show_progress",
    "use_gpu",
    "gpu_id",
    "worker",
    "save_every",
    "save_dataset",
    "dataset_save_path",
    "save_dataloaders",
    "dataloaders_save_path",
    "log_wandb",
    "wandb_project",
    "log_tensorboard",
)
"""Settings that may be others when a search goes on: where things lie, where it runs, what is told."""
logger = logging.getLogger(__name__)


class RowsChangedError(ConfigError, StopSearchError):
    """The trials of a search would be judged on different rows."""


@dataclass(frozen=True)
class Trial:
    """One trial of a search.

    Attributes:
        number: Its number, from 0.
        params: The settings that were tried.
        score: The best validation score; None if it was pruned before it had one, or failed.
        state: "complete", "pruned" or "failed".
        result: The metrics of the best evaluation.
        model_file: Where its model is kept; None if it is not.
    """

    number: int
    params: dict[str, Any]
    score: float | None
    state: str
    result: dict[str, float]
    model_file: str | None


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        trials: All trials, in their order.
        best: The one with the best validation score.
        bigger: Whether a higher score is better.
    """

    trials: list[Trial]
    best: Trial
    bigger: bool = True

    def _repr_html_(self) -> str:
        """Show the trials as a table in a notebook, the best first and those without a score last."""
        scored = [trial for trial in self.trials if trial.score is not None]
        scored.sort(key=lambda trial: trial.score or 0.0, reverse=self.bigger)
        ranked = [*scored, *(trial for trial in self.trials if trial.score is None)]
        names = list(dict.fromkeys(name for trial in ranked for name in trial.params))
        rows = [[one.number, one.state, one.score, *(one.params.get(name) for name in names)] for one in ranked]
        return html_table(["trial", "state", "score", *names], rows)


class Bayes(OptunaStrategy):
    """Optuna's tree-structured Parzen estimators, with a seed for each number of a trial.

    Args:
        seed: The seed of the search.
        startup: How many trials are drawn at random before others learn from them.
        parallel: Whether trials that are still running count as bad, so that several workers spread out.
    """

    name = "bayes"

    def __init__(self, seed: int, startup: int = 10, *, parallel: bool = False) -> None:
        super().__init__()
        self._seed, self._draws, self._parallel = seed, startup, parallel

    def propose(self, proposal: Proposal) -> dict[str, Any]:
        """Return what the sampler of this trial suggests."""
        self._number = proposal.trial.number
        return super().propose(proposal)

    def sampler(self, seed: int) -> "BaseSampler":
        """Return the sampler of the trial that is being proposed."""
        made: BaseSampler = optuna().samplers.TPESampler(
            seed=fold_seed(self._seed, self._number), n_startup_trials=self._draws, constant_liar=self._parallel
        )
        return made


@dataclass
class Objective:
    """Judges settings: trains a model by them, and returns what it scores on validation.

    Attributes:
        folder: The folder of the search.
        model: A model class, or its name.
        dataset: The name of the data set.
        files: YAML files with settings.
        given: Settings by name.
        tables: Tables in the place of files.
    """

    folder: str
    model: Any
    dataset: str | None
    files: Sequence[str | os.PathLike[str]] | None
    given: Mapping[str, Any]
    tables: Mapping[str, Any] | None
    _data: tuple[dict[str, Any], Dataset] | None = field(default=None, init=False)

    def config(self, settings: Mapping[str, Any]) -> Config:
        """Return all settings, with `settings` over them."""
        return Config(self.model, self.dataset, self.files, {**self.given, **settings})

    def reusable_data(self, config: Config) -> Dataset:
        """Return the data of an earlier trial, if this one's settings make it the same."""
        names = [*(packaged(SAMPLE) or {}), "encoding", "data_path"]
        settings = {name: config[name] for name in names}
        if self._data is None or self._data[0] != settings:
            self._data = (settings, create_dataset(config, **(self.tables or {})))
        found = copy.copy(self._data[1])
        found.config = config
        return found

    def __call__(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Train by `params`, and return the score and the metrics of the best evaluation.

        Raises:
            StopSearchError: The program is at fault, and not the settings.
        """
        try:
            return self._trained(params)
        except (TreadleError, ArithmeticError, PrunedError):
            # Settings that do not go together, or a loss that became nan, say something of the settings.
            raise
        except Exception as error:
            raise StopSearchError("".join(traceback.format_exception(error))) from error

    def _trained(self, params: Mapping[str, Any]) -> dict[str, float]:
        trial = this_trial()
        folder = trial_folder(Path(self.folder), params)
        if trial.budget is not None and trial.run_dir is not None:
            folder = trial.run_dir
        config = self.config({**params, "run_dir": str(folder), "checkpoint_dir": str(folder)})
        trainer, _, train_data, valid_data, _ = build(config, self.reusable_data(config))
        if valid_data is None:
            raise ConfigError("a search judges by validation, and eval_args leaves no data for it")
        self._check_rows(valid_data.dataset, config)
        _stop_at_budget(trainer, trial)

        reported = 0

        def report(*evaluation: Any) -> None:
            """Report every score that was not reported: after a kill, those from before it too."""
            nonlocal reported
            scores = trainer.valid_scores()
            for place in range(reported, len(scores)):
                reported = place + 1
                step = reported * trainer.eval_step - 1
                if step > trial.last_step:
                    report_intermediate_result(scores[place], step=step)

        score, result = trainer.fit(train_data, valid_data, verbose=False, callback_fn=report)
        report()
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / MODEL, json.dumps(trainer.saved_model_file))
        return {SCORE: score, **result}

    def _check_rows(self, valid: Dataset, config: Config) -> None:
        """Refuse to judge a trial on other rows than those before it: the data, or how it is read, may be another."""
        label = str(config["LABEL_FIELD"]) if config["eval_args"]["mode"]["valid"] == "labeled" else None
        rows = json.dumps(fingerprint_rows(valid, label))
        path = Path(self.folder) / f"{search_name(config)}.rows.json"
        if not path.exists():
            replace_text(path, rows)
        elif path.read_text(encoding="utf-8") != rows:
            raise RowsChangedError(
                f"{self.folder}: the trials before were judged on other rows of {self.dataset} than this one, "
                "and their scores do not compare; use another folder, or search over nothing that changes the data"
            )


def objective(params: Mapping[str, Any], **search: Any) -> dict[str, float]:
    """Judge settings in a process that knows nothing of the search but `search`, the arguments of a `Objective`."""
    return Objective(**search)(params)


class Search:
    """Looks for the settings with the best score on validation.

    It is a search of `treadle.search`, with its strategies, launchers and stores. The n-th trial depends on the seed,
    on n and on the trials before it alone: a search that is killed and started again ends as one that was not. A trial
    that a kill cut short is gone on with, in the middle of its epoch. Trials that are worse than the others at the same
    epoch are given up. What was tried before is not trained again, and does not count.

    Args:
        space: What may be tried.
        folder: Where the search is kept.
        model: A model class, or its name.
        dataset: The name of the data set.
        config_file_list: YAML files with settings.
        config_dict: Settings by name; those of the space go over them.
        tables: Tables in the place of files, as `create_dataset` takes them.
        seed: Decides which values are tried.
        prune: Whether trials are given up early; where `promotion` says who continues, it alone does.
        startup_trials: How many trials are drawn at random before "bayes" learns from them.
        strategy: "bayes"; "exhaustive", all combinations in their order; or what `treadle.search.Search` takes.
        **options: Other arguments of `treadle.search.Search`: `workers`, `launcher`, `store`, `timeout` and so on.
            Several workers are a pool of processes, unless a launcher is named.

    Raises:
        MissingDependencyError: Optuna is not installed.
        ConfigError: The settings cannot be meant.
    """

    def __init__(
        self,
        space: Sequence[Dimension],
        folder: str | os.PathLike[str],
        *,
        model: Any = None,
        dataset: str | None = None,
        config_file_list: Sequence[str | os.PathLike[str]] | None = None,
        config_dict: Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
        seed: int = 0,
        prune: bool = True,
        startup_trials: int = 10,
        strategy: Any = "bayes",
        **options: Any,
    ) -> None:
        library = optuna()
        self.space, self.folder = list(space), Path(folder)
        clash = [one.name for one in self.space if one.name in ("model", "dataset", "checkpoint_dir", "run_dir")]
        if clash:
            raise ConfigError(f"{clash[0]} cannot be searched over; give it to the search itself")
        made = {
            "folder": str(self.folder),
            "model": model,
            "dataset": dataset,
            "files": config_file_list,
            "given": dict(config_dict or {}),
            "tables": tables,
        }
        self._judge = Objective(**made)
        config = self._judge.config({})
        check_comparable(self.space, split_seed=config["split_seed"])
        if not config["eval_step"] or int(config["eval_step"]) < 1:
            raise ConfigError(f"eval_step={config['eval_step']}: a search judges by validation, which needs at least 1")
        self._bigger = bool(config["valid_metric_bigger"])
        self._name = search_name(config)
        self._tell: Callable[[str], None] = logger.info
        workers = options.get("workers", 1)
        options.setdefault("launcher", "inline" if workers == 1 else "processes")
        pruner = library.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3)
        self._search = TrialSearch(
            SettingsSpace(self.space),
            self._judge if options["launcher"] == "inline" else partial(objective, **made),
            strategy=_strategy(strategy, seed, startup_trials, workers),
            seed=seed,
            objectives={SCORE: "maximize" if self._bigger else "minimize"},
            run_dir=self.folder,
            name=self._name,
            on_trial=self._on_end,
            **{
                "pruner": pruner if prune and options.get("promotion") is None else None,
                "max_failures": None,
                **options,
            },
        )

    def run(self, trials: int, *, tell: Callable[[str], None] = logger.info) -> SearchResult:
        """Make trials until there are `trials` of them, those of earlier starts included; return what was found.

        Args:
            trials: How many; there are fewer where all combinations were tried.
            tell: Called with a line about each trial.

        Raises:
            CheckpointError: Another process searches in the folder.
            ConfigError: A setting, or a name of the space, is nearly one that there is; no trial was made.
            TreadleError: No trial came to an end.
        """
        if trials < 1:
            raise ConfigError(f"trials={trials}: make at least one")
        self._check_names()
        holder = RunLock(self.folder)
        self._tell, done = tell, False
        try:
            self._check_settings()
            result = self._run(trials)
            done = True
            return result
        except StopSearchError as stopped:
            # What a trial raised in this process is raised as it was.
            raise stopped.__cause__ or stopped from None
        finally:
            self._search.close()
            holder.end(FINISHED if done else STOPPED)

    def _run(self, trials: int) -> SearchResult:
        for trial in self._search.results()["trials"]:
            if trial["state"] == "running":
                self._tell(f"trial {trial['number']} was cut short and is resumed")
        return self._result(self._search.run(trials))

    def _check_names(self) -> None:
        """Complain once of a misspelt setting, which would fail every trial.

        What a model and its trainer read shows only when they are built, so this is done only for names that no file
        of Treadle's has.
        """
        searched = dict.fromkeys((one.name for one in self.space), "the search space")
        if all_known_names().issuperset([*self._judge.config({}).external_config_dict, *searched]):
            return
        try:
            config = self._judge.config({one.name: one.first for one in self.space})
            build(config, self._judge.reusable_data(config))
        except TreadleError:
            # These values do not go together; others may, and each trial says what is wrong with its own.
            return
        config.check_unread_keys(searched)

    def _check_settings(self) -> None:
        """Refuse to go on with a search whose trials were made with other settings: their scores do not compare."""
        if (self.folder / JOURNAL_BEFORE).exists() and not (self.folder / JOURNAL).exists():
            raise ConfigError(
                f"{self.folder} holds a search of an earlier version of Treadle, which kept its trials in "
                f"{JOURNAL_BEFORE}; use another folder"
            )
        searched = SettingsSpace(self.space).fixed()
        settings = storable(self._judge.config({}).plain())
        now = {name: value for name, value in settings.items() if name not in (*FREE, *searched)}
        now = json.loads(json.dumps({"searched": searched, **now}, default=str))
        path = self.folder / f"{self._name}.settings.json"
        if not path.exists():
            replace_text(path, json.dumps(now, indent=1))
            return
        known = json.loads(path.read_text(encoding="utf-8"))
        for name in now:
            # What only one of two versions knows is no difference.
            if name in known and known[name] != now[name]:
                raise ConfigError(
                    f"{self.folder} holds a search with {name}={known[name]!r}, and now it is {now[name]!r}: the "
                    "scores of its trials could not be compared; use another folder"
                )

    # What was found -----------------------------------------------------------------------------------------

    def _on_end(self, trial: dict[str, Any]) -> None:
        """Tell what became of a trial, and keep of all trials only the best."""
        if "replayed_from" in trial:
            return
        best = self._search.results()["best"]
        self._tell(trial_line(trial, best=best is not None and best["number"] == trial["number"]))
        self._delete_other_models()

    def _delete_other_models(self) -> None:
        """Remove checkpoints of trials that are over, and the models of all but the best; write down which it is."""
        results = self._search.results()
        best = results["best"]
        kept = None if best is None else self._folder_of(best)
        for trial in results["trials"]:
            folder = self._folder_of(trial)
            if trial["state"] in ("complete", "pruned") and folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
        if best is not None:
            found = self._trial(best)
            about = {"score": found.score, "params": found.params, "result": found.result}
            replace_text(self.folder / BEST, json.dumps(about, indent=1))

    def _folder_of(self, trial: Mapping[str, Any]) -> Path:
        if self._search.rules.promotion is None:
            return trial_folder(self.folder, trial["parameters"])
        return self._search.trial_folder(trial.get("retry_of", trial["number"]))

    def _trial(self, trial: Mapping[str, Any]) -> Trial:
        path = self._folder_of(trial) / MODEL
        file = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        last = trial["curve"][-1][1] if trial["curve"] and trial["state"] == "pruned" else None
        metrics = trial["metrics"] or {}
        return Trial(
            number=trial["number"],
            params=trial["parameters"],
            score=last if trial["values"] is None else trial["values"][SCORE],
            state=trial["state"],
            result={name: value for name, value in metrics.items() if name != SCORE},
            model_file=file if file is not None and Path(file).exists() else None,
        )

    def _result(self, found: Mapping[str, Any]) -> SearchResult:
        made = [trial for trial in found["trials"] if "replayed_from" not in trial]
        if found["best"] is None:
            errors = [trial["error"] for trial in made if "error" in trial]
            reasons = sorted({*(f"{error['kind']}: {error['message']}" for error in errors)}) or ["pruned"]
            raise TreadleError(f"none of {len(made)} trials came to its end: {'; '.join(reasons[:3])}")
        return SearchResult([self._trial(one) for one in made], self._trial(found["best"]), self._bigger)


def search_name(config: Config) -> str:
    """Return what a search is called: several may be in one folder, of different models."""
    return f"{config.model}-{config.dataset}-{config['valid_metric']}".replace(os.sep, "-")


def _stop_at_budget(trainer: Any, trial: TrialContext) -> None:
    """Have a training stop at the budget of its trial, in epochs.

    Raises:
        StopSearchError: The largest budget is not the number of epochs, so that schedules would go by another one.
    """
    if trial.max_budget is not None and trial.max_budget != trainer.epochs:
        raise StopSearchError(
            f"epochs={trainer.epochs}, but the largest budget of the search is {trial.max_budget}: budgets of a "
            "recommender are epochs, and the largest is all of them"
        )
    trainer.callbacks.append(StopAtBudgetCallback("epoch", {"lr": trainer.learning_rate}))


def trial_folder(search: Path, params: Mapping[str, Any]) -> Path:
    """Return the folder of a trial; a trial that was cut short finds its own again."""
    return search / TRIALS / _key(params)


def _strategy(given: Any, seed: int, startup: int, workers: int) -> Any:
    """Return a strategy by RecBole's names, or one that `treadle.search` knows.

    Raises:
        ConfigError: There is none of this name.
    """
    if given == "bayes":
        return Bayes(seed, startup, parallel=workers > 1)
    if given == "exhaustive":
        return Grid(shuffle=False)
    names = ["bayes", "exhaustive", *STRATEGIES]
    if isinstance(given, str) and given not in names:
        raise ConfigError(f"strategy={given!r} is unknown{did_you_mean(given, names) or f'; there are {names}'}")
    return given


def _key(params: Mapping[str, Any]) -> str:
    """Return a name for settings; equal settings share their folder, and so a trial that was cut short goes on."""
    text = json.dumps(dict(params), sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()
