"""The head of a language model of transformers and its loss in one, found from the model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.ops.linear_cross_entropy import linear_cross_entropy
from treadle.ops.model_loss import label_rule
from treadle.runs.pretrained import base_model

IGNORED = -100
CLOSE = 0.02
"""How far, of its size, the loss of the check may be off: half precision is allowed for, another formula is not."""
TOKENS = 4


def fuse_head(model: Any) -> Any:
    """Have a causal language model of transformers compute its loss without the scores of all tokens; return it.

    In training with labels, head and cross-entropy become `linear_cross_entropy`, which takes much less memory and, on
    a GPU, less time. What the model returns then has no `logits`. Without labels, in evaluation and without gradients
    it is as before. Weights, names and checkpoints stay the same.

    Whether the loss is that of the model is looked at once, with a few tokens.

    Args:
        model: The model, or one of PEFT around it; it is changed in place. A model that was changed already is left as
            it is.

    Raises:
        ConfigError: The head cannot be found, or the loss would be another one.
    """
    base = base_model(model)
    if isinstance(vars(base).get("forward"), _FusedForward):
        return model
    kind, head = type(base).__name__, _head_of(base)
    forward = _FusedForward(base, head)
    base.forward = forward
    try:
        forward.check()
    except ConfigError:
        forward.undo()
        raise
    except Exception as error:
        forward.undo()
        raise ConfigError(f"fuse_head: {kind} failed on a few tokens: {error}") from error
    return model


def _head_of(model: Any) -> nn.Linear:
    kind, rule = type(model).__name__, label_rule(model)
    if rule is None or not rule.shifted or not hasattr(model, "loss_function"):
        raise ConfigError(f"fuse_head: {kind} is no causal language model of transformers; compute the loss by itself")
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise ConfigError(f"fuse_head: the head of {kind} is {head!r}; it must be an nn.Linear without a bias")
    return head


class _FusedForward:
    """The forward pass of a model, whose head hands hidden states to the loss while `fusing`."""

    def __init__(self, model: Any, head: Any) -> None:
        self._model, self._head = model, head
        self._forward, self._score, self._loss = model.forward, head.forward, model.loss_function
        self._fusing = False
        head.forward = self._hand_on
        model.loss_function = self._loss_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns; with labels, in training, without scores."""
        learns = self._model.training and torch.is_grad_enabled() and kwargs.get("labels") is not None
        return self._fused(*args, **kwargs) if learns else self._forward(*args, **kwargs)

    def _fused(self, *args: Any, **kwargs: Any) -> Any:
        self._fusing = True
        try:
            outputs = self._forward(*args, **kwargs)
        finally:
            self._fusing = False
        if isinstance(outputs, Mapping):
            outputs["logits"] = None  # type: ignore[index]
        return outputs

    def _hand_on(self, hidden: Tensor) -> Tensor:
        return hidden if self._fusing else self._score(hidden)

    def _loss_of(self, logits: Tensor, labels: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self._fusing:
            return self._loss(logits, labels, *args, **kwargs)
        items, ignored = kwargs.get("num_items_in_batch"), kwargs.get("ignore_index", IGNORED)
        # Each position predicts the next label; the last one predicts nothing.
        targets = nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:].to(logits.device)
        reduction = "mean" if items is None else "sum"
        loss = linear_cross_entropy(logits, self._head.weight, targets, ignore_index=ignored, reduction=reduction)
        return loss if items is None else loss / items

    @torch.no_grad()
    def check(self) -> None:
        """Compare the loss of a few tokens with that of the model itself.

        Raises:
            ConfigError: It is another one.
        """
        model, training = self._model, self._model.training
        tokens = torch.arange(TOKENS, device=self._head.weight.device).unsqueeze(0) % self._head.out_features
        model.eval()
        try:
            own = self._forward(input_ids=tokens, labels=tokens)["loss"]
            fused = self._fused(input_ids=tokens, labels=tokens)["loss"]
        finally:
            model.train(training)
        if not bool((own - fused).abs() <= CLOSE * own.abs()):
            raise ConfigError(
                f"fuse_head: {type(model).__name__} does something to its scores: its loss for a few tokens is "
                f"{float(own):.4g}, and {float(fused):.4g} by the weight of its head; leave the model as it is"
            )

    def undo(self) -> None:
        """Make the model what it was."""
        del self._model.forward
        del self._head.forward
        self._model.loss_function = self._loss
