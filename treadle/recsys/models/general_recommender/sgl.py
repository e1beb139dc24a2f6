"""Self-supervised graph learning."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from treadle.data.seeds import fold_seed
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.counter_random import random_bits
from treadle.recsys.models.bases.graph import gather_triples
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.general_recommender.lightgcn import LightGCN
from treadle.recsys.models.layers.functional import margins
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, number, share

VIEWS = 2


class SGL(LightGCN):
    """LightGCN with a second task: to know a node again in two thinned-out copies of the graph.

    Wu, Wang, Feng, He, Chen, Lian and Xie, "Self-supervised graph learning for recommendation", 2021. The copies are
    drawn anew for each epoch, from the seed and its number: without some nodes (`type: ND`), without some edges (`ED`),
    or without other edges in each layer (`RW`). All parts of the loss are means over the rows of a batch; the authors'
    sums differ from it by a factor.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.view_type = choice(config, "type", ("ND", "ED", "RW"))
        self.ssl_tau = number(config, "ssl_tau", 1e-6)
        self.ssl_weight = number(config, "ssl_weight")
        self.drop_ratio = share(config, "drop_ratio")
        self.seed = int(config["seed"])
        copies = self.n_layers if self.view_type == "RW" else 1
        kept = torch.zeros(VIEWS, copies, len(self.graph.weights))
        self.views = Constants(weights=kept)
        self.start_epoch(0)

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Thin out the copies of the graph for an epoch."""
        weights: Tensor = self.views.weights
        for view in range(VIEWS):
            for copy in range(weights.shape[1]):
                kept = self._kept_pairs(fold_seed(self.seed, "views", epoch, view, copy), weights)
                # In place: a captured graph reads them where they were.
                weights[view, copy] = self.graph.edge_weights(self.graph.pair_weights(kept)).to(weights.dtype)

    def _kept_pairs(self, seed: int, like: Tensor) -> Tensor:
        """Return 1 for each pair that stays in a copy, and 0 for the others."""
        graph: Any = self.graph
        if self.view_type != "ND":
            return self._drawn(seed, graph.n_pairs, like)
        # The paper drops users and items in equal shares; an edge needs both its ends.
        users = self._drawn(fold_seed(seed, "users"), self.n_users, like)
        items = self._drawn(fold_seed(seed, "items"), self.n_items, like)
        return torch.cat([users, items])[graph.ends].prod(dim=0)

    def _drawn(self, seed: int, number: int, like: Tensor) -> Tensor:
        """Return 1 for some of `number` things, and 0 for a share `drop_ratio`, rounded up, of them."""
        bits = random_bits(seed, torch.arange(number, device=like.device))
        kept = torch.zeros(number, device=like.device)
        kept[bits.argsort()[: int(number * (1 - self.drop_ratio))]] = 1
        return kept

    def _view(self, own: Tensor, view: int) -> Tensor:
        """Return embeddings that are smoothed over a copy of the graph."""
        weights: Tensor = self.views.weights[view]
        if self.view_type != "RW":
            return self.graph.mean_of_powers(own, self.n_layers, weights[0], messages=self.messages)
        total = layer = own
        for one in weights:
            layer = self.graph(layer, one)
            total = total + layer
        return total / (self.n_layers + 1)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the pairwise loss, the penalty on the embeddings, and the loss of the second task."""
        user, positive, negative = (interaction[name] for name in (self.USER_ID, self.ITEM_ID, self.NEG_ITEM_ID))
        nodes = self.graph.nodes(user, positive, negative)
        own = self.get_ego_embeddings()
        users, positives, negatives = gather_triples(self._smoothed(own), nodes, negative)
        loss = self.mf_loss.from_differences(margins(users, positives, negatives))
        penalty = self.reg_weight * self._penalty(own, nodes, negative)
        return loss + penalty + self.ssl_weight * self.calc_ssl_loss(own, user, positive)

    def calc_ssl_loss(self, own: Tensor, user: Tensor, item: Tensor) -> Tensor:
        """Return how badly the users and items of a batch are known again among all others."""
        views = [self.graph.split(self._view(own, view)) for view in range(VIEWS)]
        of_users = recognition_loss(views[0][0], views[1][0], user, self.ssl_tau)
        return of_users + recognition_loss(views[0][1], views[1][1], item, self.ssl_tau)


def recognition_loss(first: Tensor, second: Tensor, nodes: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy of finding each node of one view among all of another, by cosines.

    Args:
        first, second: The embeddings of all nodes in the two views.
        nodes: Those to be found.
        temperature: What cosines are divided by.
    """
    asked = functional.normalize(first.index_select(0, nodes), dim=1)
    scores = torch.matmul(asked, functional.normalize(second, dim=1).T) / temperature
    return functional.cross_entropy(at_least_float32(scores), nodes)
