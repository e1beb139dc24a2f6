"""Variational autoencoder with a multinomial likelihood."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import AutoEncoderMixin, GeneralRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.functional import draw_gaussian
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import number, share, sizes, whole


class MultiVAE(AutoEncoderMixin, GeneralRecommender):
    """An autoencoder of a user's history through a Gaussian, whose output is a distribution over items.

    Liang, Krishnan, Hoffman and Jebara, "Variational autoencoders for collaborative filtering", 2018. The weight of the
    KL divergence grows with each batch, to `anneal_cap` at most.

    Attributes:
        update: How many batches have been trained on; a part of the state.
    """

    input_type = InputType.USERWISE
    update: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        hidden = sizes(config, "mlp_hidden_size")
        self.lat_dim = whole(config, "latent_dimension")
        if self.lat_dim % 2:
            raise ConfigError(f"latent_dimension={self.lat_dim} must be even: one half is for means, one for variances")
        self.drop_out = share(config, "dropout_prob")
        self.anneal_cap = number(config, "anneal_cap")
        self.total_anneal_steps = whole(config, "total_anneal_steps", 0)
        self.build_history_items(dataset)
        self.encoder = tanh_layers([self.n_items, *hidden, self.lat_dim])
        self.decoder = tanh_layers([self.lat_dim // 2, *hidden[::-1], self.n_items])
        self.register_buffer("update", torch.zeros((), dtype=torch.int64))
        self.apply(xavier_normal_initialization)

    def forward(self, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of all items, and the means and logarithms of the variances of the Gaussian."""
        mean, logvar = self.encode(history)
        return self.decoder(self.reparameterize(mean, logvar)), mean, logvar

    def encode(self, history: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and logarithms of the variances of the Gaussian."""
        scaled = functional.normalize(history)
        hidden = self.encoder(functional.dropout(scaled, self.drop_out, training=self.training))
        mean, logvar = hidden.chunk(2, dim=1)
        return mean, logvar

    def user_vectors(self) -> Tensor:
        """Return, for each user id, the last layer before the logits."""
        return self.encode_all_users(lambda user: self.decoder[:-1](self.encode(self.get_rating_matrix(user))[0]))

    def item_vectors(self) -> Tensor:
        """Return what that layer is multiplied with for each item id."""
        last = self.decoder[-1]
        assert isinstance(last, nn.Linear)
        return last.weight

    def reparameterize(self, mean: Tensor, logvar: Tensor) -> Tensor:
        """Return a draw from the Gaussian in training, and its mean elsewhere."""
        return draw_gaussian(mean, logvar) if self.training else mean

    def anneal(self) -> Tensor:
        """Return the weight of the KL divergence."""
        if not self.total_anneal_steps:
            return torch.full((), self.anneal_cap, device=self.update.device)
        return (self.update / self.total_anneal_steps).clamp(max=self.anneal_cap)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the negative evidence bound, its KL divergence weighted."""
        history = self.histories.rows(interaction[self.USER_ID], distinct=True)
        self.update += 1
        logits, mean, logvar = (at_least_float32(part) for part in self.forward(history))
        divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(dim=1).mean()
        likelihood = (functional.log_softmax(logits, dim=1) * history).sum(dim=1).mean()
        return self.anneal() * divergence - likelihood

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        logits = self.forward(self.get_rating_matrix(interaction[self.USER_ID]))[0]
        return logits.gather(1, interaction[self.ITEM_ID].unsqueeze(1)).squeeze(1)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the logits of all items, `[rows * n_items]`."""
        return self.forward(self.get_rating_matrix(interaction[self.USER_ID]))[0].view(-1)


def tanh_layers(layers: list[int]) -> nn.Sequential:
    """Return linear layers with a tanh behind each but the last."""
    modules: list[nn.Module] = []
    for size, following in pairwise(layers):
        modules += [nn.Linear(size, following), nn.Tanh()]
    return nn.Sequential(*modules[:-1])
