"""Blocks in which each item of a sequence sees itself and what came before it; several sequences may share a row."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.ops.document_attention import document_mask
from treadle.recsys.models.layers.mlp import activation_layer


class SequencePlaces(NamedTuple):
    """Where each item of a batch stands.

    Attributes:
        positions: Its place in its own sequence, from 0, `[rows, length]`; 0 where there is no item.
        from_end: How many items of its sequence come after it; 0 where there is no item.
        mask: Which place sees which, `[rows, 1, length, length]`; None where a row is one sequence from its beginning.
    """

    positions: Tensor
    from_end: Tensor
    mask: Tensor | None


def alone_in_rows(item_seq: Tensor) -> SequencePlaces:
    """Return the places of sequences that have a row each, with zeros behind them.

    >>> alone_in_rows(torch.tensor([[7, 8, 9], [7, 0, 0]])).from_end.tolist()
    [[2, 1, 0], [0, 0, 0]]
    """
    inside = item_seq != 0
    steps = torch.arange(item_seq.shape[1], device=item_seq.device).expand_as(item_seq)
    lengths = inside.sum(dim=1, keepdim=True)
    return SequencePlaces(steps.masked_fill(~inside, 0), (lengths - 1 - steps).masked_fill(~inside, 0), None)


def sharing_rows(positions: Tensor, lengths: Tensor) -> SequencePlaces:
    """Return the places of sequences that share rows.

    Args:
        positions: The place of each item in its own sequence, 0 where there is no item, `[rows, length]`.
        lengths: How long that sequence is.
    """
    # Where nothing is, is a sequence of its own: nobody sees it.
    return SequencePlaces(positions, (lengths - 1 - positions).clamp(min=0), document_mask(positions))


class CausalAttention(nn.Module):
    """Self-attention of several heads over what came before.

    Args:
        hidden_size: The length of an input; a multiple of `n_heads`.
        n_heads: How many heads.
        dropout: The dropout of the attention.

    Raises:
        ConfigError: The size cannot be divided among the heads.
    """

    def __init__(self, hidden_size: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        if hidden_size % n_heads:
            raise ConfigError(f"hidden_size={hidden_size} must be a multiple of n_heads={n_heads}")
        self.n_heads, self.dropout = n_heads, dropout
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, places: SequencePlaces) -> Tensor:
        """Return what each place sees, `[rows, length, hidden_size]`."""
        parts = self.query_key_value(hidden).chunk(3, dim=-1)
        query, key, value = (one.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in parts)
        seen = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=places.mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=places.mask is None,
        )
        output: Tensor = self.dense(seen.transpose(1, 2).flatten(2))
        return output


class PreNormBlock(nn.Module):
    """An attention and a network of two layers, each on the normalised input and added to it.

    Args:
        hidden_size: The length of an input.
        n_heads: How many heads the attention has.
        inner_size: The length between the layers.
        hidden_dropout: The dropout of outputs, and between the layers.
        attention_dropout: The dropout of the attention.
        activation: What is between the layers.
        layer_norm_eps: What a normalisation adds to a variance.
    """

    def __init__(
        self,
        hidden_size: int,
        n_heads: int,
        inner_size: int,
        hidden_dropout: float,
        attention_dropout: float,
        activation: str,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.attention = CausalAttention(hidden_size, n_heads, attention_dropout)
        self.network_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dense_1 = nn.Linear(hidden_size, inner_size)
        self.activation = activation_layer(activation, inner_size) or nn.Identity()
        self.dense_2 = nn.Linear(inner_size, hidden_size)
        self.dropout = nn.Dropout(hidden_dropout)

    def forward(self, hidden: Tensor, places: SequencePlaces) -> Tensor:
        """Return the next hidden states."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), places))
        inner = self.dropout(self.activation(self.dense_1(self.network_norm(hidden))))
        output: Tensor = hidden + self.dropout(self.dense_2(inner))
        return output


