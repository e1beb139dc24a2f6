"""Models that are fitted in one go, without gradients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.enums import InputType, ModelType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.histories import Histories

if TYPE_CHECKING:
    from treadle.recsys.config import Config
    from treadle.recsys.dataset import Dataset
    from treadle.recsys.interaction import Interaction


class FittedRecommender(GeneralRecommender):
    """A model that counts or solves, and has nothing to train.

    A subclass names its results with `keep` in its constructor, and calculates them in `fit`, which the trainer calls
    once. They are buffers: a checkpoint has them, and a model that is loaded from one needs no `fit`.

    Attributes:
        histories: What each user has used.
    """

    type = ModelType.TRADITIONAL
    input_type = InputType.POINTWISE

    def __init__(self, config: "Config", dataset: "Dataset") -> None:
        super().__init__(config, dataset)
        self.histories = Histories.of(dataset)
        self._results: list[str] = []

    def keep(self, *names: str) -> None:
        """Make room for results by these names, which `fit` assigns."""
        for name in names:
            self.register_buffer(name, torch.empty(0))
        self._results += names

    def fit(self, dataset: "Dataset") -> None:
        """Calculate the results from the data for training, where the model is."""
        raise NotImplementedError(f"{type(self).__name__} does not define fit")

    def refresh_histories(self, dataset: "Dataset") -> Histories:
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

    def calculate_loss(self, interaction: "Interaction") -> Tensor:
        """Return zero: there is nothing to train."""
        return torch.zeros((), device=self.histories.items.device)

    def scores(self, users: Tensor) -> Tensor:
        """Return the scores of all items for each user, `[users, n_items]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define scores")

    @torch.no_grad()
    def predict(self, interaction: "Interaction") -> Tensor:
        """Return the score of each row, `[rows]`."""
        users, places = torch.unique(interaction[self.USER_ID], return_inverse=True)
        found: Tensor = self.scores(users)[places, interaction[self.ITEM_ID]]
        return found

    @torch.no_grad()
    def full_sort_predict(self, interaction: "Interaction") -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        return self.scores(interaction[self.USER_ID]).reshape(-1)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name in self._results:
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor):
                # How large a result is, only its data says.
                setattr(self, name, torch.empty_like(saved, device=self.histories.items.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
