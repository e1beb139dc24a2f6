"""Transforms of batches as RecBole calls them: made of settings, called with the data set and a batch."""

from typing import Any

from treadle.errors import ConfigError
from treadle.recsys.config import Config
from treadle.recsys.interaction import Interaction
from treadle.recsys.transforms import BatchTransform, construct_transform

__all__ = [
    "CropItemSequence",
    "Equal",
    "InverseItemSequence",
    "MaskItemSequence",
    "ReorderItemSequence",
    "UserDefinedTransform",
    "construct_transform",
]


class Equal(BatchTransform):
    """Leaves a batch as it is."""

    transform_name: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config, self.transform_name)


class MaskItemSequence(Equal):
    """Hides some items of each sequence, for a model to find."""

    transform_name = "mask_itemseq"


class InverseItemSequence(Equal):
    """Puts the zeros of each sequence before it."""

    transform_name = "inverse_itemseq"


class CropItemSequence(Equal):
    """Keeps a stretch of each sequence."""

    transform_name = "crop_itemseq"


class ReorderItemSequence(Equal):
    """Shuffles a stretch of each sequence."""

    transform_name = "reorder_itemseq"


class UserDefinedTransform:
    """Calls a function of the user's: the setting `transform`, or what a subclass defines as `__call__`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __call__(self, dataset: Any, interaction: Interaction) -> Interaction:
        """Return the batch, transformed.

        Raises:
            ConfigError: The setting `transform` is no function.
        """
        given = self._config["transform"]
        if not callable(given):
            raise ConfigError(f"transform={given!r} is no function of the data set and a batch; set it to one")
        found: Interaction = given(dataset, interaction)
        return found
