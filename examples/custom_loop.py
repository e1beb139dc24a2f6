"""Trains with a loop of one's own: it collects samples that are still hard, and updates when it has a batch of them.

How many updates an epoch has is known only afterwards, so no override of a single verb could do it. Data still comes
from the trainer, and every `optimizer.step()` is counted.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from treadle import Trainer


class HardSamplesTrainer(Trainer):
    """Updates on samples whose loss is above `threshold`, a full batch of them at a time."""

    threshold = 0.3

    def _run_train_epoch(self, train_dl: Any) -> None:
        """Train one epoch; the trainer sees what is drawn and when the optimizer steps."""
        self.train_epoch_start()
        hard: list[tuple[Tensor, Tensor]] = []
        for inputs, targets in train_dl:
            with torch.no_grad():
                chosen = cross_entropy(self.model(inputs), targets, reduction="none") > self.threshold
            hard.append((inputs[chosen], targets[chosen]))
            collected = float(sum(len(part) for _, part in hard))
            # Gradients are averaged over all processes, so they must update together: when the last one is ready.
            if self.processes.reduce([collected], "min")[0] >= len(targets):
                self._update_on(hard)
                hard = []
        self.train_epoch_end()

    def _update_on(self, hard: list[tuple[Tensor, Tensor]]) -> None:
        inputs, targets = (torch.cat(parts) for parts in zip(*hard, strict=True))
        loss = self.loss_func(self.model(inputs), targets)
        self._update_loss_tracker(loss, len(targets))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    """Train on two rings and say how many updates each epoch needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    points = torch.randn(2048, 2)
    data = TensorDataset(points, (points.norm(dim=1) < 1).long())
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = HardSamplesTrainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=0)
    result = trainer.train(data, num_epochs=arguments.epochs, per_device_batch_size=64)
    everything = result.epochs * len(data) // 64
    accuracy = (trainer.predict(points).argmax(dim=1) == data.tensors[1]).float().mean()
    print(f"{result.steps} updates instead of {everything}; accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
