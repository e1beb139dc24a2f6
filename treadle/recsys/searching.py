"""A search over settings: trials by Optuna, judged on validation alone, gone on with after a kill."""

import copy
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, TreadleError
from treadle.html_table import html_table
from treadle.optional import importing
from treadle.recsys.bench.measuring import print_of_rows
from treadle.recsys.config import Config
from treadle.recsys.config_defaults import SAMPLE, all_known_names, packaged
from treadle.recsys.dataset import Dataset
from treadle.recsys.preparation import create_dataset
from treadle.recsys.quick_start import build
from treadle.recsys.search_space import Dimension, check_comparable
from treadle.recsys.trainers.model_file import storable
from treadle.run_lock import RunLock
from treadle.run_status import FINISHED, STOPPED

JOURNAL = "journal.log"
BEST = "best.json"
SETTINGS = "settings"
"""What the settings that all trials have are called among what the journal knows of the search."""
ROWS = "rows"
"""The same of the fingerprint of the rows that all trials are judged on."""
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


class OtherRowsError(ConfigError):
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


class Search:
    """Looks for the settings with the best score on validation.

    The n-th trial depends on the seed, on n and on the trials before it alone: a search that is killed and started
    again ends as one that was not. A trial that a kill cut short is gone on with, in the middle of its epoch. Trials
    that are worse than the others at the same epoch are given up.

    Args:
        space: What may be tried.
        folder: Where the search is kept.
        model: A model class, or its name.
        dataset: The name of the data set.
        config_file_list: YAML files with settings.
        config_dict: Settings by name; those of the space go over them.
        tables: Tables in the place of files, as `create_dataset` takes them.
        seed: Decides which values are tried.
        prune: Whether trials are given up early.
        startup_trials: How many trials are drawn at random before others learn from them.

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
    ) -> None:
        self._optuna = _optuna()
        self.space, self.folder = list(space), Path(folder)
        self._model, self._dataset_name = model, dataset
        self._files, self._given = config_file_list, dict(config_dict or {})
        self._tables, self._seed, self._prune, self._startup = tables, seed, prune, startup_trials
        self._data: tuple[dict[str, Any], Dataset] | None = None
        clash = [one.name for one in self.space if one.name in ("model", "dataset", "checkpoint_dir", "run_dir")]
        if clash:
            raise ConfigError(f"{clash[0]} cannot be searched over; give it to the search itself")
        config = self._config({})
        check_comparable(self.space, split_seed=config["split_seed"])
        if not config["eval_step"] or int(config["eval_step"]) < 1:
            raise ConfigError(f"eval_step={config['eval_step']}: a search judges by validation, which needs at least 1")
        self._bigger = bool(config["valid_metric_bigger"])
        self._name = f"{config.model}-{config.dataset}-{config['valid_metric']}"

    def run(self, trials: int, *, tell: Callable[[str], None] = logger.info) -> SearchResult:
        """Make trials until there are `trials` of them, those of earlier starts included; return what was found.

        Args:
            trials: How many.
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
        done = False
        try:
            result = self._run(trials, tell)
            done = True
            return result
        finally:
            holder.end(FINISHED if done else STOPPED)

    def _run(self, trials: int, tell: Callable[[str], None]) -> SearchResult:
        study = self._study()
        self._check_settings(study)
        self._take_up(study, tell)
        while (number := self._finished(study)) < trials:
            study.sampler = self._optuna.samplers.TPESampler(
                seed=fold_seed(self._seed, number), n_startup_trials=self._startup
            )
            self._make_trial(study, number, tell)
            self._keep_only_the_best(study)
        return self._result(study)

    def _check_names(self) -> None:
        """Complain once of a misspelt setting, which would fail every trial.

        What a model and its trainer read shows only when they are built, so this is done only for names that no file
        of Treadle's has.
        """
        searched = dict.fromkeys((one.name for one in self.space), "the search space")
        if all_known_names().issuperset([*self._config({}).external_config_dict, *searched]):
            return
        try:
            config = self._config({one.name: one.suggest(_First()) for one in self.space})
            build(config, self._dataset(config))
        except TreadleError:
            # These values do not go together; others may, and each trial says what is wrong with its own.
            return
        config.check_unread_keys(searched)

    def _study(self) -> Any:
        optuna = self._optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / JOURNAL))
        pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3)
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=self._name,
            direction="maximize" if self._bigger else "minimize",
            load_if_exists=True,
            pruner=pruner if self._prune else optuna.pruners.NopPruner(),
        )

    def _check_settings(self, study: Any) -> None:
        """Refuse to go on with a search whose trials were made with other settings: their scores do not compare."""
        # Bounds may move; what Optuna takes for another kind of value may not.
        searched = {one.name: list(one.values) if one.kind == "choice" else one.kind for one in self.space}
        settings = storable(self._config({}).plain())
        now = {name: value for name, value in settings.items() if name not in (*FREE, *searched)}
        now = json.loads(json.dumps({"searched": searched, **now}, default=str))
        known = study.user_attrs.get(SETTINGS)
        if known is None:
            study.set_user_attr(SETTINGS, now)
            return
        for name in now:
            # What only one of two versions knows is no difference.
            if name in known and known[name] != now[name]:
                raise ConfigError(
                    f"{self.folder} holds a search with {name}={known[name]!r}, and now it is {now[name]!r}: the "
                    "scores of its trials could not be compared; use another folder"
                )

    def _take_up(self, study: Any, tell: Callable[[str], None]) -> None:
        """Put what a kill cut short in front again: nobody else can be at it, for the folder is ours."""
        states = self._optuna.trial.TrialState
        for cut in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            study.tell(cut.number, state=states.FAIL)
            if cut.params:
                study.enqueue_trial(cut.params, user_attrs={"again": cut.number})
                tell(f"trial {_number(cut)} was cut short and is gone on with")

    def _finished(self, study: Any) -> int:
        """Return how many trials came to an end, by whatever: one that was cut short counts when it is made again."""
        states = self._optuna.trial.TrialState
        ended = study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED, states.FAIL))
        return sum(1 for trial in ended if trial.state != states.FAIL or "error" in trial.user_attrs)

    # One trial ----------------------------------------------------------------------------------------------

    def _make_trial(self, study: Any, number: int, tell: Callable[[str], None]) -> None:
        trial = study.ask()
        trial.set_user_attr("number", number)
        params = {one.name: one.suggest(trial) for one in self.space}
        states = self._optuna.trial.TrialState
        try:
            score = self._train(trial, params)
        except OtherRowsError:
            raise  # with the rows that there were, the trial can still be made
        except self._optuna.TrialPruned:
            tell(f"trial {number} pruned: {_shown(params)}")
            study.tell(trial, state=states.PRUNED)
        except (TreadleError, ArithmeticError) as error:
            # Settings that do not go together, or a loss that became nan, say something of the settings.
            trial.set_user_attr("error", f"{type(error).__name__}: {error}")
            tell(f"trial {number} failed: {_shown(params)}: {error}")
            study.tell(trial, state=states.FAIL)
        else:
            tell(f"trial {number} scored {score:.4f}: {_shown(params)}")
            study.tell(trial, score)

    def _train(self, trial: Any, params: Mapping[str, Any]) -> float:
        folder = self.folder / "trials" / _key(params)
        config = self._config({**params, "run_dir": str(folder), "checkpoint_dir": str(folder)})
        trainer, _, train_data, valid_data, _ = build(config, self._dataset(config))
        if valid_data is None:
            raise ConfigError("a search judges by validation, and eval_args leaves no data for it")
        self._check_rows(trial, valid_data.dataset, config)

        reported = 0

        def report(*evaluation: Any) -> None:
            """Report every score that was not reported: after a kill, those from before it too."""
            nonlocal reported
            scores = trainer.valid_scores()
            for place in range(reported, len(scores)):
                trial.report(scores[place], (place + 1) * trainer.eval_step - 1)
                reported = place + 1
                if trial.should_prune():
                    raise self._optuna.TrialPruned

        score, result = trainer.fit(train_data, valid_data, verbose=False, callback_fn=report)
        report()
        trial.set_user_attr("result", dict(result))
        trial.set_user_attr("model_file", trainer.saved_model_file)
        return float(score)

    def _check_rows(self, trial: Any, valid: Dataset, config: Config) -> None:
        """Refuse to judge a trial on other rows than those before it: the data, or how it is read, may be another."""
        label = str(config["LABEL_FIELD"]) if config["eval_args"]["mode"]["valid"] == "labeled" else None
        rows = print_of_rows(valid, label)
        known = trial.study.user_attrs.get(ROWS)
        if known is None:
            trial.study.set_user_attr(ROWS, rows)
        elif known != rows:
            raise OtherRowsError(
                f"{self.folder}: the trials before were judged on other rows of {self._dataset_name} than this one, "
                "and their scores do not compare; use another folder, or search over nothing that changes the data"
            )

    def _config(self, settings: Mapping[str, Any]) -> Config:
        return Config(self._model, self._dataset_name, self._files, {**self._given, **settings})

    def _dataset(self, config: Config) -> Dataset | None:
        """Return the data of an earlier trial, if this one's settings make it the same."""
        names = [*(packaged(SAMPLE) or {}), "encoding", "data_path"]
        settings = {name: config[name] for name in names}
        if self._data is None or self._data[0] != settings:
            self._data = (settings, create_dataset(config, **(self._tables or {})))
        found = copy.copy(self._data[1])
        found.config = config
        return found

    # What was found -----------------------------------------------------------------------------------------

    def _keep_only_the_best(self, study: Any) -> None:
        """Remove checkpoints of trials that are over, and the models of all but the best; write down which it is."""
        states = self._optuna.trial.TrialState
        over = study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED))
        complete = [trial for trial in over if trial.state == states.COMPLETE]
        best = study.best_trial.number if complete else None
        kept = {_key(self._params(trial)) for trial in over if trial.number == best}
        for trial in over:
            folder = self.folder / "trials" / _key(self._params(trial))
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        if best is not None:
            found = self._trial(study.best_trial)
            text = json.dumps({"score": found.score, "params": found.params, "result": found.result}, indent=1)
            (self.folder / BEST).write_text(text, encoding="utf-8")

    def _params(self, trial: Any) -> dict[str, Any]:
        """Return the settings of a trial, lists included."""
        return {one.name: one.suggest(_Replay(trial.params)) for one in self.space if one.name in trial.params}

    def _trial(self, trial: Any) -> Trial:
        file = trial.user_attrs.get("model_file")
        return Trial(
            number=_number(trial),
            params=self._params(trial),
            score=trial.value,
            state={"COMPLETE": "complete", "PRUNED": "pruned"}.get(trial.state.name, "failed"),
            result=dict(trial.user_attrs.get("result", {})),
            model_file=file if file is not None and Path(file).exists() else None,
        )

    def _result(self, study: Any) -> SearchResult:
        states = self._optuna.trial.TrialState
        ended = study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED, states.FAIL))
        counted = [one for one in ended if one.state != states.FAIL or "error" in one.user_attrs]
        if not any(one.state == states.COMPLETE for one in counted):
            reasons = sorted({str(one.user_attrs.get("error", "pruned")) for one in counted})
            raise TreadleError(f"none of {len(counted)} trials came to its end: {'; '.join(reasons[:3])}")
        return SearchResult([self._trial(one) for one in counted], self._trial(study.best_trial), self._bigger)


class _Replay:
    """Stands for a trial whose values are known."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def _known(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._params[name]

    suggest_categorical = suggest_int = suggest_float = _known


class _First:
    """Stands for a trial that takes the first choice, or the lowest number, of everything."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return choices[0]

    def suggest_int(self, name: str, low: Any, high: Any, **options: Any) -> Any:
        return low

    suggest_float = suggest_int


def _number(trial: Any) -> int:
    return int(trial.user_attrs.get("number", trial.number))


def _key(params: Mapping[str, Any]) -> str:
    """Return a name for settings; equal settings share their folder, and so a trial that was cut short goes on."""
    text = json.dumps(dict(params), sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def _shown(params: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in params.items()
    )


def _optuna() -> Any:
    with importing("optuna", extra="search", user="a search over settings"):
        import optuna
        import optuna.storages.journal
    return optuna
