"""Models that a boosting library trains."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType, ModelType
from treadle.recsys.models.abstract_recommender import AbstractRecommender
from treadle.recsys.models.boosting.base import SavedBooster, as_bytes, as_tensor
from treadle.recsys.models.boosting.features import TreeFeatures


class DecisionTreeRecommender(AbstractRecommender):
    """A model of rows of fields with a label, made of trees; its trainer has them grown.

    A subclass names the library's boosters with `saved_class`.

    Attributes:
        LABEL: The column with the label.
        features: What the trees see of a row.
        booster: The trees; None until they are grown.
        device: Where the settings want the scores.
    """

    type = ModelType.DECISIONTREE
    input_type = InputType.POINTWISE
    other_parameter_name = ("booster",)
    no_vectors = "its trees divide rows by their values"
    saved_class: Any
    """What reads a booster of the library."""

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__()
        self.LABEL = str(config["LABEL_FIELD"])
        self.features = TreeFeatures(dataset, self.LABEL, one_hot=bool(config["convert_token_to_onehot"]))
        self.booster: SavedBooster | None = None
        self.device = config["device"]

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Refuse: trees are not trained by batches."""
        raise NotImplementedError(f"{type(self).__name__} has no loss of a batch; its trainer boosts on all rows")

    @torch.no_grad()
    def predict(self, interaction: Interaction) -> Tensor:
        """Return the prediction for each row, `[rows]`: with a binary objective, a probability.

        Raises:
            ConfigError: There are no trees yet.
        """
        scores = self.grown().predict(self.features.matrix(interaction))
        column = next(iter(interaction.interaction.values()))
        return torch.from_numpy(scores).to(column.device, torch.float32)

    def grown(self) -> SavedBooster:
        """Return the trees.

        Raises:
            ConfigError: There are none yet.
        """
        if self.booster is None:
            raise ConfigError(f"{type(self).__name__} has no trees yet; call fit of its trainer, or load a model file")
        return self.booster

    def take(self, text: bytes) -> None:
        """Take the trees of a booster, in the library's own format."""
        self.booster = self.saved_class(text)

    def save_booster(self, path: str | Path) -> Path:
        """Write the trees to a file in the library's own format, and return it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.grown().text)
        return target

    def other_parameter(self) -> dict[str, Any]:
        """Return the trees as plain data: the bytes of the library's own format."""
        return {"booster": None if self.booster is None else as_tensor(self.booster.text)}

    def load_other_parameter(self, para: Mapping[str, Any] | None) -> None:
        """Take the trees that `other_parameter` returned."""
        text = (para or {}).get("booster")
        if text is None:
            self.booster = None
        else:
            self.take(as_bytes(text))
