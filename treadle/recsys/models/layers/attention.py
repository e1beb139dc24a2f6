"""Attention over sequences, and the Transformer made of it."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.models.layers.mlp import MLPLayers, activation_layer


class MultiHeadAttention(nn.Module):
    """Self-attention with several heads, a residual connection and a normalisation.

    Vaswani et al., "Attention is all you need", 2017.

    Args:
        n_heads: How many heads.
        hidden_size: The length of an input; a multiple of `n_heads`.
        hidden_dropout_prob: The dropout of the output.
        attn_dropout_prob: The dropout of the attention.
        layer_norm_eps: What the normalisation adds to a variance.
        norm_first: Whether to normalise what the attention reads, rather than the sum behind it.

    Raises:
        ConfigError: The size cannot be divided among the heads.
    """

    def __init__(
        self,
        n_heads: int,
        hidden_size: int,
        hidden_dropout_prob: float,
        attn_dropout_prob: float,
        layer_norm_eps: float,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        if hidden_size % n_heads:
            raise ConfigError(f"hidden_size={hidden_size} must be a multiple of n_heads={n_heads}")
        self.num_attention_heads = n_heads
        self.attention_head_size = hidden_size // n_heads
        self.all_head_size = hidden_size
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.attn_dropout_prob = attn_dropout_prob
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.out_dropout = nn.Dropout(hidden_dropout_prob)
        self.norm_first = norm_first

    def _heads(self, values: Tensor) -> Tensor:
        """Return `[rows, heads, length, size]` of `[rows, length, heads * size]`."""
        return values.view(*values.shape[:-1], self.num_attention_heads, self.attention_head_size).transpose(1, 2)

    def forward(self, input_tensor: Tensor, attention_mask: Tensor, at: Tensor | None = None) -> Tensor:
        """Return the attended sequence, `[rows, length, hidden_size]`.

        Args:
            input_tensor: The sequence, of the same shape.
            attention_mask: What is added to the scores; see `SequentialRecommender.get_attention_mask`.
            at: The one position of each row whose output is wanted, `[rows]`; the length is then 1.
        """
        read = self.LayerNorm(input_tensor) if self.norm_first else input_tensor
        key, value = self._heads(self.key(read)), self._heads(self.value(read))
        if at is not None:
            read, input_tensor = _only(read, at), _only(input_tensor, at)
            # A mask for all positions alike has one row.
            attention_mask = attention_mask if attention_mask.shape[2] == 1 else _only(attention_mask, at)
        query = self._heads(self.query(read))
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask.to(query.dtype),
            dropout_p=self.attn_dropout_prob if self.training else 0.0,
        )
        output: Tensor = self.out_dropout(self.dense(mixed.transpose(1, 2).flatten(2))) + input_tensor
        return output if self.norm_first else self.LayerNorm(output)


def _only(values: Tensor, at: Tensor) -> Tensor:
    """Return one position of each row: of `[rows, ..., length, size]`, `[rows, ..., 1, size]`."""
    places = at.view(-1, *[1] * (values.dim() - 1)).expand(*values.shape[:-2], 1, values.shape[-1])
    return values.gather(-2, places)


class FeedForward(nn.Module):
    """The network behind an attention: two linear layers, with a residual connection and a normalisation.

    Args:
        hidden_size: The length of an input.
        inner_size: The length between the layers.
        hidden_dropout_prob: The dropout of the output.
        hidden_act: The activation between the layers.
        layer_norm_eps: What the normalisation adds to a variance.
        norm_first: Whether to normalise what the layers read, rather than the sum behind them.
    """

    def __init__(
        self,
        hidden_size: int,
        inner_size: int,
        hidden_dropout_prob: float,
        hidden_act: str,
        layer_norm_eps: float,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.dense_1 = nn.Linear(hidden_size, inner_size)
        self.intermediate_act_fn = activation_layer(hidden_act, inner_size) or nn.Identity()
        self.dense_2 = nn.Linear(inner_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = nn.Dropout(hidden_dropout_prob)
        self.norm_first = norm_first

    def forward(self, input_tensor: Tensor) -> Tensor:
        """Return the output, of the shape of the input."""
        read = self.LayerNorm(input_tensor) if self.norm_first else input_tensor
        hidden = self.dense_2(self.intermediate_act_fn(self.dense_1(read)))
        output: Tensor = self.dropout(hidden) + input_tensor
        return output if self.norm_first else self.LayerNorm(output)


class TransformerLayer(nn.Module):
    """An attention and the network behind it; see `MultiHeadAttention` and `FeedForward` for the arguments."""

    def __init__(
        self,
        n_heads: int,
        hidden_size: int,
        intermediate_size: int,
        hidden_dropout_prob: float,
        attn_dropout_prob: float,
        hidden_act: str,
        layer_norm_eps: float,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.multi_head_attention = MultiHeadAttention(
            n_heads, hidden_size, hidden_dropout_prob, attn_dropout_prob, layer_norm_eps, norm_first
        )
        self.feed_forward = FeedForward(
            hidden_size, intermediate_size, hidden_dropout_prob, hidden_act, layer_norm_eps, norm_first
        )

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, at: Tensor | None = None) -> Tensor:
        """Return the next hidden states: of all positions, or of one of each row."""
        output: Tensor = self.feed_forward(self.multi_head_attention(hidden_states, attention_mask, at))
        return output


class TransformerEncoder(nn.Module):
    """Several Transformer layers.

    Args:
        n_layers: How many layers.
        n_heads: How many heads each has.
        hidden_size: The length of an input.
        inner_size: The length between the two linear layers.
        hidden_dropout_prob: The dropout of outputs.
        attn_dropout_prob: The dropout of the attention.
        hidden_act: The activation between the linear layers.
        layer_norm_eps: What a normalisation adds to a variance.
        norm_first: Whether each part normalises what it reads, rather than what it gives; then the output of the last
            layer is not normalised.
    """

    def __init__(
        self,
        n_layers: int = 2,
        n_heads: int = 2,
        hidden_size: int = 64,
        inner_size: int = 256,
        hidden_dropout_prob: float = 0.5,
        attn_dropout_prob: float = 0.5,
        hidden_act: str = "gelu",
        layer_norm_eps: float = 1e-12,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        layer = TransformerLayer(
            n_heads,
            hidden_size,
            inner_size,
            hidden_dropout_prob,
            attn_dropout_prob,
            hidden_act,
            layer_norm_eps,
            norm_first,
        )
        self.layer = nn.ModuleList([copy.deepcopy(layer) for _ in range(n_layers)])

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, output_all_encoded_layers: bool = True
    ) -> list[Tensor]:
        """Return the hidden states behind each layer, or in a list behind the last only."""
        states = []
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask)
            states.append(hidden_states)
        return states if output_all_encoded_layers else states[-1:]

    def last(self, hidden_states: Tensor, attention_mask: Tensor, at: Tensor) -> Tensor:
        """Return the hidden states behind the last layer at one position of each row, `[rows, hidden_size]`.

        The last layer does nothing for other positions than to show them to this one: most of its work is saved.
        """
        *before, last = self.layer
        for layer in before:
            hidden_states = layer(hidden_states, attention_mask)
        output: Tensor = last(hidden_states, attention_mask, at)
        return output.squeeze(1)


class VanillaAttention(nn.Module):
    """The weighted mean of several vectors, weighted by a network with one hidden layer.

    Args:
        hidden_dim: The length of a vector.
        attn_dim: The size of the hidden layer.
    """

    def __init__(self, hidden_dim: int, attn_dim: int) -> None:
        super().__init__()
        self.projection = nn.Sequential(nn.Linear(hidden_dim, attn_dim), nn.ReLU(), nn.Linear(attn_dim, 1))

    def forward(self, input_tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean `[..., hidden_dim]` of vectors `[..., vectors, hidden_dim]`, and the weights."""
        weights = self.projection(input_tensor).squeeze(-1).softmax(dim=-1)
        return (input_tensor * weights.unsqueeze(-1)).sum(dim=-2), weights


