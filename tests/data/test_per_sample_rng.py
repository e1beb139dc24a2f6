"""Random augmentation that depends on the sample alone."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

import treadle
from tests.interrupting import plain_network
from treadle.data import InMemoryDataset, RandomState, Stream, global_rngs, make_loader, sample_seed
from treadle.data import per_sample_rng as per_sample
from treadle.data.per_sample_rng import Place, SeededSamples, draws_nothing
from treadle.errors import DataError
from treadle.trainer import Trainer

CPU = torch.device("cpu")


class Draws(Dataset[Any]):
    """Samples that are draws from each of the three generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


class OwnGenerator(Dataset[Any]):
    """Samples drawn from a generator that the data set holds, seeded for each of them."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.generator.manual_seed(sample_seed())
        return index, float(torch.rand((), generator=self.generator))


def fetched(data: Any, *, workers: int = 0, epoch: int = 0, seed: int = 1, start: int = 0, **kwargs: Any) -> Any:
    """Return the samples of an epoch by their index, as a trainer's stream fetches them."""
    loader = make_loader(data, shuffle=True, batch_size=4, num_workers=workers, **kwargs)
    stream = Stream(loader, device=CPU, seed=seed)
    stream.begin(epoch, start)
    rows = [row for batch in stream.rest() for row in zip(*(part.tolist() for part in batch), strict=True)]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("data", [Draws(), OwnGenerator()], ids=["global", "own"])
def test_samples_are_the_same_whatever_the_number_of_workers(data: Any) -> None:
    alone = fetched(data)
    assert sorted(alone) == list(range(12))
    assert len(set(alone.values())) == 12
    for workers in (1, 2):
        assert fetched(data, workers=workers) == alone


def test_persistent_workers_give_the_same_samples_in_every_epoch() -> None:
    loader = make_loader(Draws(), shuffle=True, batch_size=4, num_workers=2, persistent_workers=True)
    stream = Stream(loader, device=CPU, seed=1)
    for epoch in (0, 1, 0):
        stream.begin(epoch)
        rows = [row for batch in stream.rest() for row in zip(*(part.tolist() for part in batch), strict=True)]
        assert {row[0]: row[1:] for row in rows} == fetched(Draws(), epoch=epoch)


def test_samples_are_the_same_wherever_the_epoch_is_entered() -> None:
    whole = fetched(Draws())
    rest = fetched(Draws(), start=1)
    assert len(rest) == 8
    assert rest == {index: whole[index] for index in rest}


def test_samples_are_the_same_whatever_the_size_of_a_batch() -> None:
    stream = Stream(make_loader(Draws(), shuffle=False, batch_size=5), device=CPU, seed=1)
    stream.begin(0)
    rows = [row for batch in stream.rest() for row in zip(*(part.tolist() for part in batch), strict=True)]
    assert {row[0]: row[1:] for row in rows} == fetched(Draws())


def test_each_epoch_and_each_seed_gives_other_samples() -> None:
    first, second, other = fetched(Draws()), fetched(Draws(), epoch=1), fetched(Draws(), seed=2)
    for index in range(12):
        assert len({first[index], second[index], other[index]}) == 3
        assert len({value for samples in (first, second, other) for value in samples[index]}) == 9


def test_seeds_that_differ_by_more_than_32_bits_differ() -> None:
    assert fetched(Draws(), seed=5) != fetched(Draws(), seed=5 + 2**32)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_generators_of_the_process_are_left_as_they_were(workers: int) -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    before = RandomState().state_dict()
    fetched(Draws(), workers=workers)
    after = RandomState().state_dict()
    assert before["python"] == after["python"]
    assert torch.equal(before["torch"], after["torch"])
    assert torch.equal(before["numpy"]["keys"], after["numpy"]["keys"])
    assert before["numpy"]["position"] == after["numpy"]["position"]


def test_the_generators_are_left_as_they_were_though_a_sample_fails() -> None:
    class Fails(Draws):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            raise KeyError(index)

    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(KeyError):
        fetched(Fails())
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(DataError):
        sample_seed()


def test_a_collate_function_may_draw_and_is_seeded_for_its_batch() -> None:
    def mixed(items: list[Any]) -> Any:
        batch = default_collate(items)
        return [*batch, torch.full((len(items),), torch.rand(()).item())]

    alone = fetched(Draws(), collate_fn=mixed)
    for workers in (1, 2):
        assert fetched(Draws(), workers=workers, collate_fn=mixed) == alone
    assert len({row[-1] for row in alone.values()}) == 3


def test_a_data_set_inside_another_sees_the_seed_of_the_sample() -> None:
    class Outer(Dataset[Any]):
        def __init__(self) -> None:
            self.inner = OwnGenerator()

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]

    assert fetched(Outer()) == fetched(OwnGenerator())


def test_keys_may_be_anything() -> None:
    class ByName(Draws):
        def __getitem__(self, index: Any) -> Any:
            name, scale = index
            return scale, random.random(), float(np.random.rand()), float(torch.rand(())) + len(name)

    class Keys:
        def __iter__(self) -> Iterator[Any]:
            yield from (("a" * (scale % 3), scale) for scale in range(12))

        def __len__(self) -> int:
            return 12

    def draw(workers: int) -> Any:
        loader = DataLoader(ByName(), batch_size=4, sampler=Keys(), num_workers=workers)
        stream = Stream(loader, device=CPU, seed=1)
        stream.begin(0)
        return [[part.tolist() for part in batch] for batch in stream.rest()]

    assert draw(0) == draw(1)


