"""Models that are fitted in one go, without gradients."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType, ModelType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.histories import Histories, csr_matrix

# What models of similar items share: how often items are used together, and scores from similarities


def interaction_matrices(histories: Histories) -> tuple[Tensor, Tensor]:
    """Return the matrix of users and items, and that of items and users, sparse in CSR form, on the host."""
    counts, items = histories.counts.cpu(), histories.items.cpu()
    users = torch.repeat_interleave(torch.arange(len(counts)), counts)
    by_item = items.sort(stable=True).indices
    size = (histories.n_users, histories.n_items)
    of_users = csr_matrix(_starts(counts), items, torch.ones(len(items)), size)
    per_item = torch.bincount(items, minlength=size[1])
    return of_users, csr_matrix(_starts(per_item), users[by_item], torch.ones(len(items)), size[::-1])


def common_users(histories: Histories) -> Tensor:
    """Return how many users each two items have in common, as a sparse matrix on the host in CSR form.

    It is symmetric, and its diagonal says how many users an item has.
    """
    of_users, of_items = interaction_matrices(histories)
    return torch.mm(of_items, of_users)


def common_items(histories: Histories) -> Tensor:
    """Return how many items each two users have in common, in the form of `common_users`."""
    of_users, of_items = interaction_matrices(histories)
    return torch.mm(of_users, of_items)


def _starts(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def similarity_scores(histories: Histories, users: Tensor, similarity: Tensor) -> Tensor:
    """Return the sum of the similarities of a user's items to each item, `[users, n_items]`.

    Args:
        histories: What each user has used.
        users: Which users.
        similarity: `[n_items, n_items]`, dense or sparse: the row of an item says what it adds to the score of others.
    """
    scores = torch.mm(histories.sparse_rows(users), similarity)
    return scores if scores.layout == torch.strided else scores.to_dense()


class FittedRecommender(GeneralRecommender):
    """A model that counts or solves, and has nothing to train.

    A subclass names its results with `keep` in its constructor, and calculates them in `fit`, which the trainer calls
    once. They are buffers: a checkpoint has them, and a model that is loaded from one needs no `fit`.

    Attributes:
        histories: What each user has used.
    """

    type = ModelType.TRADITIONAL
    input_type = InputType.POINTWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.histories = Histories.of(dataset)
        self._results: list[str] = []

    def keep(self, *names: str) -> None:
        """Make room for results by these names, which `fit` assigns."""
        for name in names:
            self.register_buffer(name, torch.empty(0))
        self._results += names

    def fit(self, dataset: Dataset) -> None:
        """Calculate the results from the data for training, where the model is."""
        raise NotImplementedError(f"{type(self).__name__} does not define fit")

    def refresh_histories(self, dataset: Dataset) -> Histories:
        """Take the histories of the data that the model is fitted to."""
        self.histories = Histories.of(dataset).to(self.histories.items.device)
        return self.histories

    def result(self, name: str) -> Tensor:
        """Return a result of `fit`.

        Raises:
            ConfigError: There was none yet.
        """
        if not any(getattr(self, one).numel() for one in self._results):
            raise ConfigError(f"{type(self).__name__} is not fitted: call fit(dataset), or load a checkpoint")
        value: Tensor = getattr(self, name)
        return value

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return zero: there is nothing to train."""
        return torch.zeros((), device=self.histories.items.device)

    def scores(self, users: Tensor) -> Tensor:
        """Return the scores of all items for each user, `[users, n_items]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define scores")

    @torch.no_grad()
    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        users, places = torch.unique(interaction[self.USER_ID], return_inverse=True)
        found: Tensor = self.scores(users)[places, interaction[self.ITEM_ID]]
        return found

    @torch.no_grad()
    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        return self.scores(interaction[self.USER_ID]).reshape(-1)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name in self._results:
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor):
                # How large a result is, only its data says.
                setattr(self, name, torch.empty_like(saved, device=self.histories.items.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