class GatedBlock(nn.Module):
    """A LiGR block: as `PreNormBlock`, but gates learn how much of each part is added, and the network is a SwiGLU.

    Borisyuk et al., "From features to Transformers: redefining ranking for scalable impact", 2025, with the network of
    Shazeer, "GLU variants improve Transformer", 2020, as in eSASRec.

    Args:
        hidden_size: The length of an input.
        n_heads: How many heads the attention has.
        inner_size: The length inside of the network.
        hidden_dropout: The dropout of outputs, and inside of the network.
        attention_dropout: The dropout of the attention.
        layer_norm_eps: What a normalisation adds to a variance.
    """

    def __init__(
        self,
        hidden_size: int,
        n_heads: int,
        inner_size: int,
        hidden_dropout: float,
        attention_dropout: float,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.attention = CausalAttention(hidden_size, n_heads, attention_dropout)
        self.attention_gate = nn.Linear(hidden_size, hidden_size)
        self.network_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.network_in = nn.Linear(hidden_size, 2 * inner_size, bias=False)
        self.network_out = nn.Linear(inner_size, hidden_size, bias=False)
        self.network_gate = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(hidden_dropout)

    def forward(self, hidden: Tensor, places: SequencePlaces) -> Tensor:
        """Return the next hidden states."""
        seen = self.dropout(self.attention(self.attention_norm(hidden), places))
        hidden = hidden + torch.sigmoid(self.attention_gate(hidden)) * seen
        gate, value = self.network_in(self.network_norm(hidden)).chunk(2, dim=-1)
        inner = self.dropout(self.network_out(self.dropout(functional.silu(gate) * value)))
        output: Tensor = hidden + torch.sigmoid(self.network_gate(hidden)) * inner
        return output


class RelativeBias(nn.Module):
    """What is added to the scores of an attention for how far apart two items are, in places and in time.

    Args:
        length: The most items of a sequence.
        n_buckets: How many buckets of time there are; 0 leaves time out.
    """

    LOG_STEP = 0.301
    """By how much the logarithm of the time between two items grows from one bucket to the next."""

    def __init__(self, length: int, n_buckets: int) -> None:
        super().__init__()
        self.n_buckets = n_buckets
        self.by_distance = nn.Parameter(torch.zeros(length))
        self.by_time = nn.Parameter(torch.zeros(n_buckets + 1)) if n_buckets else None

    def forward(self, length: int, times: Tensor | None) -> Tensor:
        """Return the bias of each place for each other, `[1, 1, length, length]`, or with times `[rows, 1, ...]`.

        Of two items of the same sequence the places in a row are as far apart as those in the sequence. What comes
        later gets some number or other: nobody sees it.
        """
        steps = torch.arange(length, device=self.by_distance.device)
        distance = (steps.unsqueeze(1) - steps).clamp(min=0)
        bias = self.by_distance[distance].view(1, 1, length, length)
        if self.by_time is None or times is None:
            return bias
        apart = (times.unsqueeze(2) - times.unsqueeze(1)).abs().clamp(min=1)
        buckets = (apart.log() / self.LOG_STEP).long().clamp(max=self.n_buckets)
        return bias + self.by_time[buckets].unsqueeze(1)


class PointwiseBlock(nn.Module):
    """A block of HSTU: an attention whose weights are no shares, and whose output is multiplied with a gate.

    The weight of an item is the SiLU of its score, divided by the most items there may be: unlike shares, weights tell
    how often something happened. There is no network behind the attention.

    Args:
        hidden_size: The length of an input.
        n_heads: How many heads.
        attention_size: The length of queries and keys of a head.
        value_size: The length of values of a head.
        hidden_dropout: The dropout of the output.
        attention_dropout: The dropout of weights.
        length: The most items of a sequence.
        n_buckets: How many buckets of time there are; 0 leaves time out.
        layer_norm_eps: What a normalisation adds to a variance.
    """

    def __init__(
        self,
        hidden_size: int,
        n_heads: int,
        attention_size: int,
        value_size: int,
        hidden_dropout: float,
        attention_dropout: float,
        length: int,
        n_buckets: int,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.n_heads, self.length = n_heads, length
        self.sizes = [n_heads * one for one in (value_size, value_size, attention_size, attention_size)]
        self.input_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.projection = nn.Linear(hidden_size, sum(self.sizes))
        self.bias = RelativeBias(length, n_buckets)
        self.output_norm = nn.LayerNorm(n_heads * value_size, eps=layer_norm_eps)
        self.dense = nn.Linear(n_heads * value_size, hidden_size)
        self.weight_dropout = nn.Dropout(attention_dropout)
        self.dropout = nn.Dropout(hidden_dropout)

    def forward(self, hidden: Tensor, mask: Tensor, times: Tensor | None) -> Tensor:
        """Return the next hidden states.

        Args:
            hidden: The states, `[rows, length, hidden_size]`.
            mask: Which place sees which, `[..., length, length]`.
            times: When each item was used, `[rows, length]`; None leaves time out.
        """
        projected = functional.silu(self.projection(self.input_norm(hidden)))
        gate, *parts = torch.split(projected, self.sizes, dim=-1)
        heads = (*hidden.shape[:2], self.n_heads, -1)
        value, query, key = (one.view(heads).transpose(1, 2) for one in parts)
        scores = torch.matmul(query, key.transpose(2, 3)) + self.bias(hidden.shape[1], times)
        weights = (functional.silu(scores) / self.length).masked_fill(~mask, 0.0).to(value.dtype)
        seen = torch.matmul(self.weight_dropout(weights), value).transpose(1, 2).flatten(2)
        output: Tensor = hidden + self.dense(self.dropout(gate * self.output_norm(seen)))
        return output
