"""The doctor's tests against chance: how often they are wrong about data without a fault, and what they find."""

import pytest
import torch
from torch import Tensor

from treadle.tools.doctor.detectors import statistics
from treadle.tools.doctor.detectors.statistics import (
    SORTED_EFFECT,
    SORTED_Z,
    UNRELATED_Z,
    is_beyond_chance,
    label_excess,
    near_duplicates,
    relation,
    value_excess,
)


def batches_of(values: Tensor, size: int) -> list[Tensor]:
    return [values[first : first + size] for first in range(0, len(values), size)]


def is_sorted(excess: statistics.Excess) -> bool:
    return excess.z > SORTED_Z and excess.effect > SORTED_EFFECT


@pytest.mark.parametrize("rarest", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("size", [4, 16])
def test_shuffled_labels_are_never_taken_for_sorted_ones(rarest: float, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        labels = (torch.rand(400, generator=generator) < rarest).long()
        assert not is_sorted(label_excess(batches_of(labels[: 7 * size], size), labels))


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_sorted_labels_are_found_whatever_lies_on_a_border(classes: int) -> None:
    labels = torch.arange(1000) * classes // 1000
    for first in range(0, 1000 - 7 * 16, 16):
        assert is_sorted(label_excess(batches_of(labels[first : first + 7 * 16], 16), labels)), first


def test_half_sorted_labels_are_as_far_from_chance_as_can_be_reckoned() -> None:
    # Pairs within batches: of [0, 0, 1, 1] two of six are alike; among all labels every second one is.
    excess = label_excess([torch.tensor([0, 0, 1, 1])], torch.tensor([0, 1]))
    assert excess.effect == pytest.approx((2 / 6 - 1 / 2) / (1 / 2))
    assert label_excess([torch.tensor([3, 3])], torch.tensor([3, 3])) == (0.0, 0.0)


def test_numbers_in_rising_order_are_found_and_others_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        numbers = torch.randn(7, 16, generator=generator).exp()
        assert not is_sorted(value_excess(list(numbers)))
        assert is_sorted(value_excess(batches_of(numbers.flatten().sort().values, 16)))


def linked(correlation: float, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 4, generator=generator)
    noise = torch.randn(count, 1, generator=generator)
    return inputs, correlation * inputs[:, :1] + (1 - correlation**2) ** 0.5 * noise


def test_labels_in_random_order_are_found_19_times_of_20() -> None:
    generator = torch.Generator().manual_seed(0)
    found = 0
    for number in range(60):
        inputs, targets = linked(0.9, 256, generator)
        labels = (targets[:, 0] > 0).long() if number % 2 else targets
        found += relation(inputs, labels[torch.randperm(256, generator=generator)]) < UNRELATED_Z
    assert found >= 54


@pytest.mark.slow
def test_a_correlation_of_a_fifth_is_not_taken_for_random_order() -> None:
    generator = torch.Generator().manual_seed(0)
    assert all(relation(*linked(0.2, 1024, generator)) > UNRELATED_Z for _ in range(100))


def test_a_relation_without_a_correlation_is_seen() -> None:
    inputs = torch.randn(512, 2, generator=torch.Generator().manual_seed(0))
    rings, signs = (inputs.norm(dim=1) > 1.2).long(), (inputs.prod(dim=1) > 0).long()
    assert relation(inputs, rings) > 10
    assert relation(inputs, signs) > 10


@pytest.mark.parametrize("features", [2, 4, 64])
def test_two_sets_of_one_kind_have_no_near_duplicates_beyond_chance(features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        data = torch.randn(320, features, generator=generator)
        assert not is_beyond_chance(near_duplicates(data[256:], data[:256]), 64)


@pytest.mark.parametrize("features", [4, 64])
def test_copies_with_noise_are_found(features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(256, features, generator=generator)
    fresh = torch.randn(48, features, generator=generator)
    copies = data[:16] + 0.01 * torch.randn(16, features, generator=generator)
    assert near_duplicates(torch.cat([fresh, copies]), data) == pytest.approx(16, abs=1)


def test_data_that_repeats_itself_says_nothing_of_near_duplicates() -> None:
    repeated = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    assert near_duplicates(repeated[:10], repeated) == 0
    assert near_duplicates(torch.ones(4, 2), torch.ones(8, 2)) == 0
