"""Variational autoencoder with a composite prior."""

import copy
import math
from collections.abc import Sequence
from typing import Any

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
from treadle.recsys.models.settings import number, share, whole

EPSILON = 0.1
"""What the normalisations of the encoder add to a variance, as in the authors' program."""
WIDE = 10.0
"""The logarithm of the variance of the widest part of the prior."""


class RecVAE(AutoEncoderMixin, GeneralRecommender):
    """An autoencoder whose prior is, for the most part, what the encoder said before.

    Shenbin, Alekseev, Tutubalina, Malykh and Nikolenko, "RecVAE: a new variational autoencoder for top-N
    recommendations with implicit feedback", 2020. The encoder and the decoder are trained in turns: `n_enc_epochs` of
    the one, with noise on the input; `update_prior`; `n_dec_epochs` of the other, without noise.
    """

    input_type = InputType.USERWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        hidden, self.latent_dim = whole(config, "hidden_dimension"), whole(config, "latent_dimension")
        self.dropout_prob = share(config, "dropout_prob")
        self.beta = number(config, "beta")
        self.gamma = None if config["gamma"] is None else number(config, "gamma")
        self.mixture_weights = _mixture(config["mixture_weights"])
        self.build_history_items(dataset)
        self.encoder = Encoder(hidden, self.latent_dim, self.n_items)
        self.decoder = nn.Linear(self.latent_dim, self.n_items)
        self.apply(xavier_normal_initialization)
        self.prior = CompositePrior(self.encoder, self.mixture_weights)

    def forward(self, history: Tensor, dropout_prob: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the logits of all items, the latent vectors, and the means and log-variances they are drawn from."""
        mean, logvar = self.encoder(history, dropout_prob)
        latent = self._latent(mean, logvar)
        return self.decoder(latent), latent, mean, logvar

    def _latent(self, mean: Tensor, logvar: Tensor) -> Tensor:
        return draw_gaussian(mean, logvar) if self.training else mean

    def user_vectors(self) -> Tensor:
        """Return the mean of the latent vector of each user id."""
        return self.encode_all_users(lambda user: self.encoder(self.get_rating_matrix(user), 0.0)[0])

    def item_vectors(self) -> Tensor:
        """Return what the latent vector is multiplied with for each item id."""
        return self.decoder.weight

    def calculate_loss(self, interaction: Interaction, encoder_flag: bool = True) -> Tensor:
        """Return the negative evidence bound.

        Args:
            interaction: The users.
            encoder_flag: Whether the encoder is trained, and its input therefore has noise.
        """
        history = self.histories.rows(interaction[self.USER_ID], distinct=True)
        if not encoder_flag:
            # The decoder has a part in the likelihood only, and the encoder needs no gradient.
            with torch.no_grad():
                latent = self._latent(*self.encoder(history, 0.0))
            return -_likelihood(self.decoder(latent), history)
        parts = self.forward(history, self.dropout_prob)
        logits, latent, mean, logvar = (at_least_float32(part) for part in parts)
        weight = self.beta if self.gamma is None else self.gamma * history.sum(dim=1)
        excess: Tensor = log_density(latent, mean, logvar) - self.prior(history, latent)
        return (excess.sum(dim=1) * weight).mean() - _likelihood(logits, history)

    def update_prior(self) -> None:
        """Make the encoder as it is now a part of the prior."""
        self.prior.encoder_old.load_state_dict(self.encoder.state_dict())

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        logits = self.forward(self.get_rating_matrix(interaction[self.USER_ID]), 0.0)[0]
        return logits.gather(1, interaction[self.ITEM_ID].unsqueeze(1)).squeeze(1)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the logits of all items, `[rows * n_items]`."""
        return self.forward(self.get_rating_matrix(interaction[self.USER_ID]), 0.0)[0].view(-1)


class Encoder(nn.Module):
    """Five layers, each of which also sees the outputs of all before it.

    Args:
        hidden_dim: The size of the layers.
        latent_dim: The size of the Gaussian.
        input_dim: The size of the input.
    """

    def __init__(self, hidden_dim: int, latent_dim: int, input_dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(input_dim if not place else hidden_dim, hidden_dim) for place in range(5)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(hidden_dim, eps=EPSILON) for _ in range(5)])
        self.fc_mu = nn.Linear(hidden_dim, latent_dim)
        self.fc_logvar = nn.Linear(hidden_dim, latent_dim)

    def forward(self, history: Tensor, dropout_prob: float) -> tuple[Tensor, Tensor]:
        """Return the means and the logarithms of the variances."""
        hidden = functional.dropout(functional.normalize(history), dropout_prob, training=self.training)
        before: list[Tensor] = []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = norm(functional.silu(layer(hidden) + sum(before)))
            before.append(hidden)
        return self.fc_mu(hidden), self.fc_logvar(hidden)


class CompositePrior(nn.Module):
    """A mixture of the standard normal distribution, what an earlier encoder said, and a wide normal distribution.

    Args:
        encoder: The encoder to begin with, which is copied.
        mixture_weights: The weights of the three.
    """

    log_weights: Tensor

    def __init__(self, encoder: Encoder, mixture_weights: Sequence[float]) -> None:
        super().__init__()
        self.encoder_old = copy.deepcopy(encoder).requires_grad_(False)
        self.register_buffer("log_weights", torch.tensor(mixture_weights).log(), persistent=False)

    def forward(self, history: Tensor, latent: Tensor) -> Tensor:
        """Return the logarithm of the density of each number of the latent vectors."""
        mean, logvar = (at_least_float32(part) for part in self.encoder_old(history, 0.0))
        zero = torch.zeros_like(latent)
        densities = [
            log_density(latent, zero, zero),
            log_density(latent, mean, logvar),
            log_density(latent, zero, zero + WIDE),
        ]
        return torch.logsumexp(torch.stack(densities, dim=-1) + self.log_weights, dim=-1)


def log_density(values: Tensor, mean: Tensor, logvar: Tensor) -> Tensor:
    """Return the logarithm of the density of normal distributions.

    >>> zero = torch.zeros(1)
    >>> round(log_density(zero, zero, zero).item(), 6)  # -log(2 * pi) / 2
    -0.918939
    """
    return -0.5 * (logvar + math.log(2 * math.pi) + (values - mean).square() / logvar.exp())


def _likelihood(logits: Tensor, history: Tensor) -> Tensor:
    """Return the mean over users of the multinomial log-likelihood of their items."""
    return (functional.log_softmax(at_least_float32(logits), dim=1) * history).sum(dim=1).mean()


def _mixture(weights: Any) -> list[float]:
    good = isinstance(weights, (list, tuple)) and len(weights) == 3 and all(one > 0 for one in weights)
    if not good or abs(sum(weights) - 1) > 1e-6:
        raise ConfigError(f"mixture_weights={weights!r} must be three shares above 0 that add up to 1")
    return [float(one) for one in weights]
