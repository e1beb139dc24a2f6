"""The ready-made spaces: how many networks they have, and that each of them runs."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from treadle import nas
from treadle.errors import ConfigError
from treadle.nas import zoo as spaces


def darts(**options: Any) -> nn.Module:
    return spaces.DartsSpace(4, 3, in_channels=1, **options)


def proxyless() -> nn.Module:
    return spaces.ProxylessSpace(10, in_channels=1, width=0.25, strides=(1, 2, 1, 1, 2, 1))


def bench() -> nn.Module:
    return spaces.NasBench201Space(4, 1, in_channels=1)


def test_the_space_of_darts_has_32_decisions_and_as_many_networks_as_published() -> None:
    space = nas.Space(darts())
    assert len(space.decisions) == 32
    # Per cell 7^8 operations and (2 * 3 * 4 * 5)^2 connections.
    assert space.size() == (7**8 * 120**2) ** 2
    assert math.log10(space.size()) == pytest.approx(21.8, abs=0.05)


def test_the_space_of_nas_bench_201_has_15625_networks() -> None:
    assert (len(nas.Space(bench()).decisions), nas.size(bench())) == (6, 15_625)


def test_the_space_of_proxylessnas_has_26_decisions() -> None:
    space = nas.Space(proxyless())
    assert len(space.decisions) == 26
    # Blocks that are not there have nothing to decide: 6 + 6^2 + 6^3 + 6^4 networks for each of five stages.
    assert space.size() == 1554**5 * 6
    # The product of all choices, as others count it.
    product = math.prod(decision.count for decision in space.decisions.values())
    assert math.log10(product) == pytest.approx(19.4, abs=0.05)


@pytest.mark.parametrize("make", [darts, bench, proxyless, lambda: darts(partial_channels=4, affine=False)])
def test_a_space_runs_as_it_is_and_as_every_network_of_it(make: Any) -> None:
    torch.manual_seed(0)
    model, inputs = make().eval(), torch.randn(2, 1, 13, 13)
    assert model(inputs).shape == (2, 10)
    for seed in range(3):
        architecture = nas.sample(model, seed)
        nas.attach(model, nas.Fixed(architecture))
        network = nas.freeze(model, architecture)
        torch.testing.assert_close(network(inputs), model(inputs), rtol=0, atol=1e-6)
        kinds = {type(module).__module__ for module in network.modules() if type(module).__module__.startswith("tread")}
        assert kinds <= {"treadle.nas.space.fixed_modules", *(f"treadle.nas.zoo.{name}" for name in MODULES)} | {
            "treadle.nas.space.cell"
        }
        assert not [module for module in network.modules() if isinstance(module, nas.LayerChoice | nas.Cell)]


MODULES = ("operations", "darts", "nasbench201", "proxyless")


def test_a_network_of_the_darts_space_is_trained_wider_with_a_second_classifier() -> None:
    architecture = nas.sample(darts(), 0)
    wide = spaces.DartsSpace(8, 6, in_channels=1, drop_path=0.2, auxiliary=True)
    network = nas.freeze(wide, architecture)
    inputs = torch.randn(2, 1, 12, 12)
    assert [tuple(scores.shape) for scores in network(inputs)] == [(2, 10), (2, 10)]
    assert network.eval()(inputs).shape == (2, 10)


def test_partial_channels_need_a_width_they_divide() -> None:
    with pytest.raises(ConfigError, match="width=4 cannot be divided into partial_channels=3"):
        darts(partial_channels=3)


def test_partial_channels_take_the_first_part_through_and_shuffle() -> None:
    part = nas.PartialChannels(nn.Identity(), 2)
    inputs = torch.arange(4.0).view(1, 4, 1, 1)
    assert part(inputs).flatten().tolist() == [0.0, 2.0, 1.0, 3.0]
    doubled = nas.PartialChannels(nas.LayerChoice([nn.Identity(), nn.ReLU()], label="op"), 4)
    assert nas.freeze(doubled, {"op": 1})(-inputs - 1).flatten().tolist() == [0.0, -2.0, -3.0, -4.0]
    with pytest.raises(ConfigError, match="4 channels cannot be divided into 3 parts"):
        nas.PartialChannels(nn.Identity(), 3)(inputs)
    with pytest.raises(ConfigError, match="parts=0 must be at least 1"):
        nas.PartialChannels(nn.Identity(), 0)


def test_architectures_are_written_as_the_benchmark_writes_them() -> None:
    text = "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_3x3~1|none~2|"
    architecture = spaces.from_nasbench201(text)
    assert spaces.to_nasbench201(architecture) == text
    nas.freeze(bench(), architecture)
    with pytest.raises(ConfigError, match="'pool~0' is no operation of node 1"):
        spaces.from_nasbench201("|pool~0|")
