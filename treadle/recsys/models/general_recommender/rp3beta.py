"""Random walks of three steps, with popular items held back."""

import torch
from torch import Tensor

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.fitted import FittedRecommender, interaction_matrices, similarity_scores
from treadle.recsys.models.bases.neighbours import csr_parts, strongest
from treadle.recsys.models.histories import csr_matrix, rows_of_csr
from treadle.recsys.models.settings import number, whole


class RP3beta(FittedRecommender):
    """Scores an item by walks from the user to an item, to somebody who has it, to what they have.

    Paudel, Christoffel, Newell and Bernstein, "Updatable, accurate, diverse, and scalable recommendations for
    interactive applications", 2016. An item i adds to the score of an item j the sum, over the users u of both, of
    `(1 / degree of i)^alpha * (1 / degree of u)^alpha`, divided by `(degree of j)^beta`; of these sums, the `k` largest
    of each item count.

    Attributes:
        starts, others, weights: What each item adds to the scores of which others, in CSR form.
    """

    starts: Tensor
    others: Tensor
    weights: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.k, self.alpha, self.beta = whole(config, "k"), number(config, "alpha"), number(config, "beta")
        self.keep("starts", "others", "weights")

    def fit(self, dataset: Dataset) -> None:
        """Add up the walks between items."""
        histories = self.refresh_histories(dataset)
        of_users, of_items = interaction_matrices(histories)
        counts = histories.counts.cpu().clamp(min=1).float()
        degrees = of_items.crow_indices().diff().clamp(min=1).float()
        steps = torch.repeat_interleave(counts**-self.alpha, histories.counts.cpu())
        walks = csr_matrix(of_users.crow_indices(), of_users.col_indices(), steps, (self.n_users, self.n_items))
        leaving, arriving = degrees**-self.alpha, degrees**-self.beta
        found = strongest(torch.mm(of_items, walks), self.k, lambda i, j, both: both * leaving[i] * arriving[j])
        device = histories.items.device
        self.starts, self.others, self.weights = (part.to(device) for part in csr_parts(*found, self.n_items))

    def _similarity(self) -> Tensor:
        starts, others, weights = (self.result(name) for name in ("starts", "others", "weights"))
        return csr_matrix(starts, others, weights, (self.n_items, self.n_items))

    def scores(self, users: Tensor) -> Tensor:
        """Return the sums of what the items of each user add."""
        return similarity_scores(self.histories, users, self._similarity())

    def item_similarities(self, items: Tensor) -> Tensor:
        """Return what each of some items adds to the score of every item, `[items, n_items]`."""
        starts, others, weights = (self.result(name) for name in ("starts", "others", "weights"))
        bounds, places = rows_of_csr(starts[:-1], starts.diff(), items)
        return csr_matrix(bounds, others[places], weights[places], (len(items), self.n_items)).to_dense()
