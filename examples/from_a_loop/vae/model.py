"""A variational autoencoder for the digits of scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


class VAE(nn.Module):
    """An encoder into a Gaussian of 8 dimensions, and a decoder back to 64 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.mu, self.logvar = nn.Linear(128, 8), nn.Linear(128, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of the pixels, and mean and log-variance of the code; it is sampled in training only."""
        hidden = self.encoder(images)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        code = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu) if self.training else mu
        return self.decoder(code), mu, logvar


def negative_elbo(outputs: tuple[Tensor, Tensor, Tensor], images: Tensor) -> Tensor:
    """Return reconstruction error plus KL divergence, summed over the batch."""
    logits, mu, logvar = outputs
    reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return reconstruction + divergence


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,408 images to train on, and 389 for validation, with their labels."""
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16).float(), torch.tensor(labels)
    return TensorDataset(inputs[:1408], targets[:1408]), TensorDataset(inputs[1408:], targets[1408:])