class SequenceAttLayer(nn.Module):
    """The attention of a query over a sequence, by a network of both, their difference and their product.

    Zhou et al., "Deep interest network for click-through rate prediction", 2018.

    Args:
        mask_mat: The positions 0, 1, ... of the longest sequence, `[1, length]`; it only says how long that is.
        att_hidden_size: The input and the hidden layers of the network; the input is four times a query.
        activation: The activation of its layers.
        softmax_stag: Whether weights add up to 1; in the paper they do not.
        return_seq_weight: Whether to return the weights instead of the weighted sum.
    """

    def __init__(
        self,
        mask_mat: Tensor | None = None,
        att_hidden_size: Sequence[int] = (80, 40),
        activation: str = "sigmoid",
        softmax_stag: bool = False,
        return_seq_weight: bool = True,
    ) -> None:
        super().__init__()
        self.att_hidden_size = list(att_hidden_size)
        self.activation, self.softmax_stag, self.return_seq_weight = activation, softmax_stag, return_seq_weight
        self.att_mlp_layers = MLPLayers(self.att_hidden_size, activation=activation, bn=False)
        self.dense = nn.Linear(self.att_hidden_size[-1], 1)

    def forward(self, queries: Tensor, keys: Tensor, keys_length: Tensor) -> Tensor:
        """Return the weights `[rows, 1, length]`, or the weighted sum `[rows, 1, size]`.

        Args:
            queries: What is compared with the sequence, `[rows, size]`.
            keys: The sequence, `[rows, length, size]`.
            keys_length: How long it is in each row.
        """
        same = queries.unsqueeze(1).expand_as(keys)
        scores = self.dense(self.att_mlp_layers(torch.cat([same, keys, same - keys, same * keys], dim=-1)))
        scores = scores.transpose(1, 2) / math.sqrt(keys.shape[-1])
        steps = torch.arange(keys.shape[1], device=keys.device)
        outside = (steps >= keys_length.unsqueeze(1)).unsqueeze(1)
        if self.softmax_stag:
            # A finite floor, so that a row without any position stays finite.
            weights = scores.masked_fill(outside, torch.finfo(scores.dtype).min).softmax(dim=-1)
        else:
            weights = scores.masked_fill(outside, 0.0)
        return weights if self.return_seq_weight else torch.matmul(weights, keys)
