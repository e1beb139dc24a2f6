"""Neighbourhood-enriched contrastive learning."""

import torch
from torch import Tensor
from torch.nn import functional

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.graph import gather_triples
from treadle.recsys.models.general_recommender.lightgcn import LightGCN
from treadle.recsys.models.general_recommender.sgl import recognition_loss
from treadle.recsys.models.layers.functional import margins
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import number, whole

# Clusters of points, for models that compare an embedding with the centre of those like it


ITERATIONS = 25
"""How often centres are moved, if points do not stay where they are before that."""
AT_ONCE = 1 << 24
"""How many distances are held at a time."""


@torch.no_grad()
def k_means(points: Tensor, n_clusters: int, *, seed: int, iterations: int = ITERATIONS) -> tuple[Tensor, Tensor]:
    """Divide points into clusters, each the points that are nearest to its centre, by Lloyd's algorithm.

    The first centres are points that the seed chooses. A cluster that loses all its points begins anew at one of those
    that are farthest from their centres. Equal points and an equal seed give equal clusters, on a GPU too: sums are
    taken cluster by cluster, in the order of the points.

    Args:
        points: `[points, size]`.
        n_clusters: How many clusters, at most as many as there are points.
        seed: What chooses the first centres.
        iterations: The most times that centres are moved.

    Returns:
        The centres `[clusters, size]`, and for each point the number of its cluster.

    Raises:
        ConfigError: There are fewer points than clusters.

    >>> centres, members = k_means(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), 2, seed=0)
    >>> sorted(centres.flatten().tolist()), bool(members[0] == members[1] != members[2] == members[3])
    ([0.5, 10.5], True)
    """
    check_clusters(n_clusters, len(points), "points")
    values = points if points.dtype == torch.float64 else points.float()
    chosen = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:n_clusters]
    with torch.autocast(values.device.type, enabled=False):
        centres = values[chosen.to(values.device)]
        members, distances = _nearest(values, centres)
        for _ in range(iterations):
            centres = _centres(values, members, distances, n_clusters)
            before = members
            members, distances = _nearest(values, centres)
            if torch.equal(before, members):
                break
    return centres, members


