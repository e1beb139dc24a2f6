"""What a training of a benchmark did for single users: their metrics, and for some of them their lists."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from treadle.files.atomic_io import replace_file, replace_text
from treadle.recsys.data.dataloader import FullSortEvalDataLoader
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.evaluation import NO_ITEM, PerUser
from treadle.recsys.evaluation.scoring import top_items
from treadle.recsys.serve.case_study import full_sort_scores
from treadle.runs.reader import read_json

VALUES, LISTS = "users.safetensors", "lists.json"
SPLIT_ROWS = "the rows of the test"
TOKENS = "tokens"
SHOWN_USERS, SHOWN_ITEMS, SHOWN_HISTORY = 24, 10, 30
"""Users whose lists are kept, the length of a list, and how much of a history is shown."""
NAMED = ("title", "name")
"""What a field of items is called, or ends with, that says what an item is."""


# Metrics of every user of the test


def values_by_owner(found: PerUser, test_data: Any, test_print: str) -> tuple[list[str], PerUser]:
    """Return the users of a test by their tokens, in order, and the values of each; of several rows of one, the mean.

    Args:
        found: The values by query.
        test_data: The loader.
        test_print: A fingerprint of the rows of the test, which knows users and items by their tokens.
    """
    data: Dataset = test_data.dataset
    queries = found.users.cpu()
    owners = data.inter_feat[str(data.uid_field)].cpu()[queries] if test_data.by_row else queries
    known, place = torch.unique(owners, return_inverse=True)
    tokens = [str(token) for token in data.id2token(str(data.uid_field), known).tolist()]
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    values = {name: _means(one.cpu().double(), place, len(known))[order] for name, one in found.values.items()}
    return [tokens[position] for position in order], PerUser(torch.arange(len(known)), values, {SPLIT_ROWS: test_print})


def _means(values: Tensor, place: Tensor, number: int) -> Tensor:
    there = ~values.isnan()
    sums = torch.zeros(number, dtype=torch.float64).index_add_(0, place, values.where(there, 0.0))
    return sums / torch.zeros(number, dtype=torch.float64).index_add_(0, place, there.double())


def write_values(folder: Path, tokens: Sequence[str], values: PerUser) -> None:
    """Keep the values of users in the folder of a training."""
    listed = torch.from_numpy(np.frombuffer(bytearray(json.dumps(tokens).encode()), np.uint8))
    tensors = {TOKENS: listed, **{f"metric {name}": one for name, one in values.values.items()}}
    replace_file(folder / VALUES, lambda path: save_file(tensors, path, metadata=dict(values.split)))


def read_values(folder: Path, test_print: str) -> tuple[list[str], PerUser] | None:
    """Return what `write_values` kept; None where there is nothing."""
    if not (folder / VALUES).is_file():
        return None
    tensors = load_file(folder / VALUES)
    tokens: list[str] = json.loads(tensors.pop(TOKENS).numpy().tobytes())
    values = {name.removeprefix("metric "): one for name, one in tensors.items()}
    return tokens, PerUser(torch.arange(len(tokens)), values, {SPLIT_ROWS: test_print})


# Lists of some users


@dataclass
class UserLists:
    """What one user had, what was to be found, and what a model recommends.

    Attributes:
        history: The items that the user had before, the last one first where times are known.
        earlier: How many more there are.
        wanted: The items of the test.
        recommended: The items of the list, best first.
    """

    history: list[str] = field(default_factory=list)
    earlier: int = 0
    wanted: list[str] = field(default_factory=list)
    recommended: list[str] = field(default_factory=list)


def sample_users(tokens: Sequence[str], number: int = SHOWN_USERS) -> list[str]:
    """Return some users, the same ones in every training: those whose fingerprints are lowest."""
    return sorted(tokens, key=lambda token: blake2b(token.encode()).digest())[:number]


def user_lists(model: Any, test_data: Any, device: torch.device, users: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the lists of some users as plain data, and what their items are called.

    Args:
        model: The model.
        test_data: The loader of the test.
        device: Where the model is.
        users: Whom to show, by their tokens; by default some of those who are tested. Who is not tested is left out.

    Returns:
        `users`, by token, and `labels`, by item; nothing where the test does not rank all items.
    """
    if not isinstance(test_data, FullSortEvalDataLoader):
        return {"users": {}, "labels": {}}
    data: Dataset = test_data.dataset
    field_of_users = str(data.uid_field)
    owners = data.inter_feat[field_of_users].cpu()
    tested = {str(token) for token in data.id2token(field_of_users, torch.unique(owners)).tolist()}
    chosen = sample_users(sorted(tested)) if users is None else [user for user in users if user in tested]
    found = {user: _lists_of(model, test_data, device, user, owners) for user in chosen}
    shown = {item for one in found.values() for item in (*one.history, *one.wanted, *one.recommended)}
    return {"users": {user: asdict(one) for user, one in found.items()}, "labels": _labels(data, shown)}


