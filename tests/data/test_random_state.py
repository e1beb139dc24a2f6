"""The state of every generator, as one thing."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treadle.checkpoint import read_file, write_file
from treadle.data.random_state import OwnGenerators, RandomState


def draw(*generators: torch.Generator) -> list[Any]:
    numbers = [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())]
    return [*numbers, torch.rand(3).tolist(), *(torch.rand(2, generator=one).tolist() for one in generators)]


def test_after_restoring_every_generator_draws_the_same_again() -> None:
    own = torch.Generator().manual_seed(4)
    random_state = RandomState(own, None)
    # An odd number of normals: both Python and NumPy keep the second of a pair for later.
    random.gauss(0, 1)
    np.random.randn()
    state = random_state.state_dict()
    first = draw(own)
    assert draw(own) != first
    random_state.load_state_dict(state)
    assert draw(own) == first


def test_a_state_survives_a_file(tmp_path: Path) -> None:
    random.gauss(0, 1)
    np.random.randn()
    write_file(tmp_path / "state", RandomState().state_dict())
    first = draw()
    RandomState().load_state_dict(read_file(tmp_path / "state"))
    assert draw() == first


def test_a_state_is_a_copy() -> None:
    own = torch.Generator().manual_seed(4)
    random_state = RandomState(own)
    state = random_state.state_dict()
    before = [state["torch"].clone(), state["own"][0].clone(), state["numpy"]["keys"].clone(), state["python"]]
    for _ in range(700):
        draw(own)
    assert torch.equal(state["torch"], before[0])
    assert torch.equal(state["own"][0], before[1])
    assert torch.equal(state["numpy"]["keys"], before[2])
    assert state["python"] == before[3]


def test_taking_a_state_draws_nothing() -> None:
    RandomState().state_dict()
    random_state = RandomState()
    state = random_state.state_dict()
    random_state.state_dict()
    first = draw()
    random_state.load_state_dict(state)
    assert draw() == first


# Generators of your own --------------------------------------------------------------------------------------


def uniform() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_generators_of_ones_own_go_on_from_block_to_block_and_leave_the_others_alone() -> None:
    seed_all(3)
    outer = [uniform() for _ in range(4)]
    seed_all(8)
    inner = [uniform() for _ in range(3)]
    seed_all(3)
    own = OwnGenerators(8)
    drawn = [uniform()]
    with own:
        first = [uniform(), uniform()]
    drawn.append(uniform())
    with own:
        first.append(uniform())
    drawn += [uniform(), uniform()]
    assert drawn == outer
    assert first == inner


def test_an_error_in_a_block_brings_the_other_generators_back_too() -> None:
    seed_all(3)
    outer = [uniform(), uniform()]
    seed_all(3)
    own = OwnGenerators(8)
    drawn = [uniform()]
    with pytest.raises(KeyError), own:
        raise KeyError(uniform())
    assert [*drawn, uniform()] == outer


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_generator_of_the_accelerator_goes_on_too() -> None:
    state = RandomState().state_dict()
    drawn = torch.rand(4, device="cuda")
    RandomState().load_state_dict(state)
    assert torch.equal(torch.rand(4, device="cuda"), drawn)
    assert "cuda" not in RandomState(cuda=False).state_dict()


def test_generators_are_kept_over_a_block_that_fails() -> None:
    @RandomState().kept()
    def fail() -> None:
        torch.rand(3), np.random.random(), random.random()
        raise ZeroDivisionError

    expected = RandomState().state_dict()
    with pytest.raises(ZeroDivisionError):
        fail()
    found = RandomState().state_dict()
    assert torch.equal(found["torch"], expected["torch"])
    assert found["python"] == expected["python"]
    assert torch.equal(found["numpy"]["keys"], expected["numpy"]["keys"])
    assert found["numpy"]["position"] == expected["numpy"]["position"]
