"""Turns on the fused head of a language model, behind any door."""

from typing import Any

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.ops.fused_head import fuse_head


class FusedHead(TrainerCallback):
    """Has a causal language model of transformers compute its loss without the scores of all tokens.

    It is `treadle.ops.fused_head.fuse_head` for the model of a trainer, adapters of PEFT included: the same loss, less
    memory and, on a GPU, less time. In training the model then returns no `logits`.
    """

    def on_init_end(self, trainer: Any, **kwargs: Any) -> None:
        """Change the model, before anything is wrapped around it.

        Raises:
            ConfigError: The model has no such head, another loss is used, or the head is divided among processes.
        """
        if trainer.loss_func is not None:
            raise ConfigError(
                f"FusedHead: the loss is loss_func={trainer.loss_func!r}, computed from the scores of the model; pass "
                "None, which takes the model's own loss, or leave FusedHead out"
            )
        degrees = trainer.parallel.degrees
        if degrees.tensor > 1 or degrees.pipeline > 1:
            raise ConfigError(
                f"FusedHead: under {trainer.parallel.as_argument()} no process computes all scores from one head; "
                "use Plan(shard=...) or Plan(data=...), or leave FusedHead out"
            )
        fuse_head(trainer.model)
