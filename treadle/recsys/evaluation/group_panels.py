"""The metrics of a model by groups of users and items, as tables on the page of its run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.data.dataloader import NegSampleEvalDataLoader
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.evaluation import EvaluationResult, Groups, groups_by_quantile
from treadle.recsys.evaluation.divisions import ACTIVITY, PARTS, POPULARITY
from treadle.runs.panels import write_table

TITLES = {ACTIVITY: "Test metrics by activity of users", POPULARITY: "Test metrics by popularity of items"}


def write_group_panels(trainer: Any, train_data: Any, test_data: Any, folder: Path) -> list[Path]:
    """Evaluate a model by groups, and write a table for each division into the folder of a run.

    Args:
        trainer: The trainer, with the model.
        train_data, test_data: The loaders for training and test.
        folder: The folder of the run.

    Returns:
        The files that this process has written; none for rows with labels, which have no users to divide.
    """
    found = evaluate_by_groups(trainer, train_data, test_data)
    return [] if found is None or not trainer._processes.is_main else write_panels(found, folder)


def evaluate_by_groups(
    trainer: Any, train_data: Any, test_data: Any, *, keep_per_user: bool = False
) -> EvaluationResult | None:
    """Evaluate a model by groups of users and items.

    Users are divided by how many interactions they have in training; items by how often they are in training, where
    only what is to be found of a group counts; and both as the settings say. The model is taken as it is. On
    several processes each of them calls this.

    Args:
        trainer: The trainer, with the model.
        train_data, test_data: The loaders for training and test.
        keep_per_user: Whether the values of single users are kept.

    Returns:
        The result; None for rows with labels, which have no users to divide.
    """
    dataset = getattr(train_data, "dataset", None)
    if not test_data or not isinstance(dataset, Dataset) or dataset.uid_field is None or dataset.iid_field is None:
        return None
    if isinstance(test_data, NegSampleEvalDataLoader) and test_data.negatives is None:
        return None
    users, items = dataset.user_item_pairs()
    asked = trainer.config
    by_user = [] if ACTIVITY in (asked["user_groups"] or ()) else _divided(ACTIVITY, users, dataset.user_num)
    if test_data.by_row:
        # What is ranked for is a row, which belongs to a user.
        owners = test_data.dataset.inter_feat[dataset.uid_field].cpu()
        by_user = [Groups(one.name, one.labels, one.of[owners]) for one in by_user]
    by_item = [] if POPULARITY in (asked["item_groups"] or ()) else _divided(POPULARITY, items, dataset.item_num)
    found: EvaluationResult = trainer.evaluate_in_detail(
        test_data, user_groups=by_user, item_groups=by_item, keep_per_user=keep_per_user
    )
    return found


def write_panels(found: EvaluationResult, folder: Path) -> list[Path]:
    """Write a table for each division of a result into the folder of a run, and return the files."""
    return [_write(found, name, folder) for name, groups in found.groups.items() if groups]


def _divided(name: str, ids: Tensor, number: int) -> Sequence[Groups]:
    """Return ids divided by how often they occur; nothing where all occur equally often."""
    counts = torch.bincount(ids.cpu(), minlength=number)
    try:
        return [groups_by_quantile(name, counts, PARTS, first_id=1)]
    except ConfigError:
        return []


def _write(found: EvaluationResult, division: str, folder: Path) -> Path:
    values, sizes = found.groups[division], found.group_users[division]
    names = list(next(iter(values.values())))
    rows: list[list[Any]] = [
        [label, f"{sizes[label]:,}", *(f"{values[label][name]:.4f}" for name in names)] for label in values
    ]
    all_users = [f"{found.metrics[name]:.4f}" if name in found.metrics else "" for name in names]
    rows.append(["all", f"{found.users:,}", *all_users])
    title = TITLES.get(division, f"Test metrics by {division}")
    head = "interactions in training" if division in TITLES else division
    return write_table(folder, title, [head, "users", *names], rows)
