"""Interests that are found in a history, and how they evolve."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.models.layers.attention import SequenceAttLayer
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.loss import at_least_float32

GRU_TYPES = ("GRU", "AIGRU", "AGRU", "AUGRU")
"""How attention acts on the network that follows interests: behind it, on its input, as its gate, on its gate."""


class InterestExtractorNetwork(nn.Module):
    """A recurrent network whose states are the interests, and a network that judges them by the next item.

    Args:
        input_size: The length of an item's vector.
        hidden_size: The length of an interest.
        mlp_size: The layers of the judging network, from an interest and an item to 1.
    """

    def __init__(self, input_size: int, hidden_size: int, mlp_size: Sequence[int]) -> None:
        super().__init__()
        self.gru = nn.GRU(input_size, hidden_size, batch_first=True)
        self.auxiliary_net = MLPLayers(mlp_size, activation="sigmoid", last_activation=False)

    def forward(
        self, keys: Tensor, keys_length: Tensor, neg_keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the interests `[rows, length, hidden_size]`, and the auxiliary loss.

        Args:
            keys: The items, `[rows, length, input_size]`.
            keys_length: How many they are in each row.
            neg_keys: Items that were not chosen, of the same shape; without them there is no loss.
        """
        interests, _ = self.gru(keys)
        if neg_keys is None:
            return interests, None
        return interests, self.auxiliary_loss(interests[:, :-1], keys[:, 1:], neg_keys[:, 1:], keys_length - 1)

    def auxiliary_loss(self, h_states: Tensor, click_seq: Tensor, noclick_seq: Tensor, keys_length: Tensor) -> Tensor:
        """Return the mean cross-entropy of next items that were chosen and of those that were not.

        Each row counts the same, with the mean over its own items, as it does in the loss of the labels.

        Args:
            h_states: The interests, `[rows, length, hidden_size]`.
            click_seq: The item after each, `[rows, length, input_size]`.
            noclick_seq: Another item for each.
            keys_length: How many of them count in each row.
        """
        chosen, others = (
            at_least_float32(self.auxiliary_net(torch.cat([h_states, items], dim=2)).squeeze(2))
            for items in (click_seq, noclick_seq)
        )
        losses = -functional.logsigmoid(chosen) - functional.logsigmoid(-others)
        inside = torch.arange(losses.shape[1], device=losses.device) < keys_length.unsqueeze(1)
        return ((losses * inside).sum(dim=1) / (2 * inside.sum(dim=1)).clamp(min=1)).mean()


class InterestEvolvingLayer(nn.Module):
    """A recurrent network over the interests that goes with an item, by attention; its last state is the output.

    Attention adds up to 1 over the interests of a row, as in the paper, so that states stay bounded.

    Args:
        mask_mat: Not used; RecBole's models pass the positions.
        input_size: The length of an interest, and of the item.
        rnn_hidden_size: The length of a state.
        att_hidden_size: The input and the hidden layers of the attention; the input is four times an interest.
        activation: The activation of its layers.
        softmax_stag: Whether attention adds up to 1.
        gru: One of `GRU_TYPES`.
    """

    def __init__(
        self,
        mask_mat: Tensor | None,
        input_size: int,
        rnn_hidden_size: int,
        att_hidden_size: Sequence[int] = (80, 40),
        activation: str = "sigmoid",
        softmax_stag: bool = True,
        gru: str = "GRU",
    ) -> None:
        super().__init__()
        self.gru = gru
        self.attention_layer = SequenceAttLayer(
            mask_mat, att_hidden_size, activation, softmax_stag, return_seq_weight=gru != "GRU"
        )
        self.dynamic_rnn: nn.Module
        if gru in ("GRU", "AIGRU"):
            self.dynamic_rnn = nn.GRU(input_size, rnn_hidden_size, batch_first=True)
        else:
            self.dynamic_rnn = AttentionGRU(input_size, rnn_hidden_size, gated=gru == "AUGRU")

    def forward(self, queries: Tensor, keys: Tensor, keys_length: Tensor) -> Tensor:
        """Return the last state of each row, `[rows, rnn_hidden_size]`.

        Args:
            queries: The items, `[rows, input_size]`.
            keys: The interests, `[rows, length, input_size]`.
            keys_length: How many they are in each row.
        """
        if self.gru == "GRU":
            states, _ = self.dynamic_rnn(keys)
            summed: Tensor = self.attention_layer(queries, states, keys_length)
            return summed.squeeze(1)
        attention = self.attention_layer(queries, keys, keys_length).transpose(1, 2)
        if self.gru == "AIGRU":
            states, _ = self.dynamic_rnn(keys * attention)
            last = (keys_length - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states.shape[2])
            found: Tensor = states.gather(1, last).squeeze(1)
            return found
        evolved: Tensor = self.dynamic_rnn(keys, attention)
        return evolved


class AttentionGRU(nn.Module):
    """A recurrent network whose state moves as far as attention lets it.

    With u the update gate and a the attention, the state moves from h to `(1 - w) h + w n`: with w = a u, which is an
    AUGRU, or with w = a, which is an AGRU and needs no gate. Where attention is 0, behind the end of a sequence, it
    stays as it is.

    Args:
        input_size: The length of an input.
        hidden_size: The length of the state.
        gated: Whether it has an update gate.
    """

    def __init__(self, input_size: int, hidden_size: int, *, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        rows = (3 if gated else 2) * hidden_size
        bound = hidden_size**-0.5
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.zeros(rows))
        self.bias_hh = nn.Parameter(torch.zeros(rows))

    def forward(self, inputs: Tensor, attention: Tensor) -> Tensor:
        """Return the last state, `[rows, hidden_size]`, in float32 at least.

        Args:
            inputs: The inputs, `[rows, length, input_size]`.
            attention: The attention to each, `[rows, length, 1]`.
        """
        # What does not depend on the state is one product for all steps.
        prepared = at_least_float32(functional.linear(inputs, self.weight_ih, self.bias_ih))
        weights = at_least_float32(attention)
        state = prepared.new_zeros(len(inputs), self.weight_hh.shape[1])
        for step in range(inputs.shape[1]):
            recurrent = at_least_float32(functional.linear(state, self.weight_hh, self.bias_hh))
            state = self._moved(state, prepared[:, step], recurrent, weights[:, step])
        return state

    def _moved(self, state: Tensor, prepared: Tensor, recurrent: Tensor, attention: Tensor) -> Tensor:
        own, other = (values.tensor_split(3 if self.gated else 2, dim=1) for values in (prepared, recurrent))
        reset = (own[0] + other[0]).sigmoid()
        new = (own[-1] + reset * other[-1]).tanh()
        weight = attention * (own[1] + other[1]).sigmoid() if self.gated else attention
        return torch.lerp(state, new, weight.expand_as(state))
