"""DARTS: a weight for every candidate, learnt from the validation loss."""

from typing import Any

from treadle.errors import ConfigError
from treadle.nas.oneshot.differentiable import DifferentiableTrainer


class DartsTrainer(DifferentiableTrainer):
    """Sums all candidates by the softmax of their weights, and learns these from the validation loss.

    In every step the weights of candidates come first, from a batch of the validation data, then the weights of the
    model, from a batch of the training data. If one of both has fewer batches, it begins again.

    Args:
        args: As for every one-shot trainer: model, loss, metrics, optimizer, num_epochs, dataset.
        unrolled: Whether the gradient is taken through the step that the weights are about to make (second order). It
            takes four passes where first order takes one.
        kwargs: As for every one-shot trainer; and `arc_learning_rate` and `arc_optimizer` for the weights of
            candidates.
    """

    def __init__(self, *args: Any, unrolled: bool = False, **kwargs: Any) -> None:
        if unrolled and kwargs.get("precision", "fp32") != "fp32":
            raise ConfigError(
                f"unrolled=True compares gradients at weights that are 0.01 apart, which {kwargs['precision']} cannot "
                "tell; leave precision at 'fp32'"
            )
        super().__init__(*args, **kwargs)
        self.core.unrolled = unrolled
