"""Histories of users as rows."""

import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import no_sync
from tests.recsys.models.tiny_ratings import build
from treadle.recsys import Interaction
from treadle.recsys.models import AutoEncoderMixin, GeneralRecommender
from treadle.recsys.models.bases.fitted import common_users, similarity_scores
from treadle.recsys.models.histories import Histories, unique_pairs

PAIRS = (torch.tensor([1, 1, 2, 4, 4, 4]), torch.tensor([1, 3, 2, 1, 2, 4]))
EXPECTED = {1: [0, 1, 0, 1, 0], 2: [0, 0, 1, 0, 0], 3: [0, 0, 0, 0, 0], 4: [0, 1, 1, 0, 1]}


def histories(values: Tensor | None = None) -> Histories:
    return Histories(*PAIRS, 6, 5, values)


@pytest.mark.parametrize("users", [[4, 1, 3], [3], [], [4, 2, 1, 3]])
@pytest.mark.parametrize("distinct", [True, False])
def test_a_row_has_the_items_of_a_user(users: list[int], distinct: bool) -> None:
    found = histories().rows(torch.tensor(users, dtype=torch.int64), distinct=distinct)
    assert found.tolist() == [EXPECTED[user] for user in users]


def test_a_user_may_come_twice() -> None:
    users = torch.tensor([4, 1, 4])
    assert histories().rows(users).tolist() == [EXPECTED[4], EXPECTED[1], EXPECTED[4]]
    assert histories().sparse_rows(users).to_dense().tolist() == [EXPECTED[4], EXPECTED[1], EXPECTED[4]]


def test_a_row_may_have_values() -> None:
    rated = histories(torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5]))
    assert rated.rows(torch.tensor([4, 1])).tolist() == [[0, 2, 1, 0, 0.5], [0, 5, 0, 4, 0]]
    assert rated.rows(torch.tensor([4, 1]), distinct=True).tolist() == [[0, 2, 1, 0, 0.5], [0, 5, 0, 4, 0]]


def test_rows_are_made_without_asking_the_device() -> None:
    own, users = histories(), torch.tensor([4, 1])
    with no_sync():
        own.rows(users)
        own.rows(users, distinct=True)


def test_histories_of_nobody_are_empty() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    assert not Histories(nothing, nothing, 3, 4).rows(torch.tensor([1, 2])).any()


def test_repeated_pairs_count_once_with_the_last_value_and_padding_not_at_all() -> None:
    table = {"user_id": ["b", "a", "b", "a"], "item_id": ["x", "y", "x", "x"], "rating": [1, 2, 3, 4]}
    table["timestamp"] = [4, 3, 2, 1]
    data = build("BPR", {name: [*values, *values[:1]] for name, values in table.items()}, **SPLIT).train.dataset
    data.inter_feat = Interaction(
        {"user_id": [1, 2, 1, 2, 1], "item_id": [1, 2, 1, 1, 0], "rating": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])}
    )
    users, items, values = unique_pairs(data, "rating")
    assert list(zip(users.tolist(), items.tolist(), values.tolist(), strict=True)) == [(1, 1, 3), (2, 1, 4), (2, 2, 2)]


SPLIT = {"eval_args": {"split": {"RS": [0.5, 0.5, 0]}, "group_by": "none"}, "cold_users": "keep", "topk": [1]} | {
    "valid_metric": "MRR@1"
}


def test_common_users_are_the_product_of_the_matrix_with_itself() -> None:
    dense = histories().rows(torch.arange(6))
    assert torch.equal(common_users(histories()).to_dense(), dense.T @ dense)


@pytest.mark.parametrize("sparse", [True, False])
def test_similarities_of_the_items_of_a_user_add_up(sparse: bool) -> None:
    weights = torch.arange(25.0).view(5, 5)
    found = similarity_scores(histories(), torch.tensor([4, 3]), weights.to_sparse_csr() if sparse else weights)
    assert found.tolist() == [(weights[1] + weights[2] + weights[4]).tolist(), [0.0] * 5]


class Mirror(AutoEncoderMixin, GeneralRecommender):
    """An autoencoder as RecBole's users write them, its spelling included."""

    def __init__(self, config: object, dataset: object) -> None:
        super().__init__(config, dataset)  # type: ignore[arg-type]
        self.build_histroy_items(dataset)  # type: ignore[arg-type]


def test_an_autoencoder_written_for_recbole_has_its_rating_matrix() -> None:
    built = build("MultiVAE")
    model = Mirror(built.config, built.train.dataset)
    users = torch.tensor([3, 1])
    assert torch.equal(model.get_rating_matrix(users).double(), built.matrix()[users])
