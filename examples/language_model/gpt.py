"""A GPT: a transformer that reads a sequence of tokens and says, at each place, which one comes next."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle.errors import ConfigError
from treadle.ops.document_attention import DocumentLayout, attend, choose_kernel, document_layout

STANDARD_DEVIATION = 0.02


class Attention(nn.Module):
    """Each place looks at itself and at those before it.

    Args:
        width: The size of a hidden state.
        heads: How many times it is looked, each at a share of the width.
        dropout: The share of weights, and of the result, that is left out in training.
        bias: Whether the layers have one.
    """

    def __init__(self, width: int, heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.head_size = width // heads
        self.dropout = dropout
        self.inputs = nn.Linear(width, 3 * width, bias=bias)
        self.residual = nn.Linear(width, width, bias=bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, layout: DocumentLayout | None = None) -> Tensor:
        batch, length, _ = hidden.shape
        # The rows of one head lie together, so that heads can be spread over devices: here are as many as there are.
        parts = self.inputs(hidden).view(batch, length, -1, 3, self.head_size)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(3))
        dropout = self.dropout if self.training else 0.0
        if layout is None:
            seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        else:
            seen = attend(query, key, value, layout, dropout=dropout)
        result: Tensor = self.drop(self.residual(seen.transpose(1, 2).flatten(2)))
        return result


class FeedForward(nn.Module):
    """Two layers for each place alone, with four times the width between them.

    Args:
        width: The size of a hidden state.
        dropout: The share of the result that is left out in training.
        bias: Whether the layers have one.
        gelu: "none" for the exact curve, "tanh" for the approximation, which is faster on a GPU.
    """

    def __init__(self, width: int, dropout: float, bias: bool, gelu: str) -> None:
        super().__init__()
        self.outward = nn.Linear(width, 4 * width, bias=bias)
        self.activation = nn.GELU(approximate=gelu)
        self.residual = nn.Linear(4 * width, width, bias=bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.drop(self.residual(self.activation(self.outward(hidden))))
        return result


class Block(nn.Module):
    """Attention and feed-forward, each added to what came in, which is normalised before and not after.

    Args:
        width: The size of a hidden state.
        heads: The heads of the attention.
        dropout: The share that is left out in training.
        bias: Whether the layers have one.
        gelu: The kind of GELU.
    """

    def __init__(self, width: int, heads: int, dropout: float, bias: bool, gelu: str) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=bias)
        self.attention = Attention(width, heads, dropout, bias)
        self.feed_forward_norm = nn.LayerNorm(width, bias=bias)
        self.feed_forward = FeedForward(width, dropout, bias, gelu)

    def forward(self, hidden: Tensor, layout: DocumentLayout | None = None) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), layout)
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class Trunk(nn.Module):
    """Everything but the head: from tokens to hidden states.

    Args:
        vocabulary_size: How many tokens there are.
        context: The longest sequence.
        layers: How many blocks.
        heads: The heads of each block's attention.
        width: The size of a hidden state.
        dropout: The share that is left out in training.
        bias: Whether linear and norm layers have one.
        gelu: The kind of GELU.
        residual_dtype: The number format of the hidden states between blocks under autocast; None keeps fp32.
        max_documents: The most documents in a packed row, where rows are packed.
    """

    def __init__(
        self,
        vocabulary_size: int,
        context: int,
        layers: int,
        heads: int,
        width: int,
        dropout: float,
        bias: bool,
        gelu: str,
        residual_dtype: torch.dtype | None,
        max_documents: int | None = None,
    ) -> None:
        super().__init__()
        self.dropout, self.head_size, self.max_documents = dropout, width // heads, max_documents
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, bias, gelu) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.residual_dtype = residual_dtype

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        hidden = embedded(self, tokens, positions)
        if positions is None:
            for block in self.blocks:
                hidden = block(hidden)
        else:
            layout = self._layout(positions, hidden)
            for block in self.blocks:
                hidden = block(hidden, layout)
        result: Tensor = self.norm(hidden)
        return result

    def _layout(self, positions: Tensor, hidden: Tensor) -> DocumentLayout:
        """Return which places look at which, once for all blocks."""
        if self.max_documents is None:
            return document_layout(positions)
        device = hidden.device
        dtype = torch.get_autocast_dtype(device.type) if _autocasts(device.type) else hidden.dtype
        dropout = self.dropout if self.training else 0.0
        kernel = choose_kernel(device, dtype, self.head_size, dropout=dropout)
        return document_layout(positions, max_documents=self.max_documents, kernel=kernel)


def embedded(trunk: "Trunk | Inputs", tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    """Return what tokens and their places look like to the blocks; places are counted from the left if not given."""
    places = trunk.positions.weight[: tokens.shape[1]] if positions is None else trunk.positions(positions)
    hidden: Tensor = trunk.drop(trunk.tokens(tokens) + places)
    if trunk.residual_dtype is not None and _autocasts(hidden.device.type):
        # A sum takes the wider of two formats, so autocast alone would keep the whole stream in fp32.
        hidden = hidden.to(trunk.residual_dtype)
    return hidden


class PlainHead(nn.Module):
    """Scores for every token of the vocabulary, or their cross-entropy.

    Another head has the same arguments, a `weight` of (vocabulary, width), and the same `forward`.

    Args:
        width: The size of a hidden state.
        vocabulary_size: How many tokens there are.
    """

    def __init__(self, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary_size, width))

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        scores = F.linear(hidden, self.weight)
        return scores if targets is None else F.cross_entropy(scores.flatten(0, -2), targets.flatten())


class Inputs(nn.Module):
    """The beginning of a trunk, for a stage of a pipeline: what tokens and their places look like to the blocks.

    Args:
        trunk: The trunk, whose modules these are.
    """

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.tokens, self.positions, self.drop = trunk.tokens, trunk.positions, trunk.drop
        self.residual_dtype = trunk.residual_dtype

    def forward(self, tokens: Tensor) -> Tensor:
        return embedded(self, tokens)


class Outputs(nn.Module):
    """The end of a GPT, for the last stage of a pipeline: what the model returns, from its hidden states.

    Args:
        head: The head of the model.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        if targets is None:
            scores: Tensor = self.head(hidden)
            return scores
        return {"loss": self.head(hidden, targets)}


