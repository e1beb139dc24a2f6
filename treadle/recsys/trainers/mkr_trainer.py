"""The trainer of MKR."""

from collections.abc import Iterable
from typing import Any

from treadle.recsys.models.settings import whole
from treadle.recsys.trainers.kg_trainer import kg_pass, rec_pass
from treadle.recsys.trainers.passes import Pass
from treadle.recsys.trainers.trainer import Trainer


class MKRTrainer(Trainer):
    """Trains on interactions every epoch, and every `kge_interval` epochs on triples as well.

    The interactions go through `calculate_rs_loss`, the triples through `calculate_kg_loss`. With `kge_learning_rate`
    the triples have an optimizer of their own, as the authors' program has.

    Attributes:
        kge_interval: How many epochs lie between two passes through the triples; the first epoch has one.
        optimizer_kge: The optimizer of the triples.

    Raises:
        ConfigError: `kge_interval` is no whole number from 1.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.kge_interval = whole(config, "kge_interval")
        rate = config["kge_learning_rate"]
        self.optimizer_kge = self.optimizer if rate is None else self._build_optimizer(learning_rate=rate)

    def _passes(self) -> Iterable[Pass]:
        model = self.model
        return [
            rec_pass(self, model.calculate_rs_loss),
            kg_pass(
                self,
                model.calculate_kg_loss,
                optimizer=self.optimizer_kge,
                is_due=lambda epoch: epoch % self.kge_interval == 0,
            ),
        ]
