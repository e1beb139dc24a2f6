"""Neighbours and ripple sets: seeded, of fixed size, and only what the graph has."""

import torch

from treadle.recsys.data.sampling.neighbours import Neighbours, drawn_places


def hub() -> Neighbours:
    """Return a graph in which 1 has ten neighbours, 2 has two, 11 leads on to 2, and 3 has none."""
    heads = torch.tensor([1] * 10 + [2, 2, 11])
    tails = torch.tensor([*range(4, 14), 1, 3, 2])
    return Neighbours(heads, torch.arange(13) + 1, tails, 14)


def test_an_entity_with_enough_neighbours_has_different_ones_and_one_with_few_has_each_as_often() -> None:
    entities, relations = hub().sample(4, seed=3)
    assert entities.shape == relations.shape == (14, 4)
    assert len(set(entities[1].tolist())) == 4
    assert set(entities[1].tolist()) <= set(range(4, 14))
    assert sorted(entities[2].tolist()) == [1, 1, 3, 3]
    assert entities[3].tolist() == relations[3].tolist() == [0, 0, 0, 0]


def test_an_entity_and_its_relation_are_of_one_triple() -> None:
    graph = hub()
    known = set(zip(graph.heads.tolist(), graph.relations.tolist(), graph.tails.tolist(), strict=True))
    entities, relations = graph.sample(3, seed=0)
    for head in (1, 2, 11):
        assert {(head, *pair) for pair in zip(relations[head].tolist(), entities[head].tolist(), strict=True)} <= known


def test_the_seed_decides_and_every_neighbour_is_as_likely() -> None:
    graph = hub()
    assert torch.equal(graph.sample(4, seed=1)[0], graph.sample(4, seed=1)[0])
    drawn = torch.stack([graph.sample(4, seed=seed)[0][1] for seed in range(1500)])
    counts = torch.bincount(drawn.flatten(), minlength=14)[4:]
    # 600 each are expected, with a standard deviation of about 20.
    assert counts.sum() == 6000
    assert (counts - 600).abs().max() < 100


def test_both_ways_has_every_triple_backwards_by_the_same_relation() -> None:
    graph = Neighbours.both_ways(torch.tensor([1]), torch.tensor([7]), torch.tensor([2]), 3)
    entities, relations = graph.sample(1, seed=0)
    assert (entities.tolist(), relations.tolist()) == ([[0], [2], [1]], [[0], [7], [7]])


def test_places_are_spread_over_all_of_a_count() -> None:
    places = drawn_places(torch.tensor([0, 1, 3, 8]), 4, seed=5)
    assert places[0].tolist() == places[1].tolist() == [0, 0, 0, 0]
    assert sorted(set(places[2].tolist())) == [0, 1, 2]
    assert len(set(places[3].tolist())) == 4
    assert places.max() < 8


def ripple(users: list[int], items: list[int], **given: int) -> list[list[list[tuple[int, ...]]]]:
    """Return the triples of each hop and user."""
    options = {"hops": 3, "size": 4, "seed": 2, **given}
    found = hub().ripple_sets(torch.tensor(users), torch.tensor(items), 4, **options)
    hops, people, size = found.heads.shape
    return [
        [[tuple(int(part[hop, user, place]) for part in found) for place in range(size)] for user in range(people)]
        for hop in range(hops)
    ]


def test_a_hop_begins_with_what_the_user_liked_and_the_next_with_its_tails() -> None:
    graph = hub()
    known = set(zip(graph.heads.tolist(), graph.relations.tolist(), graph.tails.tolist(), strict=True))
    sets = ripple([1, 2, 2], [2, 1, 2])
    assert {triple for hop in sets for triple in hop[1]} <= known
    assert {head for head, _, _ in sets[0][1]} == {2}
    assert {head for head, _, _ in sets[1][1]} <= {1, 3}
    assert {head for head, _, _ in sets[0][2]} <= {1, 2}
    assert len(set(sets[0][2])) == 4
    for hop in (1, 2):
        assert {head for head, _, _ in sets[hop][2]} <= {tail for _, _, tail in sets[hop - 1][2]}


def test_where_no_triple_leads_on_the_hop_before_stays_and_nobody_has_padding() -> None:
    graph = Neighbours(torch.tensor([1]), torch.tensor([5]), torch.tensor([2]), 4)
    found = graph.ripple_sets(torch.tensor([2, 1]), torch.tensor([3, 1]), 3, hops=2, size=2, seed=0)
    assert found.heads[:, 1].tolist() == [[1, 1], [1, 1]]
    assert found.tails[:, 1].tolist() == [[2, 2], [2, 2]]
    for part in found:
        assert part[:, 0].tolist() == part[:, 2].tolist() == [[0, 0], [0, 0]]


def test_other_users_do_not_change_what_a_user_has() -> None:
    assert [hop[2] for hop in ripple([2], [1])] == [hop[2] for hop in ripple([1, 2, 3], [2, 1, 11])]
