"""People whom a model was not trained on are served from what they did, or the model says why not."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.serve.ready import ready
from tests.recsys.suites.every_model import MODELS
from treadle.errors import ConfigError
from treadle.recsys import Recommender

SAME = {"Pop", "EASE", "SLIM", "ItemKNN", "GFCF", "MultiVAE", "RecVAE", "DMF", "ELSA", "RP3beta"}
SAME |= {"GRU4Rec", "NARM", "SASRec", "BERT4Rec", "S3Rec", "DIN", "gSASRec", "eSASRec"}
"""Models whose user is what the user did: a known user gets the same list by that history."""
NEAR = {"BPR", "LightGCN", "NGCF", "SpectralCF", "SGL", "NCL", "SimpleX", "CKE", "KGAT", "KGIN", "CDAE"}
NEAR |= {"UltraGCN", "IALS", "MKR"}
"""Models whose users have vectors of their own: that of somebody new is found from the history."""
SERVED = {"Caser", "DIEN"}
"""Models of sequences in which a user has a part besides."""
REASONS = {
    **dict.fromkeys(("LR", "FM", "WideDeep", "DeepFM", "DCN", "DCNv2"), "it scores rows of fields"),
    **dict.fromkeys(("NeuMF", "GCMC", "CFKG", "KGCN", "KTUP"), "no inner product"),
    "UserKNN": "it has found something for each of them",
    "HSTU": "it reads a column that a list of items has not: there is no column 'timestamp_list'",
    "RippleNet": "give it a method user_vectors",
}
"""Models that cannot, and why."""


def past(recommender: Recommender, user: str) -> list[str]:
    """Return what the data has of a user, oldest first, as far as the model is to know it."""
    data: Any = recommender.dataset
    flat = getattr(data, "flat", None)
    rows = data.inter_feat if flat is None else flat
    own = rows["user_id"] == data.token2id("user_id", user)
    tokens: list[str] = data.id2token("item_id", rows["item_id"][own]).tolist()
    return tokens


def refused(recommender: Recommender, history: list[str]) -> str | None:
    """Return why a recommender does not go by a history; None if it does."""
    try:
        recommender.recommend(history=history, k=4)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", MODELS)
def test_every_model_serves_a_history_or_says_why_not(name: str) -> None:
    _, recommender = ready(name)
    history = past(recommender, "u3")
    refusal = refused(recommender, history)
    if refusal is not None:
        assert refusal.startswith(f"{name} cannot recommend by a history: ")
        assert REASONS.get(name, "") in refusal
        assert name not in SAME | NEAR | SERVED
        return
    assert name not in REASONS
    found = recommender.recommend(history=history, k=4)
    assert not found.cold[0]
    assert recommender.repeatable or not set(found["history 1"]) & set(history)
    known = recommender.recommend("u3", k=4, exclude_seen=False)
    again = recommender.recommend(history=history, k=4, exclude_seen=False)
    if name in SAME:
        assert again["history 1"] == known["u3"]
        np.testing.assert_allclose(again.scores, known.scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["BPR", "SimpleX"])
def test_a_solved_vector_ranks_what_a_user_liked_like_the_vector_that_was_trained(name: str) -> None:
    run, recommender = ready(name)
    rows = run.model.user_vectors() if name == "SimpleX" else run.model.user_embedding.weight
    items = recommender.item_vectors()
    # A user whose vector is what the closed form makes of two items has it found by these items.
    scorer: Any = recommender.history_scorer()
    history = torch.tensor([3, 5])
    matrix = scorer.items[history].T @ scorer.items[history] + scorer.confidence * scorer.items.T @ scorer.items
    wanted = torch.linalg.inv(matrix + scorer.penalty * torch.eye(len(matrix))) @ scorer.items[history].sum(dim=0)
    torch.testing.assert_close(scorer.vectors([history])[0], wanted * scorer.times, rtol=1e-3, atol=1e-5)
    assert rows.shape[1] == items.shape[1]


def test_neighbours_of_users_refuse_a_history() -> None:
    _, recommender = ready("ItemKNN", knn_method="user")
    with pytest.raises(ConfigError, match="ItemKNN cannot recommend by a history: its users are more than their"):
        recommender.recommend(history=["i1"], k=2)


def test_a_matrix_of_ratings_refuses_a_history_without_them() -> None:
    _, recommender = ready("DMF", inter_matrix_type="rating")
    with pytest.raises(ConfigError, match="DMF cannot recommend by a history: inter_matrix_type='rating' goes by"):
        recommender.recommend(history=["i1"], k=2)


def test_only_the_last_items_of_a_long_history_count_for_a_model_of_sequences() -> None:
    run, recommender = ready("SASRec")
    long = [f"i{place % 10}" for place in range(50)]
    short = long[-run.train.dataset.max_item_list_len :]
    lists = recommender.recommend(history=[long, short], k=5, exclude_seen=False)
    assert lists["history 1"] == lists["history 2"]


def test_a_new_training_is_seen_by_the_next_question() -> None:
    run, recommender = ready("BPR")
    before = recommender.recommend(history=["i1", "i2"], k=5).scores
    with torch.no_grad():
        run.model.item_embedding.weight.mul_(-2)
    assert not np.allclose(recommender.recommend(history=["i1", "i2"], k=5).scores, before)
    with torch.no_grad():
        run.model.item_embedding.weight.div_(-2)
    np.testing.assert_allclose(recommender.recommend(history=["i1", "i2"], k=5).scores, before, rtol=1e-5)
