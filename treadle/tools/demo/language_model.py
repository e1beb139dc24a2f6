"""A small transformer that learns a grammar character by character, described by a config."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from treadle.config import ConfigDict, LazyCall, get_config
from treadle.engine import DefaultTrainer
from treadle.engine.evaluation import PPLEvaluator

# A language of a few thousand sentences, whose entropy is known: no model of it can have a lower loss


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


CONTEXT = 48
BEGINNING = ". "
"""What the model is asked to go on after."""


class Block(nn.Module):
    """Each place looks at those before it, and then thinks for itself.

    Args:
        width: The size of a hidden state.
        heads: How many times it is looked.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.looking, self.seen = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.thinking = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this block."""
        parts = self.looking(self.norms[0](hidden)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.seen(seen.transpose(1, 2).flatten(2))
        result: Tensor = hidden + self.thinking(self.norms[1](hidden))
        return result


class LanguageModel(nn.Module):
    """Says, at each place of a text, which character comes next.

    Args:
        width: The size of a hidden state.
        layers: How many blocks.
        heads: The heads of each.
    """

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        """Return scores; with `targets`, their cross-entropy as "loss"."""
        scores = self.head(self.blocks(self.characters(tokens) + self.places.weight[: tokens.shape[1]]))
        return scores if targets is None else {"loss": F.cross_entropy(scores.flatten(0, 1), targets.flatten())}

    @torch.no_grad()
    def write(self, text: str, count: int, seed: int = 0) -> str:
        """Return `text` with so many more characters, each drawn by its score."""
        device = self.head.weight.device
        generator = torch.Generator().manual_seed(seed)
        tokens = encode(text)
        for _ in range(count):
            scores = self(tokens[-CONTEXT:].unsqueeze(0).to(device))[0, -1].cpu()
            tokens = torch.cat([tokens, torch.multinomial(scores.softmax(0), 1, generator=generator)])
        return decode(tokens.tolist())


def config(folder: Path, iterations: int) -> ConfigDict:
    """Return the config of the run: what `config.yaml` in its folder holds."""
    train = get_config("common/train.py").train
    train.update(
        output_dir=str(folder),
        resume="auto",
        train_iter=iterations,
        train_micro_batch_size=16,
        test_micro_batch_size=64,
        warmup_ratio=0.1,
        log_period=50,
        execution="auto",
        checkpointer={"period": 200, "max_to_keep": 2},
        evaluation={
            "evaluator": LazyCall(PPLEvaluator)(),
            "eval_period": 200,
            "eval_metric": "loss",
            "eval_mode": "min",
        },
        dist={"device_type": "cuda" if torch.cuda.is_available() else "cpu"},
    )
    dataloader = {
        "train": LazyCall(Sentences)(sentences=8_000, seed=0, context=CONTEXT),
        "test": {"held_out": LazyCall(Sentences)(sentences=400, seed=1, context=CONTEXT)},
    }
    model, optim = LazyCall(LanguageModel)(width=64, layers=2, heads=4), LazyCall(torch.optim.AdamW)(lr=5e-3)
    return ConfigDict({"model": model, "optim": optim, "dataloader": dataloader, "train": train})


def run(folder: Path, say: Callable[[str], object], iterations: int = 600) -> None:
    """Train, compare the loss with the entropy of the grammar, and let the model write.

    Args:
        folder: The folder of the run.
        say: Where to say it.
        iterations: How long to train.
    """
    trainer = DefaultTrainer(config(folder, iterations))
    # A run that was at its end already evaluates nothing.
    results = trainer.train() or trainer.test(trainer.cfg, trainer.test_loader, trainer.model)
    best = entropy(Sentences(400, seed=1, context=CONTEXT).text)
    loss = results["loss"]
    say(f"\nA character costs {loss:.3f} nats; the grammar leaves {best:.3f} open, and no model can do better.")
    model: Any = trainer.model.eval()
    sentences = [f"{part}." for part in model.write(BEGINNING, 600).split(". ")[1:-1]]
    correct = sum(map(is_correct, sentences))
    say(f"It writes:\n  {' '.join(sentences[:4])}\n{correct} of {len(sentences)} sentences follow the grammar.")