class GPT(nn.Module):
    """A decoder-only transformer with learned positions and norms before each part, initialised as GPT-2.

    Args:
        vocabulary_size: How many tokens there are.
        context: The longest sequence.
        layers: How many blocks.
        heads: The heads of each block's attention.
        width: The size of a hidden state.
        dropout: The share that is left out in training.
        bias: Whether linear and norm layers have one.
        tie_weights: Whether the head has the weights of the token embedding.
        gelu: "none" for the exact curve, "tanh" for the approximation, which is faster on a GPU.
        residual_dtype: The number format between blocks under autocast, such as "bfloat16"; None keeps fp32.
        head: Makes the head from the width and the vocabulary's size.
        max_documents: The most documents in a packed row. With it the fastest attention is taken that keeps documents
            apart; without it that is a mask.
    """

    def __init__(
        self,
        vocabulary_size: int,
        context: int = 1024,
        layers: int = 12,
        heads: int = 12,
        width: int = 768,
        dropout: float = 0.0,
        bias: bool = True,
        tie_weights: bool = True,
        gelu: str = "none",
        residual_dtype: str | None = None,
        head: Callable[[int, int], nn.Module] = PlainHead,
        max_documents: int | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"GPT: width={width} is no multiple of heads={heads}")
        if gelu not in ("none", "tanh"):
            raise ConfigError(f"GPT: gelu={gelu!r} is unknown; use 'none' or 'tanh'")
        self.context = context
        dtype = None if residual_dtype is None else _dtype(residual_dtype)
        self.trunk = Trunk(vocabulary_size, context, layers, heads, width, dropout, bias, gelu, dtype, max_documents)
        self.head = head(width, vocabulary_size)
        if tie_weights:
            self.head.weight = self.trunk.tokens.weight
        self._initialise(layers)

    def _initialise(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                # What is added up over all blocks begins smaller, so that the sum does not grow with their number.
                share = math.sqrt(2 * layers) if name.endswith("residual.weight") else 1.0
                nn.init.normal_(parameter, std=STANDARD_DEVIATION / share)

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Return scores for the token after each place; with `targets`, the mean cross-entropy as "loss".

        With `positions` rows are packed: each 0 begins a document, which knows nothing of the others in its row. The
        loss is then a mean over the targets that are not -100, and says over how many.
        """
        if tokens.shape[1] > self.context:
            raise ConfigError(f"a sequence of {tokens.shape[1]} tokens is longer than context={self.context}")
        hidden = self.trunk(tokens) if positions is None else self.trunk(tokens, positions)
        if targets is None:
            scores: Tensor = self.head(hidden)
            return scores
        loss = {"loss": self.head(hidden, targets)}
        return loss if positions is None else {**loss, "num_items_in_batch": (targets != -100).sum()}

    def tensor_plan(self) -> dict[str, str]:
        """Return how layers are spread over processes: by heads and hidden units, summed where they are added up."""
        return {
            "trunk.blocks.*.attention.inputs": "column",
            "trunk.blocks.*.attention.residual": "row",
            "trunk.blocks.*.feed_forward.outward": "column",
            "trunk.blocks.*.feed_forward.residual": "row",
        }

    def pipeline_blocks(self) -> list[nn.Module]:
        """Return the modules that tokens go through one after the other, to be shared out to stages."""
        return [Inputs(self.trunk), *self.trunk.blocks, self.trunk.norm, Outputs(self.head)]

    def count_parameters(self, *, positions: bool = True) -> int:
        """Return how many numbers are learned; tied ones count once, those of `positions` if asked for."""
        total = sum(parameter.numel() for parameter in self.parameters())
        return total if positions else total - self.trunk.positions.weight.numel()

    def flops_per_token(self) -> int:
        """Return the operations of forward and backward pass for one token of a full sequence: 6N + 12LDT.

        Each of N parameters takes part in a multiplication and an addition forward, and in two of each backward;
        positions are only looked up and do not count. In each of L layers a place compares its D numbers with those
        of T places, and sums up as many: 4DT forward, twice that backward. (What the causal mask hides is counted.)
        MFU is this times tokens per second, over the operations per second that the device is capable of.
        """
        width = self.trunk.norm.normalized_shape[0]
        attention = 12 * len(self.trunk.blocks) * width * self.context
        return 6 * self.count_parameters(positions=False) + attention


def _autocasts(device: str) -> bool:
    # Some devices, "meta" among them, do not even take the question.
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"GPT: residual_dtype={name!r} is no floating-point format of torch; 'bfloat16' is one")
    return dtype
