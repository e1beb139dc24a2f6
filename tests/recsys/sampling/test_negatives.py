"""Negatives are never seen, are distributed as they should be, and depend on their place alone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.guards.no_sync import DEVICES, no_sync
from treadle.errors import ConfigError, DataError
from treadle.recsys.data.sampling import (
    HardNegatives,
    NegativeSampler,
    PopularityNegatives,
    UniformNegatives,
    UserItems,
)
from treadle.recsys.data.sampling import negative_samplers as uniform_negatives

CHI_SQUARE_99 = {2: 9.21, 3: 11.34, 4: 13.28, 5: 15.09}
"""What chi-square stays below in 99 of 100 cases, by degrees of freedom."""


def items_of(*own: list[int], num_items: int = 8, first_item: int = 1) -> UserItems:
    """Return the items of users 0, 1 and so on."""
    users = [user for user, items in enumerate(own) for _ in items]
    flat = [item for items in own for item in items]
    as_ids = (torch.tensor(one, dtype=torch.int64) for one in (users, flat))
    return UserItems(*as_ids, num_users=len(own), num_items=num_items, first_item=first_item)


SEEN = items_of([1, 4], [], [2, 3, 4, 5, 6, 7], [1, 2, 3, 5, 6, 7])
COUNTS = torch.tensor([9, 5, 1, 2, 7, 1, 3, 1])
"""How often items were used in training; the first is padding, and its count means nothing."""
SAMPLERS = {
    "uniform": lambda seen, counts: UniformNegatives(seen),
    "popularity": lambda seen, counts: PopularityNegatives(seen, counts),
    "popularity with an exponent": lambda seen, counts: PopularityNegatives(seen, counts, alpha=0.75),
    "smoothed popularity": lambda seen, counts: PopularityNegatives(seen, counts, smoothing=0.5),
}
every_kind = pytest.mark.parametrize("kind", SAMPLERS)


def make(kind: str, seen: UserItems = SEEN, counts: Tensor = COUNTS) -> NegativeSampler:
    return SAMPLERS[kind](seen, counts)


@st.composite
def tables(draw: Any) -> tuple[UserItems, Tensor, Tensor]:
    """Draw what users have seen, counts of items, and users who have a negative."""
    num_items, first = draw(st.integers(2, 9)), draw(st.integers(0, 1))
    everything = list(range(first, num_items))
    own = draw(st.lists(st.sets(st.sampled_from(everything)), min_size=1, max_size=5))
    own = [sorted(items)[: len(everything) - 1] for items in own]
    counts = draw(st.lists(st.integers(1, 50), min_size=num_items, max_size=num_items))
    users = draw(st.lists(st.integers(0, len(own) - 1), min_size=1, max_size=8))
    return items_of(*own, num_items=num_items, first_item=first), torch.tensor(counts), torch.tensor(users)


@every_kind
@given(case=tables(), seed=st.integers(-(2**70), 2**70), count=st.integers(1, 5))
def test_what_was_seen_is_never_drawn(kind: str, case: tuple[UserItems, Tensor, Tensor], seed: int, count: int) -> None:
    seen, counts, users = case
    drawn = make(kind, seen, counts).sample(users, count, seed=seed)
    assert drawn.shape == (len(users), count)
    assert int(drawn.min()) >= seen.first_item
    assert int(drawn.max()) < seen.num_items
    assert not seen.contains(users.unsqueeze(1), drawn).any()


@every_kind
def test_a_user_who_saw_all_items_but_one_gets_that_one(kind: str) -> None:
    drawn = make(kind).sample(torch.tensor([2, 3]), 100, seed=0)
    assert torch.equal(drawn, torch.tensor([[1], [4]]).expand(2, 100))


@given(case=tables(), seed=st.integers(0, 2**60))
def test_looking_unseen_items_up_gives_what_searching_for_them_does(
    case: tuple[UserItems, Tensor, Tensor], seed: int
) -> None:
    seen, _, users = case
    searched, listed = UniformNegatives(seen), UniformNegatives(seen)
    assert not listed._may_list(torch.zeros(3))
    listed._listed()
    assert torch.equal(listed.sample(users, 20, seed=seed), searched.sample(users, 20, seed=seed))


@pytest.mark.parametrize("stretches", [1, 8, 1 << 22])
def test_a_table_of_stretches_gives_what_a_search_does(monkeypatch: pytest.MonkeyPatch, stretches: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # Users with one item, with many beside each other, and with none.
    pairs = torch.unique(torch.randint(0, 40 * 50, (300,), generator=generator))
    seen = UserItems(pairs // 50, 1 + pairs % 50, num_users=42, num_items=51)
    searched, looked_up = UniformNegatives(seen), UniformNegatives(seen)
    expected = searched.sample(torch.arange(42), 30, seed=3)
    for name, value in {"LARGEST_LIST": 0, "MANY": 1, "STRETCHES": stretches}.items():
        monkeypatch.setattr(uniform_negatives, name, value)
    assert torch.equal(looked_up.sample(torch.arange(42), 30, seed=3), expected)
    assert looked_up._stretches is not None


def test_unseen_items_are_listed_once_many_are_drawn_and_only_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, users = UniformNegatives(SEEN), torch.tensor([0, 1, 2, 3])
    expected = sampler.sample(users, 5, seed=1)
    assert sampler._unseen is None
    sampler.sample(users, uniform_negatives.MANY // 4, seed=1)
    assert sampler._unseen is not None
    assert sampler._unseen.tolist() == [2, 3, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 4]
    assert torch.equal(sampler.sample(users, 5, seed=1), expected)
    monkeypatch.setattr(uniform_negatives, "LARGEST_LIST", 27)  # four users, seven items
    other = UniformNegatives(SEEN)
    other.sample(users, uniform_negatives.MANY, seed=1)
    assert other._unseen is None


def test_users_who_have_seen_everything_are_passed_over_in_the_list() -> None:
    everything = list(range(1, 8))
    seen = items_of([], everything, everything, [1, 2, 7], everything)
    sampler = UniformNegatives(seen, users=torch.tensor([0, 3]))
    assert sampler._listed().tolist() == [*everything, 3, 4, 5, 6]


@pytest.mark.parametrize(("num_items", "kept_as"), [(32_767, torch.int16), (40_000, torch.int32)])
def test_unseen_items_are_listed_in_integers_that_hold_them(num_items: int, kept_as: torch.dtype) -> None:
    last = torch.arange(num_items - 3, num_items)
    seen = UserItems(torch.tensor([0, 0, 1]), last, num_users=2, num_items=num_items)
    sampler, users = UniformNegatives(seen), torch.tensor([0, 1, 1])
    expected = sampler.sample(users, 50, seed=1)
    assert sampler._listed().dtype is kept_as
    assert torch.equal(sampler.sample(users, 50, seed=1), expected)
    assert int(sampler._listed()[-1]) == num_items - 2


def distance(sampler: NegativeSampler, user: int, shares: dict[int, float]) -> float:
    """Return the chi-square of 20,000 draws for `user` from the shares that items should have."""
    drawn = sampler.sample(torch.full((200,), user), 100, seed=5).flatten()
    counts = torch.bincount(drawn, minlength=8)
    assert set(drawn.unique().tolist()) <= set(shares)
    total = sum(shares.values())
    return sum(
        (int(counts[item]) - 20_000 * part / total) ** 2 / (20_000 * part / total) for item, part in shares.items()
    )


@pytest.mark.parametrize("user", [0, 1])
def test_uniform_negatives_are_equally_likely(user: int) -> None:
    unseen = [item for item in range(1, 8) if item not in SEEN.items[SEEN.users == user].tolist()]
    assert distance(make("uniform"), user, dict.fromkeys(unseen, 1.0)) < {5: 13.28, 7: 16.81}[len(unseen)]


@pytest.mark.parametrize(("alpha", "smoothing"), [(1.0, 0.0), (0.75, 0.0), (0.0, 0.0), (1.0, 2.0), (2.0, 0.5)])
def test_popular_negatives_are_as_likely_as_their_counts_among_the_unseen(alpha: float, smoothing: float) -> None:
    sampler = PopularityNegatives(SEEN, COUNTS, alpha=alpha, smoothing=smoothing)
    shares = {item: (int(COUNTS[item]) + smoothing) ** alpha for item in (2, 3, 5, 6, 7)}
    assert distance(sampler, 0, shares) < CHI_SQUARE_99[4]


def test_fact_7_items_that_training_does_not_have_are_drawn_by_popularity_only_if_asked_for() -> None:
    # RecBole counts training, validation and test together, so that its negatives tell what the test holds.
    counts = torch.tensor([0, 4, 0, 4, 0, 4, 0, 4])
    users = torch.zeros(50, dtype=torch.int64)
    assert set(PopularityNegatives(SEEN, counts, users=users).sample(users, 40, seed=1).unique().tolist()) == {3, 5, 7}
    smoothed = PopularityNegatives(SEEN, counts, smoothing=1.0).sample(users, 40, seed=1)
    assert set(smoothed.unique().tolist()) == {2, 3, 5, 6, 7}


@every_kind
def test_a_row_gets_the_same_negatives_in_any_batch(kind: str) -> None:
    sampler, users = make(kind), torch.tensor([0, 1, 2, 3, 1, 0, 0, 1])
    whole = sampler.sample(users, 3, seed=9)
    for start, stop in [(0, 3), (3, 4), (4, 8)]:
        part = sampler.sample(users[start:stop], 3, seed=9, positions=torch.arange(start, stop))
        assert torch.equal(part, whole[start:stop])
    order = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    assert torch.equal(sampler.sample(users[order], 3, seed=9, positions=order), whole[order])


@every_kind
def test_more_negatives_keep_the_first_ones(kind: str) -> None:
    users = torch.tensor([0, 1, 1, 0])
    assert torch.equal(make(kind).sample(users, 7, seed=4)[:, :2], make(kind).sample(users, 2, seed=4))


@every_kind
def test_another_seed_draws_others_and_the_generators_of_torch_are_not_touched(kind: str) -> None:
    sampler, users, state = make(kind), torch.zeros(64, dtype=torch.int64), torch.get_rng_state()
    first = sampler.sample(users, 4, seed=1)
    assert torch.equal(first, sampler.sample(users, 4, seed=1))
    assert not torch.equal(first, sampler.sample(users, 4, seed=2))
    assert torch.equal(torch.get_rng_state(), state)


@every_kind
@pytest.mark.parametrize("device", DEVICES)
def test_negatives_are_drawn_on_the_device_without_waiting_for_it(kind: str, device: str) -> None:
    sampler = make(kind, SEEN.to(device))
    users, seed = torch.tensor([0, 1, 2, 1], device=device), torch.tensor(3, device=device)
    with no_sync(device):
        drawn = sampler.sample(users, 5, seed=seed)
    assert drawn.device.type == device
    assert torch.equal(drawn.cpu(), make(kind).sample(users.cpu(), 5, seed=3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@every_kind
def test_a_captured_draw_follows_its_seed(kind: str) -> None:
    sampler, users = make(kind, SEEN.to("cuda")), torch.tensor([0, 1, 2, 1], device="cuda")
    seed = torch.tensor(0, device="cuda")
    sampler.sample(users, 5, seed=seed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = sampler.sample(users, 5, seed=seed)
    for value in (7, 8):
        seed.fill_(value)
        graph.replay()
        assert torch.equal(drawn, sampler.sample(users, 5, seed=value))


def test_a_target_is_the_only_item_that_a_sequence_is_not_trained_against() -> None:
    sampler = UniformNegatives(UserItems.only_itself(5))
    drawn = sampler.sample(torch.tensor([3]), 200, seed=0)
    assert set(drawn.flatten().tolist()) == {1, 2, 4}


@every_kind
def test_users_who_saw_everything_are_named_when_the_sampler_is_made(kind: str) -> None:
    everything = list(range(1, 8))
    seen = items_of(everything, [1], *[everything] * 6)
    with pytest.raises(
        DataError, match=r"users \[0, 2, 3, 4, 5\] and 2 more have no negative: they have seen every item"
    ):
        make(kind, seen)


def test_a_sampler_told_whom_it_will_be_asked_for_refuses_the_others_when_they_come() -> None:
    seen = items_of(list(range(1, 8)), [1])
    sampler = UniformNegatives(seen, users=torch.tensor([1, 1]))
    assert int(sampler.sample(torch.tensor([1]), 1, seed=0)) > 1
    message = (
        r"^users \[0\] have no negative: they have seen every item that UniformNegatives draws; leave them out, or"
    )
    with pytest.raises(DataError, match=message):
        sampler.sample(torch.tensor([1, 0]), 1, seed=0)


def test_a_user_who_saw_every_item_with_a_count_is_told_of_smoothing() -> None:
    counts = torch.tensor([0, 3, 0, 0, 2, 0, 0, 0])
    with pytest.raises(
        DataError, match=r"users \[0\] have no negative: .* set smoothing=1 so that items without a count"
    ):
        PopularityNegatives(SEEN, counts, users=torch.tensor([0]))


@pytest.mark.parametrize("count", [0, -1, 2**24])
def test_a_number_of_negatives_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"^count={count}: draw at least one negative"):
        make("uniform").sample(torch.tensor([0]), count, seed=0)


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        (torch.ones(3, dtype=torch.int64), {}, r"counts has the shape \(3,\); give one for each of 8 item ids"),
        (torch.ones(8), {}, "counts of items are integers, none of them below 0"),
        (-COUNTS, {}, "counts of items are integers, none of them below 0"),
        (COUNTS, {"alpha": -1.0}, r"alpha=-1.0, smoothing=0.0: neither may be negative or infinite"),
        (COUNTS, {"smoothing": float("nan")}, r"smoothing=nan: neither may be negative"),
        (torch.zeros(8, dtype=torch.int64), {}, "no item has a count: there is nothing that popularity could draw"),
        (COUNTS * 2**58, {}, "too much for 4 users; scale them down"),
    ],
)
def test_counts_that_cannot_be_meant_are_refused(counts: Tensor, options: dict[str, float], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        PopularityNegatives(SEEN, counts, **options)


def test_the_hardest_candidate_of_each_negative_is_kept() -> None:
    plain, users = make("uniform"), torch.tensor([0, 1, 1])
    scores = torch.tensor([0.0, 5.0, 1.0, 4.0, 9.0, 2.0, 8.0, 3.0])
    hard = HardNegatives(plain, lambda users, items: scores[items], candidates=4).sample(users, 2, seed=3)
    candidates = plain.sample(users, 8, seed=3).view(3, 2, 4)
    best = scores[candidates].argmax(dim=2)
    assert torch.equal(hard, candidates.gather(2, best.unsqueeze(2)).squeeze(2))


def test_of_equally_hard_candidates_the_first_stays() -> None:
    plain, users = make("uniform"), torch.tensor([0, 1])
    hard = HardNegatives(plain, lambda users, items: torch.zeros(items.shape), candidates=3)
    assert torch.equal(hard.sample(users, 2, seed=3), plain.sample(users, 6, seed=3)[:, ::3])


def test_hard_negatives_take_no_gradient_and_leave_the_mode_of_the_model() -> None:
    table = nn.Embedding(8, 2)
    table.train()

    def score(users: Tensor, items: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert table.training
        return table(items).sum(dim=2)

    HardNegatives(make("uniform"), score, candidates=2).sample(torch.tensor([0]), 3, seed=0)
    assert table.weight.grad is None


def test_a_scorer_of_hard_negatives_that_returns_another_shape_is_refused() -> None:
    hard = HardNegatives(make("uniform"), lambda users, items: items[:, :1].float(), candidates=2)
    with pytest.raises(ConfigError, match=r"returned the shape \(1, 1\) for pairs of the shape \(1, 6\)"):
        hard.sample(torch.tensor([0]), 3, seed=0)
    with pytest.raises(ConfigError, match=r"^candidates=0: draw at least one for each negative$"):
        HardNegatives(make("uniform"), lambda users, items: items.float(), candidates=0)
