"""The Vision Transformer of the examples: its size, what patches see, and what it returns."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from examples.vision.vit import VisionTransformer
from treadle.errors import ConfigError


def small(**settings: Any) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(**{"patch_size": 7, "layers": 2, "heads": 2, "width": 16, **settings})


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_its_size_is_that_of_its_parts() -> None:
    patches, positions, gathering = 7 * 7 * 16 + 16, 17 * 16, 16
    block = 12 * 16**2 + (3 + 1 + 4 + 1) * 16 + 4 * 16  # matrices, their biases, two norms
    head = 2 * 16 + 16 * 10 + 10
    total = sum(parameter.numel() for parameter in small().parameters())
    assert total == patches + positions + gathering + 2 * block + head


@torch.no_grad()
def test_every_patch_is_seen() -> None:
    model = small().eval()
    before = model(images())["prediction_scores"]
    for row in range(0, 28, 7):
        for column in range(0, 28, 7):
            changed = images()
            changed[:, :, row : row + 7, column : column + 7] += 1
            assert (model(changed)["prediction_scores"] != before).any(dim=1).all()


def test_training_gives_the_loss_and_evaluation_the_scores() -> None:
    model, labels = small(), torch.tensor([1, 2, 3])
    scores = model(images())["prediction_scores"]
    assert scores.shape == (3, 10)
    assert torch.equal(model(images(), labels)["loss"], F.cross_entropy(scores, labels))
    assert torch.equal(model.eval()(images(), labels)["prediction_scores"], scores)


def test_labels_are_smoothed_if_asked_for() -> None:
    model, labels = small(label_smoothing=0.1), torch.tensor([1, 2, 3])
    logs = model(images())["prediction_scores"].log_softmax(dim=1)
    expected = -(0.9 * logs[range(3), labels] + 0.1 * logs.mean(dim=1)).mean()
    torch.testing.assert_close(model(images(), labels)["loss"], expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_size": 5}, "VisionTransformer: image_size=28 is no multiple of patch_size=5"),
        ({"heads": 3}, "VisionTransformer: width=16 is no multiple of heads=3"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        small(**settings)
