"""The calls that most people begin with: train and test a model in one go, and come back to it later."""

import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.errors import ConfigError
from treadle.parallel import notebook_launcher
from treadle.parallel.launch.notebook import check_that_others_can_start
from treadle.recsys.config.configurator import Config
from treadle.recsys.config.values import command_line_settings, log_level, resumed_run
from treadle.recsys.data.dataloader import AbstractDataLoader
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.preparation import create_dataset, data_preparation
from treadle.recsys.model_registry import get_model, registered_model
from treadle.recsys.trainers import get_trainer
from treadle.recsys.trainers.loop.model_file import OtherParameters, check_tokens, read_model_file
from treadle.recsys.trainers.results import dict2str, groups2str

logger = logging.getLogger(__name__)
IN_PACKAGE = "recbole:"
"""What the place of a model in RecBole's package begins with."""
UNWRITTEN: Mapping[str, Any] = {
    "run_dir": None,
    "save_dataset": False,
    "dataset_save_path": None,
    "save_dataloaders": False,
    "dataloaders_save_path": None,
    "log_wandb": False,
    "log_tensorboard": False,
}
"""Settings by which something is written, as they are for a model that comes from a file: who wrote it has no say."""
Loaded = tuple[Config, Any, Dataset, AbstractDataLoader, AbstractDataLoader | None, AbstractDataLoader | None]


