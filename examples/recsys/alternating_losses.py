"""Two losses in turns, in a loop of one's own: even epochs learn to rank, odd ones draw similar articles together.

The loop is ours, and yet the run is saved and resumed at the end of every epoch, and `torchrun --nproc-per-node 2 -m
examples.recsys.alternating_losses` averages its gradients.

    python -m examples.recsys.alternating_losses
"""

import argparse
from typing import Any

import torch
from torch import Tensor

from examples.recsys.shop import open_shop
from treadle.recsys import Interaction, Trainer
from treadle.recsys.models.general_recommender import BPR


class WithSimilarity(BPR):
    """BPR with a second loss: articles that one customer bought should have vectors that are near."""

    def similarity_loss(self, interaction: Interaction) -> Tensor:
        order = interaction[self.USER_ID].argsort(stable=True)
        users, items = interaction[self.USER_ID][order], interaction[self.ITEM_ID][order]
        vectors = torch.nn.functional.normalize(self.item_embedding(items), dim=1)
        same = (users[1:] == users[:-1]).float()
        distance = 1 - (vectors[1:] * vectors[:-1]).sum(dim=1)
        return (distance * same).sum() / same.sum().clamp(min=1)


class AlternatingTrainer(Trainer):
    """Chooses the loss by the number of the epoch."""

    def _train_epoch(self, train_data: Any, epoch_idx: int) -> float:
        ranks = epoch_idx % 2 == 0
        calculate = self.model.calculate_loss if ranks else self.model.similarity_loss
        self.model.train()
        total = 0.0
        for interaction in train_data:
            interaction = interaction.to(self.device)
            self.optimizer.zero_grad()
            loss = calculate(interaction)
            self._check_nan(loss)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    config, train, valid, test = open_shop(WithSimilarity, epochs=arguments.epochs)
    trainer = AlternatingTrainer(config, WithSimilarity(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    ranking, similarity = (list(trainer.train_loss_dict.values())[start::2] for start in (0, 1))
    print(f"ranking loss {ranking[0]:.3f} -> {ranking[-1]:.3f}; similarity {similarity[0]:.3f} -> {similarity[-1]:.3f}")
    print(f"test ndcg@10 {trainer.evaluate(test)['ndcg@10']}")


if __name__ == "__main__":
    main()
