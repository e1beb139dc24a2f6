"""What a model gives single users, by their ids."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.suites.every_model import make as make_any
from tests.recsys.trainer.runs import Run, make
from treadle.errors import ConfigError, DataError
from treadle.recsys.serve.case_study import full_sort_scores, full_sort_topk


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = make(tmp_path, epochs=1)
    run.fit()
    return run


@pytest.mark.parametrize("ids", [[3, 1], np.array([3, 1]), torch.tensor([3, 1])], ids=["list", "array", "tensor"])
def test_scores_are_the_models_without_what_users_have(run: Run, ids: Any) -> None:
    scores = full_sort_scores(ids, run.model, run.test)
    users, items = run.model.user_embedding.weight, run.model.item_embedding.weight
    expected = users[[3, 1]] @ items.T
    expected[:, 0] = -torch.inf
    for row, user in enumerate((3, 1)):
        for part in (run.train, run.valid):
            rows = part.dataset.inter_feat
            expected[row, rows["item_id"][rows["user_id"] == user]] = -torch.inf
    torch.testing.assert_close(scores, expected)


def test_the_best_items_come_with_their_scores(run: Run) -> None:
    scores = full_sort_scores([2, 5], run.model, run.test)
    best, items = full_sort_topk([2, 5], run.model, run.test, k=4)
    assert torch.equal(best, scores.sort(dim=1, descending=True).values[:, :4])
    assert torch.equal(scores.gather(1, items), best)


def test_they_stand_in_the_order_in_which_recommend_names_them(run: Run) -> None:
    _, items = full_sort_topk([2], run.model, run.test, k=3)
    tokens = run.test.dataset.id2token("item_id", items[0]).tolist()
    user = str(run.test.dataset.id2token("user_id", 2))
    everything = run.trainer.recommend([user], k=30, exclude_seen=False)[user]
    assert [token for token in everything if token in tokens] == tokens


def test_a_model_of_sequences_has_a_row_for_each_sequence(tmp_path: Path) -> None:
    run = make_any(tmp_path, "SASRec")
    scores = full_sort_scores([4, 2], run.model, run.test)
    rows = run.test.dataset.inter_feat["user_id"]
    picked = [int((rows == user).nonzero()[0]) for user in (4, 2)]
    run.model.eval()
    expected = run.model.full_sort_predict(run.test.dataset[torch.tensor(picked)]).view(2, -1)
    torch.testing.assert_close(scores[:, 1:], expected[:, 1:])
    assert (scores[:, 0] == -torch.inf).all()


def test_modes_of_modules_stay_as_they_were(run: Run) -> None:
    run.model.train()
    full_sort_scores([1], run.model, run.test)
    assert run.model.training


@pytest.mark.parametrize("user", [0, 25])
def test_an_id_that_is_no_user_is_refused(run: Run, user: int) -> None:
    with pytest.raises(DataError, match=f"there is no user with the id {user}; ids go from 1 to 24"):
        full_sort_scores([1, user], run.model, run.test)


def test_more_items_than_there_are_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="k=31 must be between 1 and the number of items, 30"):
        full_sort_topk([1], run.model, run.test, k=31)


def test_data_that_ranks_no_items_is_refused(run: Run) -> None:
    with pytest.raises(DataError, match="a TrainDataLoader does not rank all items; prepare the data with"):
        full_sort_scores([1], run.model, run.train)
