"""A tokenizer and lines of text that need no download."""

from typing import Any

WORDS = ["the", "cat", "dog", "bird", "sat", "ran", "flew", "on", "mat", "tree", "roof", "fast", "slowly", "and"]
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>"]


def tokenizer() -> Any:
    """Return a tokenizer with a token for each word, whose special tokens are those of the small models."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def lines(count: int = 24) -> list[str]:
    """Return sentences of two to nine words."""
    return [
        " ".join(WORDS[(number * 3 + place) % len(WORDS)] for place in range(2 + number % 8)) for number in range(count)
    ]
