"""The models with a knowledge graph against their formulas, written out in loops."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.recsys.models.building import fill
from tests.recsys.models.tiny_graph import Built, build
from tests.recsys.models.tiny_ratings import all_scores
from treadle.errors import ConfigError
from treadle.recsys import Interaction
from treadle.recsys.models.graph import Edges, softmax_by_head
from treadle.recsys.models.knowledge_aware_recommender.kgin import distance_correlation, mutual_information
from treadle.recsys.models.layers.functional import BLOCK, projected

Array = np.ndarray[Any, Any]


def large(name: str, **settings: Any) -> Built:
    """Return a model with large weights, in float64 and in evaluation: nothing is random."""
    built = build(name, **settings)
    fill(built.model)
    built.model.double()
    built.model.eval()
    return built


def weights(built: Built) -> dict[str, Array]:
    return {name: value.detach().double().numpy() for name, value in built.model.state_dict().items()}


def rows(batch: Interaction, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(batch[name].tolist() for name in names), strict=True))


PAIR = ("user_id", "item_id", "neg_item_id")
TRIPLE = ("head_id", "relation_id", "tail_id", "neg_tail_id")


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def sigmoid(value: Any) -> Any:
    return 1 / (1 + np.exp(-value))


def unit(vector: Array) -> Array:
    return vector / np.linalg.norm(vector)


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def assert_same(found: Tensor, expected: Any) -> None:
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-9, atol=1e-9)


# Parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, BLOCK - 1, 3 * BLOCK + 5])
def test_each_row_is_multiplied_with_the_matrix_of_its_relation(number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    vectors = torch.randn(number, 2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(7, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    relations = torch.randint(0, 7, (number,), generator=generator)
    found, expected = projected(vectors, relations, matrices), torch.matmul(vectors, matrices[relations])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(projected(vectors[:, 0], relations, matrices), expected[:, 0])
    weight = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    for left, right in zip(
        *(torch.autograd.grad((one * weight).sum(), (vectors, matrices)) for one in (found, expected)), strict=True
    ):
        torch.testing.assert_close(left, right)


def test_edges_sum_the_tails_of_a_head_and_their_gradient_is_that_of_a_dense_matrix() -> None:
    heads, tails = torch.tensor([0, 0, 0, 2, 3]), torch.tensor([1, 4, 1, 0, 2])
    shares = torch.tensor([0.5, 2.0, 1.0, -1.0, 3.0], dtype=torch.float64)
    dense = torch.zeros(4, 5, dtype=torch.float64).index_put_((heads, tails), shares, accumulate=True)
    features = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    summed = Edges(heads, tails, 4, 5)(features, shares)
    torch.testing.assert_close(summed, dense @ features)
    weight = torch.randn(4, 3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((summed * weight).sum(), features)
    torch.testing.assert_close(gradient, dense.T @ weight)


def test_shares_by_head_do_not_overflow() -> None:
    edges = Edges(torch.tensor([1, 1, 3]), torch.tensor([0, 1, 2]), 4, 4)
    found = softmax_by_head(torch.tensor([1000.0, 1000.0 + math.log(3), -1000.0]), edges)
    torch.testing.assert_close(found, torch.tensor([0.25, 0.75, 1.0]), rtol=1e-4, atol=0)


# CKE and CFKG -------------------------------------------------------------------------------------------------


def test_cke_is_a_factorisation_and_transr() -> None:
    built = large("CKE", reg_weights=[0.3, 0.2])
    own, batch = weights(built), built.batch()
    matrices = own["trans_w.weight"].reshape(-1, 8, 6)
    items = own["item_embedding.weight"] + own["entity_embedding.weight"][:13]
    rec, of_rec = 0.0, 0.0
    for user, item, other in rows(batch, *PAIR):
        vectors = own["user_embedding.weight"][user], items[item], items[other]
        rec -= log_sigmoid(vectors[0] @ vectors[1] - vectors[0] @ vectors[2])
        of_rec += sum((vector**2).sum() for vector in vectors) / 2
    graph, of_graph = 0.0, 0.0
    for head, relation, *ends in rows(batch, *TRIPLE):
        turned = [unit(own["entity_embedding.weight"][one] @ matrices[relation]) for one in (head, *ends)]
        said = unit(own["relation_embedding.weight"][relation])
        near, far = (((turned[0] + said - end) ** 2).sum() for end in turned[1:])
        graph -= log_sigmoid(far - near)
        of_graph += 2.0  # four vectors of length 1, half the square of each
    number = len(batch)
    found = built.model.calculate_loss(batch)
    assert_same(found[0], rec / number)
    assert_same(found[1], graph / number)
    assert_same(found[2], (0.3 * of_rec + 0.2 * of_graph) / number)
    assert_same(all_scores(built), own["user_embedding.weight"] @ items.T)


@pytest.mark.parametrize("kind", ["inner_product", "transe"])
def test_cfkg_has_choosing_as_the_last_relation(kind: str) -> None:
    built = large("CFKG", loss_function=kind, margin=0.7)
    own, batch = weights(built), built.batch()
    entities, relations = own["entity_embedding.weight"], own["relation_embedding.weight"]

    def score(start: Array, end: int) -> float:
        return float(
            start @ entities[end] if kind == "inner_product" else -np.linalg.norm(start - entities[end] + 1e-6)
        )

    starts = [
        (own["user_embedding.weight"][user] + relations[-1], right, wrong) for user, right, wrong in rows(batch, *PAIR)
    ]
    starts += [(entities[head] + relations[said], right, wrong) for head, said, right, wrong in rows(batch, *TRIPLE)]
    total = 0.0
    for start, right, wrong in starts:
        good, bad = score(start, right), score(start, wrong)
        total += softplus(-good) + softplus(bad) if kind == "inner_product" else max(0.0, 0.7 + bad - good)
    assert_same(built.model.calculate_loss(batch), total / len(starts))


# KTUP ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gumbel", [True, False])
def test_ktup_translates_users_to_items_on_the_plane_of_a_preference(gumbel: bool) -> None:
    built = large("KTUP", use_st_gumbel=gumbel)
    own = weights(built)
    wishes = (own["pref_embedding.weight"] + own["relation_embedding.weight"]) / 2
    normals = (own["pref_norm_embedding.weight"] + own["relation_norm_embedding.weight"]) / 2
    user, item = own["user_embedding.weight"][3], own["item_embedding.weight"][2] + own["entity_embedding.weight"][2]
    shares = softmax(wishes @ (user + item))
    if gumbel:
        shares = np.eye(len(shares))[shares.argmax()]
    wish, normal = shares @ wishes, unit(shares @ normals)
    apart = (user - user @ normal * normal) + wish - (item - item @ normal * normal)
    found = built.model.predict(Interaction({"user_id": torch.tensor([3]), "item_id": torch.tensor([2])}))
    assert_same(found, [-(apart**2).sum()])


def test_ktup_learns_triples_with_a_margin_keeps_to_planes_and_aligns_items() -> None:
    built = large("KTUP", margin=0.9, kg_weight=0.5, align_weight=0.25)
    own, batch = weights(built), built.batch()
    entities, total, off, above, aligned = own["entity_embedding.weight"], 0.0, 0.0, 0.0, []
    for head, relation, *ends in rows(batch, *TRIPLE):
        said, normal = own["relation_embedding.weight"][relation], unit(own["relation_norm_embedding.weight"][relation])
        flat = [entities[one] - entities[one] @ normal * normal for one in (head, *ends)]
        near, far = (((flat[0] + said - end) ** 2).sum() for end in flat[1:])
        total += max(0.0, 0.9 + near - far)
        off += (unit(said) @ normal) ** 2
        above += sum(max(0.0, (vector**2).sum() - 1) for vector in (*(entities[one] for one in (head, *ends)), said))
        apart = [((own["item_embedding.weight"][one] - entities[one]) ** 2).sum() for one in (head, *ends) if one < 13]
        aligned += apart
    loss, alignment = built.model.calculate_kg_loss(batch)
    assert_same(loss, 0.5 * (total + off + above) / len(batch))
    assert_same(alignment, 0.25 * np.mean(aligned))


def test_ktup_ranks_pairs_and_keeps_preferences_on_their_planes() -> None:
    built = large("KTUP", align_weight=0.5)
    own, batch = weights(built), built.batch()
    users, items, others = (batch[name] for name in PAIR)
    good, bad = (
        built.model.predict(Interaction({"user_id": users, "item_id": some})).detach().numpy()
        for some in (items, others)
    )
    wishes, normals = own["pref_embedding.weight"], own["pref_norm_embedding.weight"]
    off = np.mean([(unit(wish) @ unit(normal)) ** 2 for wish, normal in zip(wishes, normals, strict=True)])
    loss, alignment = built.model.calculate_loss(batch)
    assert_same(loss, -np.mean([log_sigmoid(value) for value in good - bad]) + off)
    both = torch.cat([items, others]).numpy()
    apart = ((own["item_embedding.weight"][both] - own["entity_embedding.weight"][both]) ** 2).sum(axis=1)
    assert_same(alignment, 0.5 * apart.mean())


# KGAT ---------------------------------------------------------------------------------------------------------


def collaborative(built: Built) -> list[tuple[int, int, int]]:
    """Return the triples of users, items and entities."""
    data = built.train.dataset
    pairs, last, first = (
        set(zip(*(ids.tolist() for ids in data.user_item_pairs()), strict=True)),
        data.relation_num - 1,
        data.user_num,
    )
    found = [(user, last, first + item) for user, item in pairs] + [(first + item, last, user) for user, item in pairs]
    graph = zip(data.head_entities.tolist(), data.relations.tolist(), data.tail_entities.tolist(), strict=True)
    return found + [(first + head, relation, first + tail) for head, relation, tail in graph]


def kgat_forward(built: Built, attention: dict[tuple[int, int, int], float], kind: str) -> Array:
    """Return the embeddings of all nodes, those of all layers side by side, by loops over triples."""
    own = weights(built)
    layer = np.concatenate([own["user_embedding.weight"], own["entity_embedding.weight"]])
    found = [layer]
    for place in range(len(built.model.aggregator_layers)):
        heard = np.zeros_like(layer)
        for (head, _, tail), share in attention.items():
            heard[head] += share * layer[tail]
        named = f"aggregator_layers.{place}."

        def turned(values: Array, matrix: str, named: str = named) -> Array:
            values = values @ own[f"{named}{matrix}.weight"].T + own[f"{named}{matrix}.bias"]
            return np.where(values > 0, values, 0.01 * values)

        if kind == "bi":
            layer = turned(layer + heard, "W1") + turned(layer * heard, "W2")
        else:
            layer = turned(layer + heard if kind == "gcn" else np.concatenate([layer, heard], axis=1), "W")
        found.append(layer / np.linalg.norm(layer, axis=1, keepdims=True))
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("kind", ["bi", "gcn", "graphsage"])
def test_kgat_hears_each_relation_in_equal_parts_at_first(kind: str) -> None:
    built = large("KGAT", aggregator_type=kind, layers=[6, 4])
    triples = collaborative(built)
    counts: dict[tuple[int, int], int] = {}
    for head, relation, _ in triples:
        counts[head, relation] = counts.get((head, relation), 0) + 1
    # The buffer is kept in float32, and `fill` does not touch it.
    attention = {one: float(np.float32(1) / np.float32(counts[one[:2]])) for one in triples}
    nodes = kgat_forward(built, attention, kind)
    scores = nodes[:17] @ nodes[17 : 17 + 13].T
    np.testing.assert_allclose(all_scores(built).numpy(), scores, rtol=1e-6, atol=1e-6)


def test_kgats_attention_is_a_softmax_of_transr_over_the_triples_of_a_head() -> None:
    built = large("KGAT", layers=[6, 4])
    own = weights(built)
    nodes = np.concatenate([own["user_embedding.weight"], own["entity_embedding.weight"]])
    matrices = own["trans_w.weight"].reshape(-1, 8, 6)
    scores: dict[tuple[int, int, int], float] = {}
    for head, relation, tail in collaborative(built):
        said = np.tanh(nodes[head] @ matrices[relation] + own["relation_embedding.weight"][relation])
        scores[head, relation, tail] = float(nodes[tail] @ matrices[relation] @ said)
    totals: dict[int, float] = {}
    for (head, _, _), score in scores.items():
        totals[head] = totals.get(head, 0.0) + math.exp(score)
    attention = {one: math.exp(score) / totals[one[0]] for one, score in scores.items()}
    built.model.update_attentive_A()
    expected = kgat_forward(built, attention, "bi")
    assert_same(all_scores(built), expected[:17] @ expected[17 : 17 + 13].T)


def test_kgat_has_a_loss_of_pairs_and_one_of_triples() -> None:
    built = large("KGAT", reg_weight=0.3)
    own, batch = weights(built), built.batch()
    users, items = (part.detach().numpy() for part in built.model.forward())
    total, penalty = 0.0, 0.0
    for user, item, other in rows(batch, *PAIR):
        total -= log_sigmoid(users[user] @ (items[item] - items[other]))
        penalty += sum((vector**2).sum() for vector in (users[user], items[item], items[other])) / 2
    assert_same(built.model.calculate_loss(batch), (total + 0.3 * penalty) / len(batch))
    matrices, total, penalty = own["trans_w.weight"].reshape(-1, 8, 6), 0.0, 0.0
    for head, relation, *ends in rows(batch, *TRIPLE):
        turned = [own["entity_embedding.weight"][one] @ matrices[relation] for one in (head, *ends)]
        said = own["relation_embedding.weight"][relation]
        near, far = (((turned[0] + said - end) ** 2).sum() for end in turned[1:])
        total += softplus(near - far)
        penalty += sum((vector**2).sum() for vector in (*turned, said)) / 2
    assert_same(built.model.calculate_kg_loss(batch), (total + 0.3 * penalty) / len(batch))


# KGCN ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "kind"), [(1, "sum"), (2, "sum"), (2, "concat"), (1, "neighbor")])
def test_kgcn_mixes_neighbours_by_how_much_the_user_cares_for_their_relations(steps: int, kind: str) -> None:
    built = large("KGCN", n_iter=steps, aggregator=kind, reg_weight=0.2)
    own, batch = weights(built), built.batch()
    entities, relations = (built.model.neighbours._held[name].numpy() for name in ("entities", "relations"))

    def vector(user: int, entity: int, layer: int) -> Array:
        """Return an entity as it is after so many layers, by recursion."""
        if layer == 0:
            return own["entity_embedding.weight"][entity]
        cares = softmax(own["relation_embedding.weight"][relations[entity]] @ own["user_embedding.weight"][user])
        around = cares @ np.stack([vector(user, other, layer - 1) for other in entities[entity]])
        itself = vector(user, entity, layer - 1)
        mixed = {"sum": itself + around, "concat": np.concatenate([itself, around]), "neighbor": around}[kind]
        turned = own[f"linear_layers.{layer - 1}.weight"] @ mixed + own[f"linear_layers.{layer - 1}.bias"]
        return np.tanh(turned) if layer == steps else np.maximum(turned, 0)

    total, penalty = 0.0, 0.0
    for user, item, label in rows(batch, "user_id", "item_id", "label"):
        logit = float(own["user_embedding.weight"][user] @ vector(user, item, steps))
        total -= log_sigmoid(logit if label else -logit)
        penalty += (own["user_embedding.weight"][user] ** 2).sum() / 2 + (
            own["entity_embedding.weight"][item] ** 2
        ).sum() / 2
    assert_same(built.model.calculate_loss(batch), (total + 0.2 * penalty) / len(batch))


def test_kgcn_users_begin_alike_when_their_mean_is_given() -> None:
    plain, alike = weights(build("KGCN")), weights(build("KGCN", user_mean=0.5))
    np.testing.assert_allclose(alike["user_embedding.weight"], plain["user_embedding.weight"] + 0.5, atol=1e-7)
    np.testing.assert_array_equal(alike["entity_embedding.weight"], plain["entity_embedding.weight"])


# KGIN ---------------------------------------------------------------------------------------------------------


def test_kgin_sums_what_entities_and_users_hear_over_all_hops() -> None:
    built = large("KGIN")
    own, data = weights(built), built.train.dataset
    users, entities = own["user_embedding.weight"], own["entity_embedding.weight"]
    relations, factors = own["relation_embedding.weight"], own["latent_embedding.weight"]
    intents = np.stack([softmax(row) for row in own["disen_weight_att"]]) @ relations
    chosen: dict[int, set[int]] = {}
    for user, item in zip(*(ids.tolist() for ids in data.user_item_pairs()), strict=True):
        chosen.setdefault(user, set()).add(item)
    graph = list(zip(data.head_entities.tolist(), data.relations.tolist(), data.tail_entities.tolist(), strict=True))
    all_users, all_entities = users, entities
    for _ in range(2):
        heard, new_users = np.zeros_like(entities), np.zeros_like(users)
        for entity in range(len(entities)):
            said = [relations[relation - 1] * entities[tail] for head, relation, tail in graph if head == entity]
            heard[entity] = np.mean(said, axis=0) if said else 0
        for user, items in chosen.items():
            mean = np.mean([entities[item] for item in items], axis=0)
            new_users[user] = mean + mean * (softmax(factors @ users[user]) @ intents)
        users, entities = (
            part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in (new_users, heard)
        )
        all_users, all_entities = all_users + users, all_entities + entities
    np.testing.assert_allclose(all_scores(built).numpy(), all_users @ all_entities[:13].T, rtol=1e-6, atol=1e-6)


def test_kgins_intents_are_kept_apart_by_three_measures() -> None:
    first, second = np.array([0.0, 1.0, 5.0, 2.0]), np.array([3.0, -1.0, 0.5, 2.0])

    def centred(values: Array) -> Array:
        apart = np.abs(values[:, None] - values[None, :])
        return apart - apart.mean(axis=0) - apart.mean(axis=1, keepdims=True) + apart.mean()

    one, other = centred(first), centred(second)
    expected = math.sqrt((one * other).mean() / math.sqrt((one**2).mean() * (other**2).mean()))
    found = distance_correlation(torch.tensor(first), torch.tensor(second)).item()
    assert found == pytest.approx(expected, rel=1e-3)
    intents = np.stack([first, second])
    directions = intents / np.linalg.norm(intents, axis=1, keepdims=True)
    scores = directions @ directions.T / 0.5
    expected = -sum(scores[place, place] - math.log(np.exp(scores[place]).sum()) for place in range(2))
    assert mutual_information(torch.tensor(intents), 0.5).item() == pytest.approx(expected, rel=1e-9)
    built = large("KGIN", ind="cosine")
    rows_of = built.model.disen_weight_att.detach().numpy()
    cosines = [(unit(rows_of[a]) @ unit(rows_of[b])) ** 2 for a, b in itertools.combinations(range(3), 2)]
    assert_same(built.model.likeness_of_intents(), sum(cosines))


def test_kgin_drops_edges_in_training_only_and_adds_its_parts_up() -> None:
    built = large("KGIN", reg_weight=0.2, sim_regularity=0.5, mess_dropout_rate=0.0)
    batch = built.batch()
    users, entities = (part.detach().numpy() for part in built.model.forward())
    total, penalty = 0.0, 0.0
    for user, item, other in rows(batch, *PAIR):
        total -= log_sigmoid(users[user] @ (entities[item] - entities[other]))
        penalty += sum((vector**2).sum() for vector in (users[user], entities[item], entities[other])) / 2
    expected = (total + 0.2 * penalty) / len(batch) + 0.5 * built.model.likeness_of_intents().item()
    assert_same(built.model.calculate_loss(batch), expected)
    built.model.train()
    assert built.model.calculate_loss(batch).item() != pytest.approx(expected)


# RippleNet and MKR --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "all_hops"), [("plus_transform", True), ("replace", False), ("plus", True), ("replace_transform", False)]
)
def test_ripplenet_asks_every_ring_with_the_item(mode: str, all_hops: bool) -> None:
    built = large("RippleNet", item_update_mode=mode, using_all_hops=all_hops, kg_weight=0.4, reg_weight=0.01)
    own, batch = weights(built), built.batch()
    entities, matrices = own["entity_embedding.weight"], own["relation_embedding.weight"].reshape(-1, 8, 8)
    memory = {name: built.model.memory._held[name].numpy() for name in ("heads", "relations", "tails")}
    total, holds, squares = 0.0, 0.0, 0.0
    for user, item, label in rows(batch, "user_id", "item_id", "label"):
        vector, answers = entities[item], []
        for hop in range(2):
            ring = list(zip(*(memory[name][hop, user] for name in ("heads", "relations", "tails")), strict=True))
            shares = softmax(np.array([vector @ matrices[said] @ entities[head] for head, said, _ in ring]))
            answers.append(sum(share * entities[tail] for share, (_, _, tail) in zip(shares, ring, strict=True)))
            vector = vector + answers[-1] if mode.startswith("plus") else answers[-1]
            if mode.endswith("transform"):
                vector = own["transform_matrix.weight"] @ vector
            for head, said, tail in ring:
                holds += sigmoid(entities[head] @ matrices[said] @ entities[tail]) / len(ring)
                squares += sum((part**2).sum() for part in (entities[head], entities[tail], matrices[said]))
        logit = float(vector @ (sum(answers) if all_hops else answers[-1]))
        total -= log_sigmoid(logit if label else -logit)
    whole = 0.01 * (own["transform_matrix.weight"] ** 2).sum() if mode.endswith("transform") else 0.0
    assert_same(built.model.calculate_loss(batch), (total - 0.4 * holds + 0.01 * squares) / len(batch) + whole)


@pytest.mark.parametrize("inner", [True, False])
def test_mkr_crosses_items_with_entities_and_foretells_tails(inner: bool) -> None:
    built = large("MKR", use_inner_product=inner, low_layers_num=2, high_layers_num=2, reg_weight=0.3)
    own, batch = weights(built), built.batch()

    def layers(named: str, vector: Array, active: Any) -> Array:
        places = sorted({name.rsplit(".", 1)[0] for name in own if name.startswith(f"{named}.")})
        for place in places:
            vector = active(own[f"{place}.weight"] @ vector + own[f"{place}.bias"])
        return vector

    def relu(values: Array) -> Array:
        return np.maximum(values, 0)

    def crossed(item: int, entity: int) -> tuple[Array, Array]:
        one, other = own["item_embeddings_lookup.weight"][item], own["entity_embeddings_lookup.weight"][entity]
        for place in range(2):
            matrix = np.outer(one, other)
            vv, ev, ve, ee = (own[f"cc_unit.{place}.fc_{kind}.weight"][0] for kind in ("vv", "ev", "ve", "ee"))
            one, other = (
                matrix @ vv + matrix.T @ ev + own[f"cc_unit.{place}.bias_v"],
                matrix @ ve + matrix.T @ ee + own[f"cc_unit.{place}.bias_e"],
            )
        return one, other

    total, penalty = 0.0, 0.0
    for user, item, label in rows(batch, "user_id", "item_id", "label"):
        start = own["user_embeddings_lookup.weight"][user]
        one, other = layers("user_mlp", start, relu), crossed(item, item)[0]
        if inner:
            logit = float(one @ other)
        else:
            deep = layers("rs_mlp", np.concatenate([one, other]), relu)
            logit = float((own["rs_pred_mlp.weight"] @ deep + own["rs_pred_mlp.bias"])[0])
        total -= log_sigmoid(logit if label else -logit)
        tables = (own["item_embeddings_lookup.weight"][item], own["entity_embeddings_lookup.weight"][item])
        penalty += sum((part**2).sum() for part in (start, *tables)) / 2
    assert_same(built.model.calculate_rs_loss(batch), (total + 0.3 * penalty) / len(batch))
    near, penalty, entities = 0.0, 0.0, own["entity_embeddings_lookup.weight"]
    for head, relation, tail in rows(batch, *TRIPLE[:3]):
        said = own["relation_embeddings_lookup.weight"][relation]
        deep = layers("kge_mlp", np.concatenate([crossed(head if head < 13 else 0, head)[1], said]), relu)
        foretold = layers("kge_pred_mlp", deep, sigmoid)
        near += sigmoid(layers("tail_mlp", entities[tail], relu) @ foretold)
        penalty += sum((part**2).sum() for part in (entities[head], entities[tail], said)) / 2
    assert_same(built.model.calculate_kg_loss(batch), (-near + 0.3 * penalty) / len(batch))


# Settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("CKE", {"reg_weights": [0.1]}, r"reg_weights=\[0.1\] must be two numbers from 0: of pairs, and of triples"),
        ("CFKG", {"loss_function": "dot"}, "loss_function='dot' does not exist for CFKG"),
        ("KGAT", {"aggregator_type": "sum"}, "aggregator_type='sum' does not exist for KGAT"),
        ("KGCN", {"neighbor_sample_size": 0}, "neighbor_sample_size=0 must be a whole number from 1"),
        ("KGCN", {"user_mean": -0.5}, "user_mean=-0.5 must be a number from 0"),
        ("KGIN", {"ind": "none"}, "ind='none' does not exist for KGIN"),
        ("RippleNet", {"item_update_mode": "add"}, "item_update_mode='add' does not exist for RippleNet"),
        ("MKR", {"low_layers_num": 0}, "low_layers_num=0 must be a whole number from 1"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalnum() else "",
)
def test_a_setting_that_cannot_be_meant_is_refused(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, **given)
