"""An LSTM that predicts the next character, and a text to learn."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]
WORDS = ("the weaver", "a wheel", "the thread", "one foot", "the loom", "a pedal")
VERBS = ("turns", "holds", "follows", "moves", "lifts")
SYMBOLS = " .adefhilmnoprstuvw"


class RNNModel(nn.Module):
    """An embedding, two LSTM layers with dropout between them, and a linear layer."""

    def __init__(self, width: int = 48, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(len(SYMBOLS), width), nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=dropout)
        self.decoder = nn.Linear(width, len(SYMBOLS))

    def forward(self, tokens: Tensor, hidden: State) -> tuple[Tensor, State]:
        """Return the logits of the characters that follow, and the hidden state after the last one."""
        output, hidden = self.lstm(self.drop(self.embedding(tokens)), hidden)
        return self.decoder(self.drop(output)).flatten(0, 1), hidden

    def init_hidden(self, batch_size: int) -> State:
        """Return a hidden state of zeros."""
        zeros = self.decoder.weight.new_zeros(2, batch_size, self.lstm.hidden_size)
        return zeros, zeros.clone()


def load_text(sentences: int, seed: int) -> Tensor:
    """Return made-up sentences as indices of characters."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.stack([torch.randint(n, (sentences,), generator=generator) for n in (6, 5, 6)], dim=1)
    text = "".join(f"{WORDS[a]} {VERBS[v]} {WORDS[b]}. " for a, v, b in draws.tolist())
    return torch.tensor([SYMBOLS.index(character) for character in text])


def batchify(text: Tensor, batch_size: int) -> Tensor:
    """Return the text as `batch_size` columns, to be read side by side."""
    length = len(text) // batch_size
    return text[: length * batch_size].view(batch_size, length).t().contiguous()


class Windows:
    """The windows of a text in order: the characters, and those that follow."""

    def __init__(self, source: Tensor, length: int) -> None:
        self.source, self.length = source, length

    def __len__(self) -> int:
        return (len(self.source) - 1) // self.length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self) * self.length, self.length):
            end = start + self.length
            yield self.source[start:end], self.source[start + 1 : end + 1].flatten()