def init_seed(seed: int, reproducibility: bool) -> None:
    """Seed Python, NumPy and torch, so that a model begins with the same weights each time.

    Args:
        seed: The seed.
        reproducibility: Whether cuDNN keeps to one algorithm; the setting `deterministic` asks the same of all of
            torch.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not reproducibility
    torch.backends.cudnn.deterministic = bool(reproducibility)


def init_logger(config: Config) -> None:
    """Show on the console what is logged, from the level that `state` names on; whoever has set logging up keeps it."""
    logging.basicConfig(level=log_level(config["state"]), format="%(asctime)s %(levelname)s %(message)s")


def build(config: Config, dataset: Dataset | None = None) -> tuple[Any, Dataset, Any, Any, Any]:
    """Return the trainer of the model that the settings name, the data, and the loaders of its three parts.

    Args:
        config: The settings.
        dataset: The data, if it is there already.

    Raises:
        ConfigError: The settings name no model.
    """
    config.require_model()
    init_seed(config["seed"], config["reproducibility"])
    data = create_dataset(config) if dataset is None else dataset
    train_data, valid_data, test_data = data_preparation(config, data)
    # Every process begins with the same weights.
    init_seed(config["seed"], config["reproducibility"])
    model = config.model_class(config, train_data.dataset).to(config["device"])
    return get_trainer(config, model), data, train_data, valid_data, test_data


def run_recbole(
    model: Any = None,
    dataset: str | None = None,
    config_file_list: Sequence[str | os.PathLike[str]] | None = None,
    config_dict: Mapping[str, Any] | None = None,
    saved: bool = True,
    queue: Any = None,
) -> dict[str, Any]:
    """Train a model and test it; what was found is printed, and returned.

    Settings on the command line of the program, `--name=value`, go over files and dict, as in RecBole; with
    `--resume=FOLDER` it resumes the run in that folder.

    Args:
        model: A model class, or its name.
        dataset: The name of the data set.
        config_file_list: YAML files with settings.
        config_dict: Settings by name.
        saved: Whether to keep the best model in a file; it is tested either way.
        queue: Where the result is put as well.

    Returns:
        `best_valid_score`, `valid_score_bigger`, `best_valid_result` and `test_result`.
    """
    config = Config(model, dataset, config_file_list, config_dict, argv=command_line_settings(sys.argv))
    trainer, _, train_data, valid_data, test_data = build(config)
    resumed = resumed_run(sys.argv)
    if resumed is not None:
        trainer.resume_checkpoint(resumed)
    result = fit_and_test(trainer, train_data, valid_data, test_data, saved=saved)
    if os.environ.get("RANK", "0") == "0":
        for name in ("best_valid_result", "test_result"):
            if result[name] is not None:
                sys.stdout.write(f"{name.replace('_', ' ')}: {dict2str(result[name])}\n")
        for line in groups2str(result["test_result"] or {}):
            sys.stdout.write(f"{line}\n")
    if queue is not None and config["local_rank"] == 0:
        queue.put(result)
    return result


def run(
    model: Any = None,
    dataset: str | None = None,
    config_file_list: Sequence[str | os.PathLike[str]] | None = None,
    config_dict: Mapping[str, Any] | None = None,
    saved: bool = True,
    nproc: int = 1,
    world_size: int = -1,
    ip: str = "localhost",
    port: str = "5678",
    group_offset: int = 0,
) -> dict[str, Any]:
    """Train a model and test it, on several processes of this machine if `nproc` says so.

    Args:
        model, dataset, config_file_list, config_dict, saved: As for `run_recbole`.
        nproc: How many processes.
        world_size: How many there are on all machines; -1 for as many as here.
        ip, port, group_offset: Not used: processes of one machine find each other.

    Returns:
        What `run_recbole` returns.

    Raises:
        ConfigError: There are to be processes on other machines, or this process cannot start others.
    """
    if world_size > nproc or group_offset:
        raise ConfigError(
            f"run: world_size={world_size} and group_offset={group_offset} mean several machines; start the program "
            "with torchrun on each of them, and call run_recbole"
        )
    given = (model, dataset, config_file_list, config_dict, saved)
    if nproc == 1:
        return run_recbole(*given)
    check_that_others_can_start(f"run: nproc={nproc}")
    results = get_context("fork").SimpleQueue()
    notebook_launcher(run_recbole, (*given, results), nproc)
    found: dict[str, Any] = results.get()
    return found


def fit_and_test(
    trainer: Any,
    train_data: Any,
    valid_data: Any,
    test_data: Any,
    *,
    saved: bool = True,
    verbose: bool = True,
    callback_fn: Any = None,
) -> dict[str, Any]:
    """Train, then test the best model, or the last one where nobody evaluated; return what `run_recbole` does."""
    config = trainer.config
    if valid_data is None and test_data is not None:
        trainer.check_scores(test_data)
    show = bool(config["show_progress"]) and verbose
    best_valid_score, best_valid_result = trainer.fit(
        train_data, valid_data, verbose=verbose, saved=saved, show_progress=show, callback_fn=callback_fn
    )
    best = saved or best_valid_result is not None
    test_result = trainer.evaluate(test_data, load_best_model=best, show_progress=show)
    return {
        "best_valid_score": best_valid_score,
        "valid_score_bigger": config["valid_metric_bigger"],
        "best_valid_result": best_valid_result,
        "test_result": test_result,
    }


def objective_function(
    config_dict: Mapping[str, Any] | None = None,
    config_file_list: Sequence[str | os.PathLike[str]] | None = None,
    saved: bool = True,
) -> dict[str, Any]:
    """Train and test what settings describe, without a word: one trial of a search.

    Choose between trials by `best_valid_score`. Who chooses by the test has none left.

    Args:
        config_dict: Settings by name, `model` and `dataset` among them unless a file has them.
        config_file_list: YAML files with settings.
        saved: Whether to keep the best model in a file.

    Returns:
        What `run_recbole` returns, and the name of the `model`.
    """
    config = Config(config_file_list=config_file_list, config_dict=config_dict)
    trainer, _, *data = build(config)
    return {"model": config.model, **fit_and_test(trainer, *data, saved=saved, verbose=False)}


def load_data_and_model(
    model_file: str | os.PathLike[str], *, model: Any = None, dataset: Dataset | None = None
) -> Loaded:
    """Return what a file of a trained model was made of: settings, model, data set, and the loaders of its parts.

    The data is read again from where the settings say that it is. Nothing in the file is run, and nothing is written:
    the settings do not keep prepared data any more, nor name a folder other than that of the file.

    Args:
        model_file: A file that a trainer saved.
        model: The class of the model, or what names it, if it is not registered: a model of a file is loaded only if
            the caller names the file.
        dataset: The data set, if it was made of tables that no file holds.

    Raises:
        CheckpointError: The file is damaged, or no model.
        ConfigError: There is no model of that name.
        DataError: The data is not there, or has other users or items than the model.
    """
    path = Path(model_file)
    state = read_model_file(path)
    settings = {name: value for name, value in state["config"].items() if name not in ("model", "dataset")}
    chosen = _model_class(state) if model is None else get_model(model)
    config = Config(chosen, state["dataset"], config_dict={**settings, **UNWRITTEN, "checkpoint_dir": str(path.parent)})
    init_seed(config["seed"], config["reproducibility"])
    data = create_dataset(config) if dataset is None else dataset
    check_tokens(state, data, path)
    train_data, valid_data, test_data = data_preparation(config, data)
    made = chosen(config, train_data.dataset).to(config["device"])
    load_plain_state_dict(made, state["state_dict"], where=str(path))
    OtherParameters(made, config["device"]).load_state_dict(state["other_parameter"])
    made.eval()
    return config, made, data, train_data, valid_data, test_data


def _model_class(state: Mapping[str, Any]) -> Any:
    """Return the class of a saved model, if it is one of those that are known, or of RecBole's package."""
    place = state.get("located_at")
    # A file that names other files is not followed: who did not write it must not decide what is run.
    try:
        if isinstance(place, str) and place.startswith(IN_PACKAGE):
            return get_model(place)
        return registered_model(state["model"])
    except ConfigError as error:
        raise ConfigError(f"{error}; if it is a class of your own, pass it as model= (--model FILE.py:NAME)") from None
