"""Which names of metrics mean the same quantity: every door is asked for it by the core's name, or by its own.

A value is kept under one name only, which is that of the door; who looks for it under another one finds it here.
"""

from collections.abc import Collection

SAME: tuple[tuple[str, ...], ...] = (
    ("train_loss", "total_loss"),
    ("eval_loss_epoch", "validation_loss", "valid_loss"),
    ("gradient_norm", "grad_norm"),
)
"""Names of one quantity, the core's first."""
EVALUATION_LOSSES = (*SAME[1], "loss")
"""Names of the loss among what evaluations report; elsewhere `loss` may be a part of the training loss."""
PREFIXES = ("valid_", "validation_")
"""What doors put before the names of the metrics of an evaluation."""
TRAINING_LOSSES = ("total_loss", "train_loss_epoch", "train_loss", "loss")
"""Under which names lines of metrics have the loss of training: the first that is there counts."""


def canonical_name(name: str) -> str:
    """Return what the core calls a metric.

    >>> [canonical_name(name) for name in ("total_loss", "valid_ndcg@10", "validation_loss", "accuracy")]
    ['train_loss', 'ndcg@10', 'eval_loss_epoch', 'accuracy']
    """
    group = next((group for group in SAME if name in group), None)
    if group is not None:
        return group[0]
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix) or name


def find_name(name: str, known: Collection[str], *, evaluated: bool = False) -> str:
    """Return the name under which a metric is known: as it is asked for, else another name of the same quantity.

    >>> find_name("ndcg@10", ["valid_ndcg@10"]), find_name("train_loss", ["total_loss"]), find_name("lr", ["time"])
    ('valid_ndcg@10', 'total_loss', 'lr')

    Args:
        name: What is asked for; it is returned if nothing means the same.
        known: The names there are.
        evaluated: Whether all of them are metrics of evaluations.
    """
    if name in known:
        return name
    own = canonical_name(name)
    others = next((group for group in SAME if own in group), (own, *(prefix + own for prefix in PREFIXES)))
    if evaluated and name in EVALUATION_LOSSES:
        others = EVALUATION_LOSSES
    return next((other for other in others if other in known), name)