def _lists_of(model: Any, test_data: Any, device: torch.device, user: str, owners: Tensor) -> UserLists:
    data: Dataset = test_data.dataset
    items_field = str(data.iid_field)
    number = int(data.token2id(str(data.uid_field), user))
    # A model of sequences has a row for each item to be found: the last one counts.
    scores = full_sort_scores([number], model, test_data, device)[-1:]
    items, values, _ = top_items(scores.float(), min(SHOWN_ITEMS, data.item_num - 1))
    items = items.masked_fill(values == -torch.inf, NO_ITEM)[0].cpu()
    wanted = data.inter_feat[items_field].cpu()[owners == number]
    wanted = wanted[-1:] if test_data.by_row else wanted
    history = _history(data, number, set(wanted.tolist()))

    def tokens(ids: Tensor) -> list[str]:
        return [str(token) for token in data.id2token(items_field, ids).tolist()]

    return UserLists(
        history=tokens(history[:SHOWN_HISTORY]),
        earlier=max(0, len(history) - SHOWN_HISTORY),
        wanted=tokens(wanted),
        recommended=tokens(items[items != NO_ITEM]),
    )


def _history(data: Dataset, user: int, wanted: set[int]) -> Tensor:
    """Return what a user has but for what is to be found, the last one first where times are known."""
    whole = data.flat if isinstance(data, SequentialDataset) else data.prepared.features["inter"]
    if whole is None:
        return torch.empty(0, dtype=torch.int64)
    own = (whole[str(data.uid_field)].cpu() == user).nonzero().flatten()
    if data.time_field is not None and data.time_field in whole:
        own = own[whole[data.time_field].cpu()[own].argsort(stable=True)]
    items = whole[str(data.iid_field)].cpu()[own].flip(0)
    before: Tensor = items[torch.tensor([item not in wanted and item > 0 for item in items.tolist()], dtype=torch.bool)]
    return before


def _labels(data: Dataset, items: set[str]) -> dict[str, str]:
    """Return what items are called, by a field of items whose name says that it is a title or a name."""
    table = data.prepared.features.get("item")
    names = [] if table is None else [name for name in table.columns if name.lower().endswith(NAMED)]
    field_name = next((name for name in names if data.field2type[name].is_token), None)
    if table is None or field_name is None:
        return {}
    tokens = sorted(items)
    rows = table[field_name].cpu()[torch.from_numpy(np.asarray(data.token2id(str(data.iid_field), tokens)))]
    words = data.vocabulary(field_name).tokens
    rows = rows.view(len(tokens), -1)
    return {
        token: " ".join(str(words[word]) for word in row if word)
        for token, row in zip(tokens, rows.tolist(), strict=True)
    }


def write_lists(folder: Path, lists: Mapping[str, Any]) -> None:
    """Keep lists in the folder of a training."""
    replace_text(folder / LISTS, json.dumps(lists))


def read_lists(folder: Path) -> dict[str, Any]:
    """Return what `write_lists` kept; empty where there is nothing."""
    return read_json(folder / LISTS)
