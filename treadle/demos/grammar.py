"""A language of a few thousand sentences, whose entropy is known: no model of it can have a lower loss."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

ARTICLES = {False: ("the", "a"), True: ("the", "many")}
"""By whether a noun is plural."""
ADJECTIVES = ("tall", "small", "quick", "red", "quiet", "brave")
NOUNS = ("cat", "dog", "bird", "horse", "robot", "child")
PLURALS = {"child": "children"}
VERBS = ("see", "follow", "like", "draw", "greet")

ALPHABET = " .abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Phrase:
    """A noun with what stands before it."""

    article: int
    adjective: int
    noun: int
    plural: bool

    def __str__(self) -> str:
        noun = NOUNS[self.noun]
        word = PLURALS.get(noun, f"{noun}s") if self.plural else noun
        return f"{ARTICLES[self.plural][self.article]} {ADJECTIVES[self.adjective]} {word}"


def sentence(generator: random.Random) -> str:
    """Return a random sentence; the verb agrees with its subject.

    >>> sentence(random.Random(1))
    'the quiet cats draw the red horses.'
    """
    subject, thing = _phrase(generator), _phrase(generator)
    verb = generator.choice(VERBS)
    return f"{subject} {verb if subject.plural else verb + 's'} {thing}."


def _phrase(generator: random.Random) -> Phrase:
    sizes = (len(ARTICLES[False]), len(ADJECTIVES), len(NOUNS))
    article, adjective, noun = map(generator.randrange, sizes)
    return Phrase(article, adjective, noun, plural=bool(generator.randrange(2)))


def is_correct(text: str) -> bool:
    """Whether a sentence, with its full stop, follows the grammar.

    >>> is_correct("the tall cat sees many red dogs."), is_correct("the tall cat see many red dogs.")
    (True, False)
    """
    words = text.removesuffix(".").split(" ")
    if not text.endswith(".") or len(words) != 7:
        return False
    forms = [_forms(words[:3]), _forms(words[4:])]
    verbs = [verb if plural else f"{verb}s" for plural in forms[0] for verb in VERBS]
    return words[3] in verbs and bool(forms[1])


def _forms(words: Sequence[str]) -> list[bool]:
    """Return whether a phrase can be singular (False), plural (True), or neither."""
    article, adjective, noun = words
    if adjective not in ADJECTIVES:
        return []
    singular = noun in NOUNS and article in ARTICLES[False]
    plural = noun in [PLURALS.get(one, f"{one}s") for one in NOUNS] and article in ARTICLES[True]
    return [*([False] if singular else []), *([True] if plural else [])]


def entropy(text: str) -> float:
    """Return the nats that a character of such a text leaves open, on average: what the best loss would be."""
    phrase = math.log(len(ARTICLES[False]) * len(ADJECTIVES) * len(NOUNS) * 2)
    return (2 * phrase + math.log(len(VERBS))) * text.count(".") / len(text)


def encode(text: str) -> Tensor:
    """Return the number of each character."""
    return torch.tensor([ALPHABET.index(character) for character in text])


def decode(numbers: Sequence[int]) -> str:
    """Return the text of these numbers."""
    return "".join(ALPHABET[number] for number in numbers)


def write(sentences: int, seed: int) -> str:
    """Return a text of so many sentences."""
    generator = random.Random(seed)
    return "".join(f"{sentence(generator)} " for _ in range(sentences))


class Sentences(Dataset[dict[str, Tensor]]):
    """Stretches of a text, each with the same stretch one character later as its targets.

    Args:
        sentences: How many sentences the text has.
        seed: Decides which.
        context: The length of a stretch.
    """

    def __init__(self, sentences: int, seed: int, context: int) -> None:
        self.text = write(sentences, seed)
        self._windows = encode(self.text).unfold(0, context + 1, context)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        window = self._windows[index]
        return {"tokens": window[:-1], "targets": window[1:]}
