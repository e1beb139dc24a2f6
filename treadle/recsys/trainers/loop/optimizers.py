"""Optimizers by the names that settings give them."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from treadle.errors import ConfigError, did_you_mean
from treadle.optim.row_wise import LazyAdam, RowAdagrad

logger = logging.getLogger(__name__)

LEARNERS: dict[str, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sparse_adam": torch.optim.SparseAdam,
    "lazy_adam": LazyAdam,
    "row_adagrad": RowAdagrad,
}
ROW_WISE = ("lazy_adam", "row_adagrad")
"""Learners that move only the rows of embeddings that a batch has."""
FUSED_ON_CPU = ("adam", "adamw", "sgd")
"""Learners that torch can carry out in one go on the CPU, at a fraction of the cost; on CUDA the core asks for it."""


def build_optimizer(
    model: nn.Module, params: Iterable[Any], *, learner: str, learning_rate: float, weight_decay: float
) -> Optimizer:
    """Return the optimizer called `learner`.

    Args:
        model: What is trained.
        params: Parameters, or groups of them.
        learner: Its name: adam, adamw, sgd, adagrad, rmsprop, sparse_adam, lazy_adam or row_adagrad.
        learning_rate: The learning rate.
        weight_decay: The weight of the L2 penalty.

    Raises:
        ConfigError: There is no such learner, or it does not suit the model.
    """
    name = str(learner).lower()
    if name not in LEARNERS:
        near = did_you_mean(name, LEARNERS) or f"; there are {list(LEARNERS)}"
        raise ConfigError(f"learner={learner!r} does not exist{near}")
    _check_numbers(learning_rate, weight_decay)
    given = list(params)
    if not given:
        return placeholder_optimizer()
    arguments: dict[str, Any] = {"lr": learning_rate}
    if name in ROW_WISE:
        arguments["tables"] = _row_wise_tables(model, name, weight_decay)
    elif name == "sparse_adam":
        _check_sparse(model, weight_decay)
    else:
        arguments["weight_decay"] = weight_decay
    if name in FUSED_ON_CPU and _all_dense_on_cpu(model):
        arguments["fused"] = True
    return LEARNERS[name](given, **arguments)


def _row_wise_tables(model: nn.Module, name: str, weight_decay: float) -> dict[nn.Parameter, str]:
    """Have the embeddings of a model ask for gradients of rows, and return their weights by name.

    Raises:
        ConfigError: There is none, or all rows would have to move.
    """
    if weight_decay:
        raise ConfigError(
            f"weight_decay={weight_decay}: {name} moves only the rows that a batch has, and a weight decay would move "
            "all; set it to 0, or take adam"
        )
    tables: dict[nn.Parameter, str] = {}
    for place, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.weight.requires_grad:
            if module.scale_grad_by_freq or module.max_norm is not None:
                raise ConfigError(
                    f"{name}: {place} of {type(model).__name__} changes by max_norm or frequency; use adam"
                )
            module.sparse = True
            weight: Any = module.weight
            tables[weight] = f"{place}.weight of {type(model).__name__}"
    if not tables:
        raise ConfigError(f"learner={name!r} is for embeddings, and {type(model).__name__} has none; use adam")
    return tables


def placeholder_optimizer() -> Optimizer:
    """Return an optimizer for a model without anything to be trained by gradients."""
    return torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.0)


def warn_double_weight_decay(reg_weight: Any, weight_decay: float) -> None:
    """Say so if embeddings are kept small in two ways at once."""
    if isinstance(reg_weight, (int, float)) and reg_weight > 0 and weight_decay > 0:
        message = "reg_weight=%s and weight_decay=%s are both set: weights are penalised twice"
        logger.warning(message, reg_weight, weight_decay)


def _check_numbers(learning_rate: Any, weight_decay: Any) -> None:
    for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf"):
            raise ConfigError(f"{name}={value!r} must be a number from 0")


def _all_dense_on_cpu(model: nn.Module) -> bool:
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    return not sparse and all(one.device.type == "cpu" and one.is_floating_point() for one in model.parameters())


def _check_sparse(model: nn.Module, weight_decay: float) -> None:
    """Refuse sparse_adam where a gradient would be dense, which it meets with an error at the first update."""
    if weight_decay:
        raise ConfigError(f"weight_decay={weight_decay}: sparse_adam has none; set it to 0, or take another learner")
    kinds = (nn.Embedding, nn.EmbeddingBag)
    held = {id(one.weight) for one in model.modules() if isinstance(one, kinds) and one.sparse}
    dense = [name for name, one in model.named_parameters() if one.requires_grad and id(one) not in held]
    if dense:
        raise ConfigError(
            f"learner='sparse_adam' is for embeddings with sparse=True only, and {dense[0]} of {type(model).__name__} "
            f"is none{f', nor are {len(dense) - 1} more' if len(dense) > 1 else ''}; use 'adam'"
        )
