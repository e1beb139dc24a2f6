"""A config: a small network that learns which of two rings a point lies on."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from treadle.config import LazyCall as L
from treadle.config import get_config
from treadle.optim.param_groups import get_default_optimizer_params


class Rings(Dataset[dict[str, Tensor]]):
    """Points on two rings around the origin, of the radii 1 and 2, with some noise."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (count,), generator=generator)
        angles = 2 * torch.pi * torch.rand(count, generator=generator)
        radii = 1 + self.labels + 0.1 * torch.randn(count, generator=generator)
        self.points = torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"points": self.points[index], "labels": self.labels[index]}


class Network(nn.Module):
    """Returns losses in training and scores in evaluation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.layers(points)
        if not self.training:
            return {"prediction_scores": scores}
        return {"ring_loss": nn.functional.cross_entropy(scores, labels)}


model = L(Network)(width=32)
optim = L(torch.optim.AdamW)(
    params=L(get_default_optimizer_params)(weight_decay_bias=0.0, clip_grad_max_norm=1.0, clip_grad_norm_type=2.0),
    lr=1e-2,
)
dataloader = {
    "train": L(Rings)(count=2048, seed=0),
    "test": {"rings": L(Rings)(count=512, seed=1)},
}
train = get_config("common/train.py").train
train.update(
    output_dir="runs/rings",
    train_iter=200,
    train_micro_batch_size=64,
    test_micro_batch_size=128,
    warmup_ratio=0.1,
    log_period=50,
    checkpointer={"period": 100},
    evaluation={"eval_period": 100},
)
