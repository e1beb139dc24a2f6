"""A small GPT, and batches of random windows of a text."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SENTENCES = (
    "the weaver turns a wheel and the thread follows. ",
    "a pedal keeps the wheel turning while both hands are free. ",
    "what was spun before the pause is spun no second time. ",
)
TEXT = "".join(SENTENCES[(i * i + i // 3) % 3] for i in range(200))
SYMBOLS = sorted(set(TEXT))


class Block(nn.Module):
    """Causal attention and an MLP, each added to what goes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states after this block."""
        size, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(size, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(size, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Returns the logits of the next character and, if it gets the targets, the mean cross-entropy."""

    def __init__(self, context: int = 32, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(SYMBOLS), width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(SYMBOLS), bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return logits and loss."""
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.norm(self.blocks(x)))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def load_text(split: str) -> Tensor:
    """Return the first nine tenths of the text, or the rest, as indices of characters."""
    data = torch.tensor([SYMBOLS.index(character) for character in TEXT])
    cut = len(data) * 9 // 10
    return data[:cut] if split == "train" else data[cut:]


def get_batch(data: Tensor, batch_size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random windows of a text, and the characters that follow each of theirs."""
    starts = torch.randint(len(data) - context, (batch_size,), generator=generator).tolist()
    x = torch.stack([data[i : i + context] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + context] for i in starts])
    return x, y


def validation_batches(batch_size: int, context: int) -> list[tuple[Tensor, Tensor]]:
    """Return ten batches of the validation text, the same each time."""
    generator = torch.Generator().manual_seed(7)
    return [get_batch(load_text("validation"), batch_size, context, generator) for _ in range(10)]
