"""Fashion-MNIST: idx files, splits, batches by one indexing call, and augmentation that a seed decides."""

import gzip
from pathlib import Path

import pytest
import torch

from examples.vision.fashion import Images, fashion_loader, flipped, read_idx, read_split, shifted
from tests.examples.parts import real, striped, write_idx
from treadle.data import Stream
from treadle.errors import ConfigError, DataError


def test_an_idx_file_gives_the_bytes_in_their_shape(tmp_path: Path) -> None:
    entries = torch.arange(24).view(2, 3, 4)
    write_idx(tmp_path / "a.gz", entries)
    read = read_idx(tmp_path / "a.gz")
    assert read.dtype == torch.uint8
    assert torch.equal(read.long(), entries)


def test_a_file_that_is_none_of_these_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*absent\.gz"):
        read_idx(tmp_path / "absent.gz")
    (tmp_path / "floats.gz").write_bytes(gzip.compress(bytes([0, 0, 13, 1])))
    with pytest.raises(DataError, match=r"floats\.gz is no idx file of bytes: it begins with '00 00 0d 01'"):
        read_idx(tmp_path / "floats.gz")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2])))
    with pytest.raises(DataError, match=r"cut\.gz holds 2 entries, but its head says \[5\]; it was cut or spoilt"):
        read_idx(tmp_path / "cut.gz")


def test_points_have_mean_zero_and_deviation_one_over_the_training_images() -> None:
    images = torch.tensor([[[0, 255], [73, 163]]], dtype=torch.uint8)
    batch = Images(images, torch.tensor([7])).__getitems__([0])
    expected = (torch.tensor([[0.0, 1.0], [73 / 255, 163 / 255]]) - 0.2860) / 0.3530
    torch.testing.assert_close(batch["images"], expected.view(1, 1, 2, 2))
    assert batch["labels"].tolist() == [7]


def test_the_held_out_images_are_the_last_of_the_training_files(image_folder: Path) -> None:
    images, labels = striped(160, seed=0)
    parts = {
        split: fashion_loader(split, 8, held_out=10, folder=image_folder).dataset
        for split in ("train", "validation", "test")
    }
    assert {split: len(part) for split, part in parts.items()} == {"train": 150, "validation": 10, "test": 40}
    assert torch.equal(parts["train"].labels, labels[:150])
    assert torch.equal(parts["validation"].images, images[150:].to(torch.uint8))
    assert torch.equal(parts["test"].labels, striped(40, seed=1)[1])


def test_an_image_is_moved_by_no_more_than_asked_and_nothing_is_lost_inside() -> None:
    image = torch.zeros(400, 9, 9, dtype=torch.uint8)
    image[:, 4, 4] = 1
    torch.manual_seed(0)
    places = shifted(image, 2).nonzero()
    assert places[:, 0].tolist() == list(range(400))
    assert {(row, column) for _, row, column in places.tolist()} == {(r, c) for r in range(2, 7) for c in range(2, 7)}


def test_some_images_are_mirrored_and_no_two_are_mixed() -> None:
    images = torch.arange(64 * 6).view(64, 2, 3)
    torch.manual_seed(0)
    made = flipped(images)
    mirrored = (made == images.flip(-1)).flatten(1).all(dim=1)
    same = (made == images).flatten(1).all(dim=1)
    assert torch.equal(mirrored, ~same)
    assert 20 < mirrored.sum() < 44


def test_augmentation_depends_on_seed_epoch_and_place_alone(image_folder: Path) -> None:
    def batches(epoch: int, drawn: int) -> list[torch.Tensor]:
        loader = fashion_loader("train", 30, shift=2, flip=True, held_out=10, folder=image_folder)
        stream = Stream(loader, device=torch.device("cpu"), seed=5)
        stream.begin(epoch, drawn)
        torch.rand(7)  # whatever else is drawn
        return [batch["images"] for batch in stream.rest()]

    whole = batches(1, 0)
    assert len(whole) == 5
    assert all(torch.equal(own, other) for own, other in zip(batches(1, 3), whole[3:], strict=True))
    assert not torch.equal(batches(2, 0)[0], whole[0])


def test_what_cannot_be_loaded_is_said(image_folder: Path) -> None:
    with pytest.raises(ConfigError, match="split='eval' is unknown"):
        fashion_loader("eval", 8, folder=image_folder)
    with pytest.raises(ConfigError, match="held_out=160 must lie between 0 and 160, the images there are"):
        fashion_loader("train", 8, held_out=160, folder=image_folder)
    with pytest.raises(DataError, match="there are 2 images and 3 labels; each image needs one"):
        Images(torch.zeros(2, 28, 28), torch.zeros(3))


def test_the_real_files_have_the_published_numbers() -> None:
    folder = real("fashion-mnist")
    images, labels = read_split("train", folder)
    assert images.shape == (60_000, 28, 28)
    assert labels.bincount().tolist() == [6000] * 10
    points = images.float() / 255
    assert (points.mean().item(), points.std().item()) == pytest.approx((0.2860, 0.3530), abs=5e-5)
    test_images, test_labels = read_split("t10k", folder)
    assert test_images.shape == (10_000, 28, 28)
    assert test_labels.bincount().tolist() == [1000] * 10
