"""A Vision Transformer: an image is cut into patches, which look at each other like the words of a sentence."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle.errors import ConfigError


class Attention(nn.Module):
    """Each patch looks at all of them.

    Args:
        width: The size of a hidden state.
        heads: How many times it is looked, each at a share of the width.
        dropout: The share of the result that is left out in training.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.head_size = width // heads
        self.inputs = nn.Linear(width, 3 * width)
        self.residual = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        # The rows of one head lie together, so that heads can be spread over devices: here are as many as there are.
        parts = self.inputs(hidden).view(batch, length, -1, 3, self.head_size)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(3))
        seen = F.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.drop(self.residual(seen.transpose(1, 2).flatten(2)))
        return result


class Block(nn.Module):
    """Attention and two layers for each patch alone, each added to what came in and normalised before.

    Args:
        width: The size of a hidden state.
        heads: The heads of the attention.
        dropout: The share that is left out in training.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class Inputs(nn.Module):
    """The beginning of a Vision Transformer, for a stage of a pipeline: from an image to hidden states.

    Args:
        model: The model, whose modules these are.
    """

    def __init__(self, model: "VisionTransformer") -> None:
        super().__init__()
        self.patches, self.drop = model.patches, model.drop
        self.gathering, self.positions = model.gathering, model.positions

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.gathering.expand(len(patches), -1, -1), patches], dim=1)
        result: Tensor = self.drop(hidden + self.positions)
        return result


class Outputs(nn.Module):
    """The end of a Vision Transformer, for the last stage of a pipeline: what the model returns, of the first place.

    Args:
        model: The model, whose modules these are.
    """

    def __init__(self, model: "VisionTransformer") -> None:
        super().__init__()
        self.norm, self.head, self.label_smoothing = model.norm, model.head, model.label_smoothing

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        scores: Tensor = self.head(self.norm(hidden[:, 0]))
        return scores if labels is None else outputs_of(scores, labels if self.training else None, self.label_smoothing)


def outputs_of(scores: Tensor, labels: Tensor | None, label_smoothing: float) -> dict[str, Tensor]:
    """Return the cross-entropy of scores as "loss"; without labels the scores themselves."""
    if labels is None:
        return {"prediction_scores": scores}
    return {"loss": F.cross_entropy(scores, labels, label_smoothing=label_smoothing)}


class VisionTransformer(nn.Module):
    """Patches, a token that gathers what is seen, blocks, and scores for each class.

    Args:
        image_size: Rows and columns of an image.
        patch_size: Rows and columns of a patch.
        channels: Numbers for each point of an image.
        classes: How many classes there are.
        layers: How many blocks.
        heads: The heads of each block's attention.
        width: The size of a hidden state.
        dropout: The share that is left out in training.
        label_smoothing: The share of a label that is spread over all classes in training.
    """

    def __init__(
        self,
        image_size: int = 28,
        patch_size: int = 4,
        channels: int = 1,
        classes: int = 10,
        layers: int = 6,
        heads: int = 6,
        width: int = 192,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ConfigError(f"VisionTransformer: image_size={image_size} is no multiple of patch_size={patch_size}")
        if width % heads:
            raise ConfigError(f"VisionTransformer: width={width} is no multiple of heads={heads}")
        self.label_smoothing = label_smoothing
        self.patches = nn.Conv2d(channels, width, kernel_size=patch_size, stride=patch_size)
        self.gathering = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (image_size // patch_size) ** 2, width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.trunc_normal_(self.positions, std=0.02)
        nn.init.trunc_normal_(self.gathering, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return scores for images of (batch, channels, rows, columns); in training, the cross-entropy as "loss"."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.gathering.expand(len(patches), -1, -1), patches], dim=1)
        hidden = self.drop(hidden + self.positions)
        for block in self.blocks:
            hidden = block(hidden)
        scores = self.head(self.norm(hidden[:, 0]))
        return outputs_of(scores, labels if self.training else None, self.label_smoothing)

    def tensor_plan(self) -> dict[str, str]:
        """Return how layers are spread over processes: by heads and hidden units, summed where they are added up."""
        return {
            "blocks.*.attention.inputs": "column",
            "blocks.*.attention.residual": "row",
            "blocks.*.feed_forward.0": "column",
            "blocks.*.feed_forward.2": "row",
        }

    def pipeline_blocks(self) -> list[nn.Module]:
        """Return the modules that images go through one after the other, to be shared out to stages."""
        return [Inputs(self), *self.blocks, Outputs(self)]
