"""Windows of a text: numbered characters, splits, batches by one indexing call, and the loss over all of them."""

import math
from pathlib import Path

import pytest
import torch

from examples.language_model.shakespeare import Characters, ValidationLoss, Windows, character_loader, read_text
from tests.examples.parts import real
from treadle.data import Stream
from treadle.errors import ConfigError, DataError


def test_characters_are_numbered_in_the_order_of_their_codes() -> None:
    characters = Characters("to be\nor not")
    assert characters.symbols == "\n benort"
    assert characters.encode("bee").tolist() == [2, 3, 3]
    assert characters.decode(characters.encode("not to be").tolist()) == "not to be"


def test_characters_beyond_the_first_plane_are_characters_too() -> None:
    characters = Characters("aé🂡")
    assert characters.decode(characters.encode("🂡é").tolist()) == "🂡é"


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(DataError, match=r"the characters \['X', 'z'\] are not in the vocabulary 'abc'"):
        Characters("abc").encode("aXbz")


def test_a_window_is_a_stretch_and_the_same_one_later() -> None:
    windows = Windows(torch.arange(10), context=4)
    assert len(windows) == 6
    assert windows[3]["tokens"].tolist() == [3, 4, 5, 6]
    assert windows[3]["targets"].tolist() == [4, 5, 6, 7]


def test_windows_side_by_side_hold_every_character_once() -> None:
    windows = Windows(torch.arange(13), context=4, stride=4)
    assert torch.cat([windows[index]["targets"] for index in range(len(windows))]).tolist() == list(range(1, 13))


def test_a_batch_is_its_samples_and_each_part_lies_in_one_piece() -> None:
    windows = Windows(torch.arange(20), context=4)
    batch = windows.__getitems__([7, 0, 7])
    assert batch["tokens"].tolist() == [[7, 8, 9, 10], [0, 1, 2, 3], [7, 8, 9, 10]]
    assert all(part.is_contiguous() for part in batch.values())


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(DataError, match="a text of 4 characters is too short for windows of 4 and one more"):
        Windows(torch.arange(4), context=4)


def test_the_first_nine_tenths_are_for_training(text_folder: Path) -> None:
    text = read_text(text_folder)
    characters = Characters(text)
    train = character_loader("train", 16, 8, folder=text_folder)
    validation = character_loader("validation", 16, 8, folder=text_folder)
    first = int(0.9 * len(text))
    assert (len(train.dataset), len(validation.dataset)) == (first - 16, (len(text) - first - 1) // 16)
    assert characters.decode(train.dataset[len(train.dataset) - 1]["targets"].tolist()) == text[first - 16 : first]
    assert characters.decode(validation.dataset[0]["tokens"].tolist()) == text[first : first + 16]


def test_every_window_comes_once_an_epoch_shuffled_and_a_stream_is_entered_anywhere(text_folder: Path) -> None:
    def stream() -> Stream:
        return Stream(character_loader("train", 16, 8, folder=text_folder), device=torch.device("cpu"), seed=3)

    first = stream()
    first.begin(0)
    whole = [batch["tokens"] for batch in first]
    assert sum(map(len, whole)) == len(first.dataset)
    # Each window is known by where it begins; in the order of the text it would be another first batch.
    assert not torch.equal(whole[0], first.dataset.__getitems__(list(range(8)))["tokens"])
    later = stream()
    later.begin(0, drawn=100)
    assert all(torch.equal(own["tokens"], other) for own, other in zip(later.rest(), whole[100:], strict=True))


def test_a_text_is_read_plain_or_gzipped(tmp_path: Path, text_folder: Path) -> None:
    (tmp_path / "input.txt").write_text("plain")
    assert read_text(tmp_path) == "plain"
    assert read_text(text_folder).startswith("the quick brown fox")


def test_what_cannot_be_loaded_is_said(tmp_path: Path, text_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"split='test' is unknown; use one of \('train', 'validation'\)"):
        character_loader("test", 16, 8, folder=text_folder)
    with pytest.raises(DataError, match=r"holds neither input\.txt nor input\.txt\.gz"):
        read_text(tmp_path)
    with pytest.raises(
        DataError, match=r"the text has 26 characters, and the model knows 20; set model.vocabulary_size"
    ):
        character_loader("train", 16, 8, vocabulary_size=20, folder=text_folder)


def test_the_loss_is_the_mean_over_all_windows_of_unequal_batches() -> None:
    evaluator = ValidationLoss()
    for size, loss in ((3, 1.0), (1, 3.0)):
        evaluator.process({"tokens": torch.zeros(size, 4)}, {"loss": torch.tensor(loss)})
    assert evaluator.evaluate() == {"val_loss": 1.5, "val_perplexity": math.exp(1.5)}


def test_the_real_text_has_the_published_numbers() -> None:
    text = read_text(real("tinyshakespeare"))
    assert (len(text), len(Characters(text))) == (1_115_394, 65)
    train = character_loader("train", 256, 64)
    validation = character_loader("validation", 256, 145)
    assert (len(train.dataset), len(validation.dataset)) == (1_003_854 - 256, 435)
