"""A text as characters: every window of it is a sample, and a batch of windows is one indexing call."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from treadle.data import data_folder, make_loader
from treadle.engine.evaluation import PPLEvaluator
from treadle.errors import ConfigError, DataError

NAME = "tinyshakespeare"
FILES = ("input.txt", "input.txt.gz")
TRAINING_SHARE = 0.9
SPLITS = ("train", "validation")

Batch = dict[str, Tensor]


class Characters:
    """The characters of a text, numbered in the order of their codes.

    >>> characters = Characters("banana")
    >>> characters.encode("ban").tolist(), characters.decode([0, 2, 0])
    ([1, 0, 2], 'ana')

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.symbols = "".join(sorted(set(text)))
        self._codes = _codes(self.symbols)

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> Tensor:
        """Return the number of each character.

        Raises:
            DataError: There are characters that the vocabulary has not.
        """
        unknown = sorted(set(text) - set(self.symbols))
        if unknown:
            raise DataError(f"the characters {unknown} are not in the vocabulary {self.symbols!r}")
        return torch.from_numpy(np.searchsorted(self._codes, _codes(text)))

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the text of these numbers."""
        return "".join(self.symbols[number] for number in numbers)


def _codes(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


class Windows(Dataset[Batch]):
    """Stretches of a text, each with the same stretch one character later as its targets.

    Sample i begins at character i * stride: which text it is depends on i alone, so a run that goes on with the next
    indices goes on with the same text.

    Args:
        characters: The text in numbers.
        context: The length of a window.
        stride: How far apart two windows begin; `context` takes every character once.
    """

    def __init__(self, characters: Tensor, context: int, stride: int = 1) -> None:
        if len(characters) <= context:
            raise DataError(
                f"a text of {len(characters)} characters is too short for windows of {context} and one more"
            )
        # A view: however many windows there are, the text is in memory once.
        self._windows = characters.unfold(0, context + 1, stride)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> Batch:
        return {name: part[0] for name, part in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return a batch, collated already."""
        windows = self._windows[indices]
        return {"tokens": windows[:, :-1].contiguous(), "targets": windows[:, 1:].contiguous()}


def character_loader(
    split: str,
    context: int,
    batch_size: int,
    *,
    vocabulary_size: int | None = None,
    folder: str | Path | None = None,
) -> DataLoader[Batch]:
    """Return a loader of windows of a text: its first nine tenths for training, the rest for validation.

    In training the windows begin at every character and come shuffled. In validation they lie side by side, so that
    every character counts once, but for a remainder shorter than a window.

    Args:
        split: "train" or "validation".
        context: The length of a window.
        batch_size: Windows in a batch.
        vocabulary_size: How many characters the model knows, to be compared with those of the text.
        folder: Where `input.txt`, or `input.txt.gz`, lies; None for tinyshakespeare in the folder of all data.
    """
    if split not in SPLITS:
        raise ConfigError(f"character_loader: split={split!r} is unknown; use one of {SPLITS}")
    text = read_text(folder)
    characters = Characters(text)
    if vocabulary_size is not None and len(characters) > vocabulary_size:
        raise DataError(
            f"the text has {len(characters)} characters, and the model knows {vocabulary_size}; set "
            f"model.vocabulary_size={len(characters)}"
        )
    first, rest = _split(characters.encode(text))
    training = split == "train"
    windows = Windows(first, context) if training else Windows(rest, context, stride=context)
    # Pinned memory is copied to a GPU without waiting for what the GPU does.
    return make_loader(
        windows,
        shuffle=training,
        batch_size=batch_size,
        collate_fn=as_collated,
        pin_memory=torch.cuda.is_available(),
    )


def as_collated(batch: Batch) -> Batch:
    """Return a batch that was fetched as a whole."""
    return batch


def read_text(folder: str | Path | None = None) -> str:
    """Return the text in `folder`; None for tinyshakespeare in the folder of all data.

    Raises:
        DataError: There is none.
    """
    place = data_folder(NAME) if folder is None else Path(folder)
    for file in (place / name for name in FILES):
        if file.is_file():
            data = file.read_bytes()
            return (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    raise DataError(f"{place} holds neither {FILES[0]} nor {FILES[1]}")


def _split(characters: Tensor) -> tuple[Tensor, Tensor]:
    training = int(TRAINING_SHARE * len(characters))
    return characters[:training], characters[training:]


class ValidationLoss(PPLEvaluator):
    """The mean cross-entropy of a character, `val_loss`, and its exponential, `val_perplexity`."""

    def evaluate(self) -> dict[str, float]:
        """Return both, over the windows of all processes."""
        results = super().evaluate()
        return {"val_loss": results["loss"], "val_perplexity": results["loss_PPL"]}
