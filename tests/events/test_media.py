"""Images and histograms that are put into a storage."""

from typing import Any

import numpy as np
import pytest
import torch

from treadle.errors import ConfigError
from treadle.events import EventStorage
from treadle.events.media import MEDIA_WINDOW


def test_an_image_is_kept_with_its_name_and_iteration() -> None:
    storage = EventStorage(5)
    pixels = torch.rand(3, 4, 6, requires_grad=True)
    with storage.name_scope("samples"):
        storage.put_image("cat", pixels)
    storage.put_image("grey", np.zeros((1, 2, 2), dtype=np.uint8))
    cat, grey = storage.images()
    assert (cat.name, cat.iteration, cat.pixels.requires_grad) == ("samples/cat", 5, False)
    assert torch.equal(cat.pixels, pixels)
    assert (grey.name, grey.pixels.dtype) == ("grey", torch.uint8)
    assert [image.name for image in storage.images(since=cat.sequence)] == ["grey"]
    storage.clear_images()
    assert storage.images() == []


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            torch.zeros(32, 32, 3),
            "the image 'cat' has the shape (32, 32, 3); put (channels, height, width) with 1, 3 or 4 channels",
        ),
        (
            torch.zeros(8, 8),
            "the image 'cat' has the shape (8, 8); put (channels, height, width) with 1, 3 or 4 channels",
        ),
        (
            torch.zeros(3, 8, 8, dtype=torch.int64),
            "the image 'cat' is of torch.int64; put uint8 from 0 to 255, or floats from 0 to 1",
        ),
    ],
)
def test_what_is_no_picture_is_refused(image: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EventStorage().put_image("cat", image)
    assert str(caught.value) == message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pixels_are_bytes_for_writers(dtype: torch.dtype) -> None:
    storage = EventStorage()
    storage.put_image("cat", torch.tensor([[[0.0, 0.5, 1.0, 2.0, -1.0, float("nan")]]], dtype=dtype))
    storage.put_image("dog", torch.tensor([[[7]]], dtype=torch.uint8))
    cat, dog = storage.images()
    assert cat.as_bytes().tolist() == [[[0, 128, 255, 255, 0, 0]]]
    assert (dog.as_bytes().tolist(), dog.as_bytes().dtype) == ([[[7]]], torch.uint8)


def test_only_the_newest_images_and_histograms_are_kept() -> None:
    storage = EventStorage()
    for place in range(MEDIA_WINDOW + 3):
        storage.put_image(str(place), torch.zeros(1, 1, 1))
        storage.put_histogram(str(place), torch.zeros(1))
    assert [len(storage.images()), len(storage.histograms())] == [MEDIA_WINDOW, MEDIA_WINDOW]
    assert storage.images()[0].name == storage.histograms()[0].name == "3"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_histogram_counts_as_numpy_does(dtype: torch.dtype) -> None:
    values = torch.randint(-50, 50, (3, 100), generator=torch.Generator().manual_seed(0)).to(dtype)
    storage = EventStorage(2)
    storage.put_histogram("weights", values, bins=8)
    (histogram,) = storage.histograms()
    expected, edges = np.histogram(values.double().numpy(), bins=8)
    assert histogram.counts.tolist() == expected.tolist()
    assert histogram.facts.tolist()[:2] == [edges[0], edges[-1]]
    numbers = values.double()
    assert histogram.facts.tolist()[2:] == [numbers.sum().item(), numbers.square().sum().item()]
    assert (histogram.name, histogram.iteration) == ("weights", 2)


@pytest.mark.parametrize(
    ("values", "counts", "facts"),
    [
        ([3.0, 3.0, 3.0], [3, 0, 0, 0], [3.0, 3.0, 9.0, 27.0]),
        ([0.0, float("nan"), 4.0, float("inf"), -float("inf")], [1, 0, 0, 1], [0.0, 4.0, 4.0, 16.0]),
        ([float("nan")], [0, 0, 0, 0], [float("inf"), -float("inf"), 0.0, 0.0]),
    ],
    ids=["all the same", "some not finite", "none finite"],
)
def test_a_histogram_of_odd_values_counts_what_is_finite(
    values: list[float], counts: list[int], facts: list[float]
) -> None:
    storage = EventStorage()
    storage.put_histogram("weights", torch.tensor(values), bins=4)
    (histogram,) = storage.histograms()
    assert histogram.counts.tolist() == counts
    assert histogram.facts.tolist() == facts


@pytest.mark.parametrize(("values", "bins"), [(torch.zeros(0), 10), (torch.zeros(3), 0)])
def test_a_histogram_of_nothing_is_refused(values: torch.Tensor, bins: int) -> None:
    with pytest.raises(ConfigError) as caught:
        EventStorage().put_histogram("weights", values, bins)
    expected = f"the histogram 'weights' has {len(values)} values and {bins} bins; it needs one of each"
    assert str(caught.value) == expected


def test_histograms_can_be_cleared() -> None:
    storage = EventStorage()
    storage.put_histogram("weights", torch.ones(3))
    storage.clear_histograms()
    assert storage.histograms() == []
