"""A learning rate for each part of a model: vectors that were trained before move less than the new ones.

First BPR is trained for a while. Then a model begins with its vectors of articles, which keep near to where they are,
while the customers are learnt anew.

    python -m examples.recsys.layer_rates
"""

import argparse
from typing import Any

import torch

from examples.recsys.shop import open_shop
from treadle.recsys import Trainer, get_trainer
from treadle.recsys.models.general_recommender import BPR


class GentleTrainer(Trainer):
    """Trains what was trained before at a hundredth of the rate."""

    def _build_optimizer(self, learner: str, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
        pretrained = list(self.model.item_embedding.parameters())
        known = {id(parameter) for parameter in pretrained}
        new = [parameter for parameter in self.model.parameters() if id(parameter) not in known]
        groups = [{"params": new}, {"params": pretrained, "lr": learning_rate / 100}]
        return torch.optim.Adam(groups, lr=learning_rate, weight_decay=weight_decay)


def moved(before: Any, after: Any) -> float:
    return float((after.detach() - before).norm() / before.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    config, train, valid, _ = open_shop(BPR, epochs=parser.parse_args().epochs)
    first = get_trainer(config, BPR(config, train.dataset))
    first.fit(train, valid, verbose=False, saved=False)

    model = BPR(config, train.dataset)
    model.item_embedding.load_state_dict(first.model.item_embedding.state_dict())
    begun = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer = GentleTrainer(config, model)
    score, _ = trainer.fit(train, valid, verbose=False, saved=False)
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    print(f"rates {rates}; valid ndcg@10 {first.best_valid_score:.4f} -> {score:.4f}")
    for name, parameter in model.named_parameters():
        print(f"{name} moved by {moved(begun[name], parameter):.1%}")


if __name__ == "__main__":
    main()
