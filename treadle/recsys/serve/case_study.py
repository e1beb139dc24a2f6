"""What a model gives single users, by their ids and as tensors: RecBole's two functions for a closer look.

`Recommender` goes by tokens, knows users that are new, and writes tables.
"""

from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError
from treadle.recsys.data.dataloader import FullSortEvalDataLoader
from treadle.recsys.evaluation.scoring import top_items
from treadle.recsys.models.item_scores import ModelScores, looking


def full_sort_scores(
    uid_series: Any, model: Any, test_data: FullSortEvalDataLoader, device: torch.device | str | None = None
) -> Tensor:
    """Return the scores of all items for some users, with -inf for padding and for what they have already.

    The modes of modules are afterwards as they were.

    Args:
        uid_series: Ids of users: a list, an array or a tensor.
        model: The model.
        test_data: A loader of data that is evaluated by ranking all items.
        device: Where the model is; None for where its weights are, or the CPU.

    Returns:
        The scores, `[users, items]`; for a model of sequences a row for each sequence of the data that these users
        have, user by user.

    Raises:
        DataError: There is no such user, or the loader is of another kind.
    """
    if not isinstance(test_data, FullSortEvalDataLoader):
        kind = type(test_data).__name__
        raise DataError(f"a {kind} does not rank all items; prepare the data with eval_args.mode=full")
    place = _model_device(model) if device is None else torch.device(device)
    test_data.to(place)
    queries = _queries(torch.as_tensor(uid_series).flatten(), test_data)
    with looking(model):
        scores = ModelScores(model, test_data.dataset, place).all_items(test_data.interaction(queries)).clone()
    scores[:, 0] = -torch.inf
    if test_data.seen is not None:
        scores[test_data.seen.select(queries)] = -torch.inf
    return scores


def full_sort_topk(
    uid_series: Any, model: Any, test_data: FullSortEvalDataLoader, k: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the scores and the ids of the `k` best items for some users; of equal scores the lower id comes first.

    Args:
        uid_series, model, test_data, device: As for `full_sort_scores`.
        k: How many items.

    Raises:
        ConfigError: There are not so many items.
        DataError: There is no such user, or the loader is of another kind.
    """
    scores = full_sort_scores(uid_series, model, test_data, device)
    if not 0 < k < scores.shape[1]:
        raise ConfigError(f"k={k} must be between 1 and the number of items, {scores.shape[1] - 1}")
    items, best, _ = top_items(scores, k)
    return best, items


def _queries(users: Tensor, loader: FullSortEvalDataLoader) -> Tensor:
    """Return what the loader calls these users: their ids, or the rows that are theirs."""
    data = loader.dataset
    wrong = users[(users < 1) | (users >= data.user_num)]
    if len(wrong):
        raise DataError(f"there is no user with the id {int(wrong[0])}; ids go from 1 to {data.user_num - 1}")
    users = users.to(loader.device)
    if not loader.by_row:
        return users
    owners = data.inter_feat[str(data.uid_field)]
    rows: Tensor = (owners == users.unsqueeze(1)).nonzero()[:, 1]
    return rows


def _model_device(model: Any) -> torch.device:
    weights = next(model.parameters(), None)
    return torch.device("cpu") if weights is None else weights.device
