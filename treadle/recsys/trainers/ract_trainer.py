"""The trainer of RaCT."""

from typing import Any

from treadle.recsys.models.settings import choice
from treadle.recsys.trainers.pretrain_trainer import FINETUNE, PRETRAIN, PretrainTrainer

STAGES = ("actor_pretrain", "critic_pretrain", FINETUNE)


class RaCTTrainer(PretrainTrainer):
    """Trains RaCT in three runs: an actor, a critic that foretells how well it ranks, and the actor by its critic.

    `train_stage` says which. The first two are trained for `pretrain_epochs` epochs that nobody evaluates, and keep the
    model in a file; the next run begins from it, which the model itself does by `pre_model_path`.

    Raises:
        ConfigError: There is no such stage.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self._stage = choice(config, "train_stage", STAGES)
        self.train_stage = FINETUNE if self._stage == FINETUNE else PRETRAIN

    def _pretrain_identity(self) -> dict[str, Any]:
        # Two of the stages pretrain.
        return {"stage": self._stage}
