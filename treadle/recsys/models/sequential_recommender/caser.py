"""Convolutions over the embeddings of a sequence."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.sequential import NextItemRecommender
from treadle.recsys.models.loss import RegLoss
from treadle.recsys.models.settings import number, share, whole

HEIGHTS_AT_ONCE = 8
"""How many heights of kernels are one convolution: with more there are fewer, and more zeros are multiplied."""


class Caser(NextItemRecommender):
    """A sequence as an image, over which kernels slide: some along time, of all heights, some along embeddings.

    Tang and Wang, "Personalized top-N sequential recommendation via convolutional sequence embedding", 2018. What the
    kernels find goes, with an embedding of the user, through two linear layers.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        size = self.embedding_size = whole(config, "embedding_size")
        self.n_h, self.n_v = whole(config, "nh", 0), whole(config, "nv", 0)
        if not (self.n_h or self.n_v):
            raise ConfigError("nh and nv are both 0, so that Caser has no convolution")
        self.dropout_prob, self.reg_weight = share(config, "dropout_prob"), number(config, "reg_weight")
        self.n_users = dataset.num(self.USER_ID)
        self.user_embedding = nn.Embedding(self.n_users, size, padding_idx=0)
        self.item_embedding = nn.Embedding(self.n_items, size, padding_idx=0)
        length = self.max_seq_length
        self.conv_v = nn.Conv2d(1, self.n_v, (length, 1)) if self.n_v else None
        heights = range(1, length + 1) if self.n_h else ()
        self.conv_h = nn.ModuleList([nn.Conv2d(1, self.n_h, (height, size)) for height in heights])
        self.fc1 = nn.Linear(self.n_v * size + self.n_h * length, size)
        self.fc2 = nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(self.dropout_prob)
        self.reg_loss = RegLoss()
        self.apply(self._init_weights)
        self.clear_padding()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, 0.0, 1 / module.embedding_dim)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, user: Tensor, item_seq: Tensor) -> Tensor:
        """Return the vector of each sequence and its user, `[rows, embedding_size]`."""
        image: Tensor = self.item_embedding(item_seq)
        found = [] if self.conv_v is None else [self.conv_v(image.unsqueeze(1)).flatten(1)]
        if self.n_h:
            found.append(self._along_time(image))
        both = self.fc1(self.dropout(torch.cat(found, dim=1))).relu()
        output: Tensor = self.fc2(torch.cat([both, self.user_embedding(user)], dim=1)).relu()
        return output

    def _along_time(self, image: Tensor) -> Tensor:
        """Return the largest output of each kernel wherever it fits, `[rows, heights * nh]`."""
        length, columns = image.shape[1], image.transpose(1, 2)
        found = []
        for first in range(0, length, HEIGHTS_AT_ONCE):
            last = min(first + HEIGHTS_AT_ONCE, length)
            found.append(self._largest(columns, range(first + 1, last + 1)))
        return torch.cat(found, dim=1)

    def _largest(self, columns: Tensor, heights: range) -> Tensor:
        """Return the largest outputs of the kernels of some heights, made equally high with zeros below them."""
        highest = heights[-1]
        kernels = [kernel for kernel in self.conv_h[heights[0] - 1 : highest] if isinstance(kernel, nn.Conv2d)]
        weights = [_at_height(kernel.weight, highest) for kernel in kernels]
        biases = [kernel.bias for kernel in kernels if kernel.bias is not None]
        padded = functional.pad(columns, (0, highest - heights[0]))
        slid = functional.conv1d(padded, torch.cat(weights), torch.cat(biases)).relu()
        outputs = slid.view(slid.shape[0], len(heights), self.n_h, -1)
        places = torch.arange(outputs.shape[3], device=slid.device)
        fits = places <= columns.shape[2] - torch.arange(heights[0], highest + 1, device=slid.device).unsqueeze(1)
        # No output is below zero, so that a zero where a kernel does not fit never is the largest.
        return (outputs * fits.unsqueeze(1)).amax(dim=3).flatten(1)

    def sequence_output(self, interaction: Interaction) -> Tensor:
        """Return the vector of each sequence and its user, `[rows, embedding_size]`."""
        output: Tensor = self(interaction[self.USER_ID], interaction[self.ITEM_SEQ])
        return output

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the loss of the next item, and the penalty on all weights."""
        weights = [
            module.weight for module in self.modules() if isinstance(module, (nn.Embedding, nn.Linear, nn.Conv2d))
        ]
        penalty: Tensor = self.reg_loss(weights)
        return super().calculate_loss(interaction) + self.reg_weight * penalty


def _at_height(weight: Tensor, height: int) -> Tensor:
    """Return kernels `[kernels, 1, own height, size]` as `[kernels, size, height]`."""
    return functional.pad(weight.squeeze(1).transpose(1, 2), (0, height - weight.shape[2]))
