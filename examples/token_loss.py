"""Trains on sentences of unequal length, where the loss is a mean over tokens: `num_items_in_batch`.

The same run is made with one batch of 16 sentences for an update, and with four micro-batches of 4. Told how many
tokens each loss is a mean over, the trainer gives every token the same weight, and both runs end with the same model.
Told the number of sentences instead, it weighs a micro-batch by that, and the runs drift apart. Told nothing, it sees
that the cross-entropy of this verb ignores targets, and refuses to go on. Where the loss is the trainer's own,
`loss_func=CrossEntropyLoss()`, it counts by itself.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from treadle import Trainer

WORDS, PADDING = 12, -100


def sentences(count: int) -> list[Tensor]:
    """Return sentences of 3 to 20 words in which every word depends on the one before."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 21, (count,), generator=generator).tolist()
    return [(length + 5 * torch.arange(length)) % WORDS for length in lengths]


def together(samples: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return words and the words that follow them, each padded to the longest sentence."""
    words = pad_sequence([sample[:-1] for sample in samples], batch_first=True)
    following = pad_sequence([sample[1:] for sample in samples], batch_first=True, padding_value=PADDING)
    return words, following


class TokenTrainer(Trainer):
    """A trainer whose loss is a mean over tokens."""

    counts_tokens = True

    def calculate_train_batch_loss(self, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        """Return the loss of a batch, and over how many tokens it is the mean."""
        words, following = batch
        outputs = self.model(words)
        loss = cross_entropy(outputs.flatten(0, 1), following.flatten(), ignore_index=PADDING)
        output = {"loss": loss, "model_outputs": outputs, "batch_size": len(words)}
        # A tensor, which stays on the device: reading it would make the step wait.
        return output | {"num_items_in_batch": (following != PADDING).sum() if self.counts_tokens else len(words)}


def trained(micro_batch: int, accumulation: int, epochs: int, *, counts_tokens: bool) -> Tensor:
    """Train a small model and return its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)).double()
    trainer = TokenTrainer(model, None, torch.optim.SGD(model.parameters(), lr=0.5), callbacks=(), seed=0)
    trainer.counts_tokens = counts_tokens
    trainer.train(
        sentences(256),
        num_epochs=epochs,
        per_device_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        collate_fn=together,
    )
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def main() -> None:
    """Compare both ways of cutting a batch, with the number of tokens and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    for counts in (True, False):
        apart = trained(16, 1, epochs, counts_tokens=counts) - trained(4, 4, epochs, counts_tokens=counts)
        print(f"{'with' if counts else 'without'} the number of tokens: weights {apart.abs().max():.1e} apart")


if __name__ == "__main__":
    main()