# The seed of a sample -------------------------------------------------------------------------------------


def test_there_is_a_seed_only_while_a_sample_is_fetched() -> None:
    with pytest.raises(DataError) as caught:
        sample_seed()
    message = "sample_seed() has a value only while a trainer fetches a sample, inside __getitem__"
    assert str(caught.value) == message


def test_the_seed_of_a_sample_is_public_and_fits_any_generator() -> None:
    seeds: list[int] = []

    class Records(Draws):
        def __getitem__(self, index: int) -> Any:
            seeds.append(treadle.data.sample_seed())
            return super().__getitem__(index)

    fetched(Records())
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_by_hand_the_generators_are_seeded_with_the_seed_of_the_sample() -> None:
    class Checks(Draws):
        def __getitem__(self, index: int) -> Any:
            seed = sample_seed()
            expected = (
                random.Random(seed).random(),
                float(np.random.RandomState(seed).rand()),
                float(torch.rand((), generator=torch.Generator().manual_seed(seed))),
            )
            sample = super().__getitem__(index)
            assert sample[1:] == expected
            return sample

    assert len(fetched(Checks())) == 12


def test_one_sample_at_a_time_is_seeded_as_in_a_batch() -> None:
    data = SeededSamples(Draws(), default_collate, 7)
    together = data.__getitems__(Place(2, [3, 5]))
    alone = SeededSamples(Draws(), lambda sample: sample, 7)[Place(2, 5)]
    assert [part[1].item() for part in together] == pytest.approx(list(alone))


# Where it is not needed -----------------------------------------------------------------------------------


class Child(TensorDataset):
    pass


@pytest.mark.parametrize(
    ("data", "nothing"),
    [
        (TensorDataset(torch.zeros(2)), True),
        (torch.zeros(2), True),
        ([1, 2], True),
        ((1, 2), True),
        (np.zeros((2, 3)), True),
        (InMemoryDataset(torch.zeros(2)), True),
        (ConcatDataset([TensorDataset(torch.zeros(2)), [1]]), True),  # type: ignore[list-item]
        (ConcatDataset([TensorDataset(torch.zeros(2)), Draws()]), False),
        (Subset(TensorDataset(torch.zeros(2)), [0]), True),
        (Subset(Draws(), [0]), False),  # type: ignore[arg-type]
        (Draws(), False),
        (Child(torch.zeros(2)), False),
        (type("Words", (list,), {})(["a"]), False),
    ],
    ids=[
        *("tensors", "tensor", "list", "tuple", "array", "in memory", "several", "several with another", "subset"),
        *("subset of another", "another", "child", "child of list"),
    ],
)
def test_tensors_and_plain_lists_draw_nothing_and_all_else_may(data: Any, nothing: bool) -> None:
    assert draws_nothing(data) is nothing


def refuse_seeding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every attempt to seed a generator for a sample fail."""

    def refuse(seed: int) -> None:
        raise AssertionError("a sample was seeded")

    monkeypatch.setattr(per_sample, "SEEDERS", dict.fromkeys(global_rngs.SEEDERS, refuse))


def test_data_of_tensors_is_fetched_without_seeding(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_seeding(monkeypatch)
    with pytest.raises(AssertionError, match="a sample was seeded"):
        fetched(Draws())
    model = plain_network()
    data = TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
    trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=())
    assert trainer.train(data, 1).steps == 1


class Fixed(Draws):
    """A data set that promises to draw nothing, and would be caught if it were seeded."""

    draws_nothing = True

    def __getitem__(self, index: int) -> Any:
        with pytest.raises(DataError):
            sample_seed()
        return index, 0.0


def test_a_data_set_that_says_it_draws_nothing_is_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_seeding(monkeypatch)
    assert draws_nothing(Fixed())
    assert draws_nothing(Subset(Fixed(), [0]))
    assert sorted(fetched(Fixed())) == list(range(12))


def test_a_collate_function_is_seeded_though_the_samples_draw_nothing() -> None:
    def mixed(items: list[Any]) -> Any:
        assert sample_seed() >= 0
        return [*default_collate(items), torch.full((len(items),), torch.rand(()).item())]

    assert not draws_nothing(Fixed(), mixed)
    alone = fetched(Fixed(), collate_fn=mixed)
    assert fetched(Fixed(), workers=1, collate_fn=mixed) == alone
    assert len({row[-1] for row in alone.values()}) == 3


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_persistent_workers_find_their_place_after_an_epoch_that_was_left_early(cut: int) -> None:
    loader = make_loader(Draws(), shuffle=True, batch_size=4, num_workers=2, persistent_workers=True)
    stream = Stream(loader, device=CPU, seed=1)
    stream.begin(0)
    stream.window(cut + 1)
    stream.begin(1, cut)
    rows = [row for batch in stream.rest() for row in zip(*(part.tolist() for part in batch), strict=True)]
    assert {row[0]: row[1:] for row in rows} == fetched(Draws(), epoch=1, start=cut)
    stream.close()


def test_persistent_workers_that_have_another_seed_are_started_anew() -> None:
    loader = make_loader(Draws(), shuffle=True, batch_size=4, num_workers=1, persistent_workers=True)
    stream = Stream(loader, device=CPU, seed=1)
    stream.begin(0)
    stream.window(1)
    stream.reseed(2)
    stream.begin(0)
    rows = [row for batch in stream.rest() for row in zip(*(part.tolist() for part in batch), strict=True)]
    assert {row[0]: row[1:] for row in rows} == fetched(Draws(), seed=2)
    stream.close()
