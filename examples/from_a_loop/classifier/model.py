"""A small convolutional network, and the digits of scikit-learn it is trained on."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    """Two convolutions and two linear layers for images of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout2d(0.1),
        )
        self.classifier = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of ten classes."""
        return self.classifier(self.features(images).flatten(1))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,408 digits to train on, and 389 for validation."""
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16).float().view(-1, 1, 8, 8), torch.tensor(labels)
    return TensorDataset(inputs[:1408], targets[:1408]), TensorDataset(inputs[1408:], targets[1408:])
