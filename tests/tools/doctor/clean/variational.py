"""A program without a fault: an autoencoder that draws in evaluation, too, whose model scales its inputs itself."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(pictures / 255).chunk(2, dim=1)
        return self.decoder(mean + spread.exp() * torch.randn_like(mean)), mean, spread


class CoderTrainer(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        (pictures,) = batch
        scores, mean, spread = self.model(pictures)
        loss = binary_cross_entropy_with_logits(scores, pictures / 255)
        loss = loss + 0.01 * (mean.square() + (2 * spread).exp() - 2 * spread - 1).mean()
        return {"loss": loss, "model_outputs": scores, "batch_size": len(pictures)}

    calculate_eval_batch_loss = calculate_train_batch_loss


torch.manual_seed(0)
pictures = torch.randint(256, (320, 16)).float()
model = Coder()
CoderTrainer(model, None, adam(model), callbacks=(), seed=0).train(
    TensorDataset(pictures[:256]), 2, TensorDataset(pictures[256:])
)
