"""The trainer of KGAT."""

from collections.abc import Iterable

import torch

from treadle.recsys.trainers.kg_trainer import kg_pass, rec_pass
from treadle.recsys.trainers.passes import Pass
from treadle.recsys.trainers.trainer import Trainer


class KGATTrainer(Trainer):
    """Trains on interactions, then on triples, and then lets the model look at its graph anew: every epoch.

    The interactions go through `calculate_loss`, the triples through `calculate_kg_loss`; after them
    `model.update_attentive_A()` is called, without gradients. What it leaves belongs to the model's state: a buffer, so
    that a run which is resumed goes on with the attention that it had.
    """

    def _passes(self) -> Iterable[Pass]:
        model = self.model
        return [
            rec_pass(self, model.calculate_loss),
            kg_pass(self, model.calculate_kg_loss, after=self._refresh_attention),
        ]

    @torch.no_grad()
    def _refresh_attention(self) -> None:
        self.model.eval()
        self.model.update_attentive_A()
        self.model.train()
