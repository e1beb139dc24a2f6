"""Tokenizers from local files: those of `tokenizers`, and any other that transformers knows."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, importing

FILE = "tokenizer.json"
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|im_end|>")
"""What the token behind a document is called, where nothing says so."""
AUTO, NONE = "auto", "none"


class Tokenizer:
    """Makes tokens of texts, and puts one behind each that ends it.

    Args:
        path: `tokenizer.json`, or a folder with the files of a tokenizer.
        end: The token behind a document; "auto" is what the tokenizer calls its end, "none" puts none.

    Attributes:
        name: What the tokenizer is called: its folder or file.
        end: The token behind a document; None for none.
        size: One more than the highest token.
        checksum: Of all its tokens and rules, eight hexadecimal digits.

    Raises:
        ConfigError: There is no tokenizer, or it has no such token.
    """

    def __init__(self, path: str | Path, end: str = AUTO) -> None:
        place = Path(path)
        if not place.exists():
            raise ConfigError(
                f"there is no tokenizer at {place}; name a local folder or a {FILE}: nothing is downloaded"
            )
        file = place / FILE if place.is_dir() else place
        self._fast: Any = None
        self._whole: Any = None
        if file.is_file():
            self._fast = _load_fast(file)
            vocabulary: dict[str, int] = self._fast.get_vocab(with_added_tokens=True)
            rules = self._fast.to_str()
        else:
            self._whole = _load_whole(place)
            vocabulary = self._whole.get_vocab()
            rules = repr(sorted(vocabulary.items()))
        self.name = place.stem if place.is_file() else place.name
        self.size = max(vocabulary.values()) + 1
        self.checksum = f"{zlib.crc32(rules.encode()):08x}"
        self.end = self._find_end(place if place.is_dir() else place.parent, vocabulary, end)
        self._end = [] if self.end is None else [vocabulary[self.end]]

    def _find_end(self, folder: Path, vocabulary: dict[str, int], end: str) -> str | None:
        if end == NONE:
            return None
        if end != AUTO:
            if end not in vocabulary:
                raise ConfigError(f"the tokenizer {self.name} has no token {end!r} to put behind documents")
            return end
        named = _said_end(folder) or getattr(self._whole, "eos_token", None)
        found = next((one for one in (named, *ENDS) if one in vocabulary), None)
        if found is None:
            raise ConfigError(
                f"the tokenizer {self.name} does not say which token ends a document; name one with --end, or put none "
                "with --end none"
            )
        return found

    @property
    def dtype(self) -> str:
        """The smallest type that holds all tokens."""
        return "uint16" if self.size <= 1 << 16 else "uint32"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts, each with the token that ends it."""
        if self._fast is not None:
            found = [one.ids for one in self._fast.encode_batch(list(texts), add_special_tokens=False)]
        else:
            found = self._whole(list(texts), add_special_tokens=False)["input_ids"]
        return [[*tokens, *self._end] for tokens in found]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        tool: Any = self._fast or self._whole
        text: str = tool.decode(list(tokens), skip_special_tokens=False)
        return text


def _load_fast(file: Path) -> Any:
    with importing("tokenizers", extra="hf", user="A tokenizer"):
        from tokenizers import Tokenizer as Fast
    try:
        return Fast.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing more special
        raise ConfigError(f"{file} is no tokenizer that tokenizers can read: {error}") from error


def _load_whole(folder: Path) -> Any:
    with importing("transformers", extra="hf", user=f"A tokenizer without a {FILE}"):
        from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder} holds no tokenizer that transformers can read: {error}") from error


def _said_end(folder: Path) -> str | None:
    """Return what the files beside a tokenizer call the token that ends a text."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            said = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token")
        except (OSError, ValueError, AttributeError):
            continue
        if said:
            return said["content"] if isinstance(said, dict) else str(said)
    return None
