"""Text and a tokenizer to prepare; the tests need the extra `hf`."""

import importlib.util
import json
import random
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("tokenizers") else ["test_*.py"]

WORDS = [f"word{number}" for number in range(40)]


def texts(count: int, seed: int = 0) -> list[str]:
    """Sentences of skewed lengths."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=1 + int(60 * draw.random() ** 3))) for _ in range(count)]


def write_lines(path: Path, lines: list[str], key: str = "text") -> Path:
    path.write_text("".join(json.dumps({key: line, "number": n}) + "\n" for n, line in enumerate(lines)))
    return path


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tokenizer that knows words, with an end called `<eos>`."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    vocabulary = {word: number for number, word in enumerate(["<unk>", "<eos>", *WORDS])}
    made = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    path = tmp_path_factory.mktemp("tokenizer") / "words.json"
    made.save(str(path))
    return path


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """A folder of JSON lines."""
    folder = tmp_path / "web"
    folder.mkdir()
    for number in range(3):
        write_lines(folder / f"{number}.jsonl", texts(60, number))
    return folder
