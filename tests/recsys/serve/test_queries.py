"""What may be asked of a recommender besides users, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.serve.ready import ready
from tests.recsys.suites.every_model import tables
from treadle.errors import ConfigError, DataError
from treadle.recsys import Interaction, Recommender
from treadle.recsys.serve.queries import MOST_HISTORY


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return ready("EASE")[1]


def test_a_history_counts_more_than_what_the_data_has_of_the_user(recommender: Recommender) -> None:
    given = recommender.recommend("u3", k=3, history=["i0", "i5"], exclude_seen=False)
    nobody = recommender.recommend(history=["i0", "i5"], k=3, exclude_seen=False)
    assert given["u3"] == nobody["history 1"]
    own = recommender.recommend("u3", k=12, history=["i0", "i5"])["u3"]
    table = tables("EASE")["inter"]
    bought = {item for user, item in zip(table["user_id"], table["item_id"], strict=True) if user == "u3"}
    assert not set(own) & ({"i0", "i5"} | bought)


def test_several_histories_are_served_at_once_with_and_without_users(recommender: Recommender) -> None:
    alone = [recommender.recommend(history=one, k=3)["history 1"] for one in (["i0"], ["i4", "i5"])]
    both = recommender.recommend(history=[["i0"], ["i4", "i5"]], k=3)
    assert [both["history 1"], both["history 2"]] == alone
    mixed = recommender.recommend(["u3", "new", "other"], k=3, history={"new": ["i0"]})
    assert mixed["new"] == alone[0]
    assert mixed["u3"] == recommender.recommend("u3", k=3)["u3"]
    assert mixed.cold.tolist() == [False, False, True]
    assert recommender.recommend(["new", "u3"], k=3, history=[["i0"], None])["new"] == alone[0]


def test_items_are_left_out_and_lists_kept_to_some(recommender: Recommender) -> None:
    best = recommender.recommend("u3", k=5)["u3"]
    assert recommender.recommend("u3", k=4, exclude=best[:1])["u3"] == best[1:]
    assert recommender.recommend("u3", k=3, filter=[best[4], best[2]])["u3"] == [best[2], best[4]]
    # Somebody unknown, who gets what is popular, is kept to them as well.
    assert recommender.recommend("new", k=3, filter=[best[2]])["new"] == [best[2]]


def test_a_list_is_kept_to_items_with_some_values() -> None:
    _, shop = ready("DIN")
    cheap = shop.recommend("u3", k=9, filter={"price": {"max": 0.45}}, exclude_seen=False)["u3"]
    assert set(cheap) == {f"i{item}" for item in range(5)}
    some = shop.recommend("u3", k=9, filter={"price": {"min": 0.25, "max": 0.45}}, exclude_seen=False)["u3"]
    assert set(some) == {"i3", "i4"}
    _, kinds = ready("S3Rec")
    found = kinds.recommend("u3", k=9, filter={"kinds": ["c"]}, exclude_seen=False)["u3"]
    assert set(found) == {"i2", "i5", "i8"}
    with pytest.raises(DataError, match="the data has no kinds 'q'"):
        kinds.recommend("u3", filter={"kinds": "q"})


def test_an_item_is_explained_by_the_items_of_the_history_most_like_it(recommender: Recommender) -> None:
    found = recommender.recommend(history=["i0", "i5", "i7"], k=3, explain=2)
    items = recommender.items
    best, *_ = found["history 1"]
    with torch.no_grad():
        weights = recommender.similarities()(torch.tensor([items.id_of(best)]))[0]
    likeness = {one: float(weights[items.id_of(one)]) for one in ("i0", "i5", "i7")}
    positive = sorted((one for one in likeness if likeness[one] > 0), key=lambda one: -likeness[one])
    assert found.because[0][0] == positive[:2]
    assert recommender.recommend("u3", k=2, explain=1).because[0][0]


def test_a_model_that_compares_no_items_explains_nothing() -> None:
    with pytest.raises(ConfigError, match="Pop has no vectors of items: it only counts"):
        ready("Pop")[1].recommend("u3", k=2, explain=1)


def test_unknown_items_of_a_history_are_refused_or_skipped(recommender: Recommender) -> None:
    with pytest.raises(DataError, match="history: the data has no item_id 'i99'"):
        recommender.recommend(history=["i0", "i99"])
    with pytest.raises(DataError, match=r"history: the data has no item_id 'i98', 'i99'"):
        recommender.recommend(history=["i98", "i99", "i0"])
    skipped = recommender.recommend(history=["i0", "i99"], k=3, unknown="skip")
    assert skipped["history 1"] == recommender.recommend(history=["i0"], k=3)["history 1"]
    with pytest.raises(DataError, match="the data has none of the 2 items of the history"):
        recommender.recommend(history=["i98", "i99"], unknown="skip")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "recommend needs users=, by their tokens, or history="),
    "empty history": ({"history": []}, "the history is empty and says nothing of anybody"),
    "one empty of two": ({"history": [["i0"], []]}, "the history is empty"),
    "text": ({"history": "i0"}, "history='i0' is a str; give a list of items, oldest first"),
    "number": ({"history": 5}, "history=5 is a int; give a list of items"),
    "mixed": ({"history": ["i0", ["i1"]]}, "history mixes items and lists of items"),
    "floats": ({"history": [0.5]}, "history has 0.5, a float; tokens are texts or whole numbers"),
    "none": ({"history": [["i0", None]]}, "history has None, a NoneType"),
    "too few": ({"users": ["a", "b"], "history": [["i0"]]}, "there are 2 users and 1 histories"),
    "nobody's": ({"users": ["a"], "history": {"b": ["i0"]}}, "history has 'b', who is not among users"),
    "no users": ({"history": {"b": ["i0"]}}, "history is a dict by user, and users= is missing"),
    "no k": ({"users": "u3", "k": 0}, "k=0: recommend at least one item"),
    "k as text": ({"users": "u3", "k": "5"}, "k='5' is a str, and no number of items"),
    "exclude": ({"users": "u3", "exclude": ["x"]}, "exclude: the data has no item_id 'x'"),
    "filter": ({"users": "u3", "filter": {"colour": "red"}}, "filter names 'colour', which is no field of items"),
    "filter item": ({"users": "u3", "filter": ["x"]}, "filter: the data has no item_id 'x'"),
    "filter number": ({"users": "u3", "filter": 1.5}, "filter=1.5: 1.5 is no token, and no list of tokens"),
    "explain": ({"users": "u3", "explain": -1}, "explain=-1 is a number of items, from 0"),
    "unknown": ({"users": "u3", "unknown": "maybe"}, "unknown='maybe' is 'refuse' or 'skip'"),
    "seen": ({"users": "u3", "exclude_seen": "no"}, "exclude_seen='no' is True, False or None"),
    "user": ({"users": [None]}, "users has None, a NoneType; tokens are texts or whole numbers"),
    "user dict": ({"users": {"u3": 1}}, "is no token, and no list of tokens"),
    "padding": ({"history": ["[PAD]"]}, r"the data has no item_id '\[PAD\]'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_meant_is_refused(recommender: Recommender, case: str) -> None:
    given, message = WRONG[case]
    with pytest.raises((ConfigError, DataError), match=message):
        recommender.recommend(**given)


def test_an_enormous_history_is_refused_before_any_work(recommender: Recommender) -> None:
    with pytest.raises(ConfigError, match=r"the history has 100,001 items; give the last 100,000 at most"):
        recommender.recommend(history=["i0"] * (MOST_HISTORY + 1))
    long = recommender.recommend(history=["i0", "i4"] * 40_000, k=3)
    assert long["history 1"] == recommender.recommend(history=["i0", "i4"], k=3)["history 1"]


def test_numbers_that_were_changed_have_no_range() -> None:
    _, shop = ready("DIEN", normalize_all=True)
    with pytest.raises(ConfigError, match=r"scaled to 0\.\.1 by normalize_all, so that it has no range"):
        shop.recommend("u3", filter={"price": {"max": 0.4}})
    _, plain = ready("DIN")
    for wrong in (5, {"most": 3}, {}):
        with pytest.raises(ConfigError, match=r"a field of numbers takes \{'min': ..., 'max': ...\}"):
            plain.recommend("u3", filter={"price": wrong})
    with pytest.raises(ConfigError, match="has 'a', which is no number"):
        plain.recommend("u3", filter={"price": {"max": "a"}})


def test_numbers_are_tokens_too(recommender: Recommender) -> None:
    assert recommender.recommend([np.int64(5), 7], k=2).queries == ["5", "7"]


# Items that the data does not have ------------------------------------------------------------------------------


def test_a_new_item_is_ranked_by_its_features_and_as_the_mean_of_all_ids() -> None:
    run, shop = ready.__wrapped__("FM", numerical_features=["price"])
    found = shop.recommend(["u3", "u4"], k=10, exclude_seen=False, new_items={"n": {"price": 0.3}})
    without = shop.recommend("u3", k=10, exclude_seen=False)["u3"]
    assert [item for item in found["u3"] if item != "n"] == without[:9]
    score = {row.item: row.score for row in found if row.query == "u3"}["n"]
    # By hand: the score of an item of this price whose id has the mean embedding and the mean weight.
    data, model = run.train.dataset, run.model
    own = data.join(Interaction({"user_id": torch.tensor([data.token2id("user_id", "u3")])}))
    own.update({"item_id": torch.tensor([1]), "price": torch.tensor([[0.3, 1.0]])})
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for part in (model, model.first_order_linear):
            begin = part.token_field_offsets[part.token_field_names.index("item_id")]
            table = part.token_embedding_table.embedding.weight
            table[begin + 1] = table[begin + 1 : begin + 11].mean(dim=0)
        by_hand = float(model.predict(own))
        model.load_state_dict(before)
    assert score == pytest.approx(by_hand, rel=1e-5)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


NEW: dict[str, tuple[str, Any, str]] = {
    "other model": ("BPR", {"n": {"price": 1}}, "new_items: BPR knows items by what was done with them"),
    "known item": ("FM", {"i3": {"price": 1}}, "new_items has 'i3', which the data has already"),
    "other field": ("FM", {"n": {"prize": 1}}, "new_items.'n'. names 'prize', which is no field of items; did you"),
    "no dict": ("FM", {"n": 3}, "new_items.'n'. is a int, and no dict of features"),
    "no items": ("FM", [], "is a dict by the tokens of new items"),
    "no number": ("FM", {"n": {}}, "new_items.'n'. needs a number for 'price', not None"),
}


@pytest.mark.parametrize("case", NEW)
def test_new_items_that_cannot_be_scored_are_refused(case: str) -> None:
    name, items, message = NEW[case]
    with pytest.raises(ConfigError, match=message):
        ready(name)[1].recommend("u3", k=2, new_items=items)


def test_new_items_are_not_ranked_by_histories() -> None:
    with pytest.raises(ConfigError, match="leave history and filter out"):
        ready("FM")[1].recommend("u3", new_items={"n": {"price": 1}}, filter=["i1"])