def check_clusters(n_clusters: int, n_points: int, what: str, name: str = "n_clusters") -> None:
    """Make sure that there are not more clusters than points.

    Raises:
        ConfigError: There are.
    """
    if n_clusters > n_points:
        raise ConfigError(
            f"{name}={n_clusters} is more than the {n_points} {what} that are to be divided; use at most {n_points}"
        )


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of the nearest centre of each point, and the square of how far it is."""
    squares = centres.square().sum(dim=1)
    found = []
    for part in torch.split(points, max(AT_ONCE // len(centres), 1)):
        # The square of the point itself is the same for all centres.
        found.append(torch.addmm(squares, part, centres.T, alpha=-2).min(dim=1))
    members = torch.cat([one.indices for one in found])
    return members, torch.cat([one.values for one in found]) + points.square().sum(dim=1)


def _centres(points: Tensor, members: Tensor, distances: Tensor, n_clusters: int) -> Tensor:
    """Return the mean of each cluster, and for an empty one a point that is far from its centre."""
    counts = torch.bincount(members, minlength=n_clusters)
    ordered = members.sort(stable=True).indices
    # Sums of bags, not of scattered rows: those a GPU adds in any order.
    sums = functional.embedding_bag(ordered, points, counts.cumsum(0) - counts, mode="sum")
    empty = counts == 0
    farthest = distances.sort(descending=True, stable=True).indices[:n_clusters]
    substitutes = points[farthest[(empty.cumsum(0) - 1).clamp(min=0)]]
    return torch.where(empty.unsqueeze(1), substitutes, sums / counts.clamp(min=1).unsqueeze(1))


class NCL(LightGCN):
    """LightGCN with two more tasks: to know a node again in what its neighbours say, and by the cluster it is in.

    Lin, Tian, Hou and Zhao, "Improving graph collaborative filtering with neighborhood-enriched contrastive learning",
    2022. `e_step` divides users and items into `num_clusters` each; the trainer calls it every `m_step` epochs. What it
    finds are buffers, and so part of every checkpoint. `ssl_reg` and `proto_reg` weigh sums over the rows of a full
    batch, as in the authors' program: means over rows count `train_batch_size` times as much, so that a short batch,
    or one that several processes share, pulls as strongly as any other.

    Attributes:
        user_centroids, item_centroids: The centres of the clusters, of length 1.
        user_2cluster, item_2cluster: In which cluster each user and item is.

    Raises:
        ConfigError: There are more clusters than users or items.
    """

    needs_clusters_in_warm_up = False
    """Whether the loss fails before clusters are found: the trainer then looks for them in the warm-up, too."""
    user_centroids: Tensor
    item_centroids: Tensor
    user_2cluster: Tensor
    item_2cluster: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        if self.messages is not None:
            raise ConfigError("message_precision='bf16' is not for NCL, whose layers are each a part of the loss")
        self.hyper_layers = whole(config, "hyper_layers")
        self.ssl_temp = number(config, "ssl_temp", 1e-6)
        self.ssl_reg, self.alpha = number(config, "ssl_reg"), number(config, "alpha")
        self.proto_reg = number(config, "proto_reg")
        self.num_clusters = whole(config, "num_clusters")
        self.full_batch = whole(config, "train_batch_size")
        self.seed = int(config["seed"])
        for what, count in (("users", self.n_users - 1), ("items", self.n_items - 1)):
            check_clusters(self.num_clusters, count, f"{what} of {dataset.dataset_name!r}", "num_clusters")
        for kind, count in (("user", self.n_users), ("item", self.n_items)):
            self.register_buffer(f"{kind}_centroids", torch.zeros(self.num_clusters, self.latent_dim))
            self.register_buffer(f"{kind}_2cluster", torch.zeros(count, dtype=torch.long))

    @torch.no_grad()
    def e_step(self) -> None:
        """Divide users and items into clusters, by their own embeddings."""
        self._cluster("user", self.user_embedding.weight)
        self._cluster("item", self.item_embedding.weight)

    def _cluster(self, kind: str, embeddings: Tensor) -> None:
        # The same first centres each time, so that clusters change no more than embeddings do. Padding is no point.
        centres, members = k_means(embeddings[1:], self.num_clusters, seed=fold_seed(self.seed, "clusters", kind))
        # In place: a captured graph reads them where they were.
        getattr(self, f"{kind}_centroids").copy_(functional.normalize(centres, dim=1))
        getattr(self, f"{kind}_2cluster")[1:] = members

    def calculate_loss(  # type: ignore[override]  # in parts, of which the trainer leaves one out at first
        self, interaction: Interaction
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pairwise loss with the penalty, the loss of the neighbourhood, and that of the clusters."""
        user, positive, negative = (interaction[name] for name in (self.USER_ID, self.ITEM_ID, self.NEG_ITEM_ID))
        nodes = self.graph.nodes(user, positive, negative)
        layers = self._layers()
        smoothed = torch.stack(layers[: self.n_layers + 1]).mean(dim=0)
        users, positives, negatives = gather_triples(smoothed, nodes, negative)
        loss = self.mf_loss.from_differences(margins(users, positives, negatives))
        own = layers[0]
        return (
            loss + self.reg_weight * self._penalty(own, nodes, negative),
            self.ssl_reg * self.full_batch * self.ssl_layer_loss(layers[2 * self.hyper_layers], own, user, positive),
            self.proto_reg * self.full_batch * self.proto_nce_loss(own, user, positive),
        )

    def _layers(self) -> list[Tensor]:
        """Return the embeddings of all nodes, and what is left of them after each round of smoothing."""
        layers = [self.get_ego_embeddings()]
        for _ in range(max(self.n_layers, 2 * self.hyper_layers)):
            layers.append(self.graph(layers[-1]))
        return layers

    def ssl_layer_loss(self, heard: Tensor, own: Tensor, user: Tensor, item: Tensor) -> Tensor:
        """Return how badly nodes are known again in what they hear from nodes of their kind.

        Args:
            heard: The embeddings after an even number of rounds, in which users hear of users, and items of items.
            own: Those before.
            user, item: The users and items of a batch.
        """
        (heard_users, heard_items), (users, items) = self.graph.split(heard), self.graph.split(own)
        of_users = recognition_loss(heard_users, users, user, self.ssl_temp)
        return of_users + self.alpha * recognition_loss(heard_items, items, item, self.ssl_temp)

    def proto_nce_loss(self, own: Tensor, user: Tensor, item: Tensor) -> Tensor:
        """Return how badly the clusters of users and items are found by their embeddings."""
        users, items = self.graph.split(own)
        of_users = self._cluster_loss(users, user, self.user_centroids, self.user_2cluster)
        return of_users + self._cluster_loss(items, item, self.item_centroids, self.item_2cluster)

    def _cluster_loss(self, embeddings: Tensor, nodes: Tensor, centroids: Tensor, clusters: Tensor) -> Tensor:
        asked = functional.normalize(embeddings.index_select(0, nodes), dim=1)
        scores = torch.matmul(asked, centroids.T) / self.ssl_temp
        return functional.cross_entropy(at_least_float32(scores), clusters[nodes])
