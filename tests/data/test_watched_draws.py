"""Generators are seeded only for data that draws from them, and a sample is the same as if all were seeded."""

import logging
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate

from tests.interrupting import plain_network, starts_of
from treadle.data import RandomState, Stream, global_rngs, make_loader, sample_seed
from treadle.data import per_sample_rng as per_sample
from treadle.data.per_sample_rng import Place, SeededSamples
from treadle.data.seeds import fold_seed
from treadle.trainer import Trainer

CPU = torch.device("cpu")
SAMPLES = 48
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy.random": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
}
ALL = tuple(DRAWS)


class Sometimes(Dataset[Any]):
    """Samples, some of which draw.

    Args:
        draws: Gives the names of the generators that a sample draws from, by its index.
    """

    def __init__(self, draws: Callable[[int], Any] = lambda index: ()) -> None:
        self.draws = draws
        self.fetched: Counter[int] = Counter()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        self.fetched[index] += 1
        return index, *(DRAWS[name]() if name in self.draws(index) else 0.0 for name in ALL)


class Together(Sometimes):
    """The same, fetched batch by batch."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def reference(data: Sometimes, *, seed: int = 1, epoch: int = 0) -> dict[int, Any]:
    """Return all samples, by generators that are made and seeded for each of them."""
    return {index: expected(data, index, fold_seed(seed, epoch, index)) for index in range(SAMPLES)}


def expected(data: Sometimes, index: int, seed: int) -> tuple[float, ...]:
    """Return what a sample is, with generators of its own."""
    own = {
        "random": random.Random(seed).random(),
        "numpy.random": float(np.random.RandomState(seed).rand()),
        "torch": float(torch.rand((), generator=torch.Generator().manual_seed(seed))),
    }
    return tuple(own[name] if name in data.draws(index) else 0.0 for name in ALL)


def opened(data: Any, *, workers: int = 0, seed: int = 1, **kwargs: Any) -> Stream:
    """Return a stream of batches of 4 in an order of the run's seed."""
    loader = make_loader(data, shuffle=True, batch_size=4, num_workers=workers, **kwargs)
    return Stream(loader, device=CPU, seed=seed)


def rows_of(batches: Any) -> dict[int, Any]:
    """Return samples by their index."""
    rows = [row for batch in batches for row in zip(*(part.tolist() for part in batch), strict=True)]
    return {row[0]: row[1:] for row in rows}


def fetched(data: Any, *, epoch: int = 0, start: int = 0, **options: Any) -> dict[int, Any]:
    """Return the samples of an epoch by their index."""
    stream = opened(data, **options)
    stream.begin(epoch, start)
    return rows_of(stream.rest())


@contextmanager
def seedings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count how often each generator is seeded."""
    counts: Counter[str] = Counter()

    def counting(name: str) -> Callable[[int], None]:
        def seed(value: int) -> None:
            counts[name] += 1
            global_rngs.SEEDERS[name](value)

        return seed

    with monkeypatch.context() as patch:
        patch.setattr(per_sample, "SEEDERS", {name: counting(name) for name in ALL})
        yield counts


PATTERNS: dict[str, Callable[[int], Any]] = {
    "always": lambda index: ALL,
    "one sample": lambda index: ALL if index == 17 else (),
    "one after the other": lambda index: ALL[index % 3 : index % 3 + 1] if index % 5 == 0 else (),
    "python late": lambda index: ("random",) if index > 30 else (),
    "numpy late": lambda index: ("numpy.random",) if index > 30 else (),
    "torch late": lambda index: ("torch",) if index > 30 else (),
    "python early, all late": lambda index: ALL if index > 40 else ("random",),
    "never": lambda index: (),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_those_of_generators_seeded_for_each_of_them(pattern: str, workers: int) -> None:
    data = Sometimes(PATTERNS[pattern])
    for epoch in (0, 3):
        assert fetched(data, epoch=epoch, workers=workers) == reference(data, epoch=epoch)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_samples_are_the_same_wherever_an_epoch_is_entered_and_whatever_was_fetched_before(pattern: str) -> None:
    data = Sometimes(PATTERNS[pattern])
    stream = opened(data)
    for epoch, start in ((0, 5), (0, 11), (1, 2), (0, 0)):
        stream.begin(epoch, start)
        rows = rows_of(stream.rest())
        assert len(rows) == SAMPLES - 4 * start
        assert rows == {index: sample for index, sample in reference(data, epoch=epoch).items() if index in rows}


@pytest.mark.parametrize("seed", range(5))
def test_samples_that_draw_by_chance_are_the_same_in_any_batches(seed: int) -> None:
    chance = random.Random(seed)
    plan = [[name for name in ALL if chance.random() < 0.1] for _ in range(SAMPLES)]
    data = Sometimes(plan.__getitem__)
    assert fetched(data, seed=seed) == reference(data, seed=seed)
    for size in (1, 7):
        stream = Stream(make_loader(data, shuffle=False, batch_size=size), device=CPU, seed=seed)
        assert rows_of(stream.rest()) == reference(data, seed=seed)


def test_whether_a_sample_draws_may_depend_on_what_was_drawn() -> None:
    class Rarely(Sometimes):
        def __getitem__(self, index: int) -> Any:
            return index, (float(torch.rand(())) if random.random() < 0.1 else 0.0)

    rows = fetched(Rarely())
    drawn = [sample for sample in rows.values() if sample[0]]
    assert 0 < len(drawn) < SAMPLES
    for index, (found,) in rows.items():
        seed = fold_seed(1, 0, index)
        if random.Random(seed).random() < 0.1:
            assert found == float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
        else:
            assert found == 0.0
    assert fetched(Rarely(), workers=2) == rows


# What is seeded ---------------------------------------------------------------------------------------------


def test_data_that_draws_nothing_is_seeded_in_its_first_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with seedings(monkeypatch) as counts:
        stream = opened(Sometimes())
        for epoch in (0, 1):
            stream.begin(epoch)
            assert len(rows_of(stream.rest())) == SAMPLES
    assert counts == dict.fromkeys(ALL, 4)


@pytest.mark.parametrize("name", ALL)
def test_only_the_generator_that_is_drawn_from_is_seeded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Sometimes(lambda index: (name,))
    with seedings(monkeypatch) as counts:
        assert fetched(data) == reference(data)
    assert counts == {other: SAMPLES if other == name else 4 for other in ALL}
    assert set(data.fetched.values()) == {1}


@pytest.mark.parametrize("kind", [Sometimes, Together])
def test_the_batch_in_which_drawing_is_first_seen_is_fetched_twice_and_no_other(kind: type[Sometimes]) -> None:
    data = kind(lambda index: ALL if index in (17, 30, 31) else ())
    stream = Stream(make_loader(data, shuffle=False, batch_size=4), device=CPU, seed=1)
    rows = rows_of(stream.rest())
    assert data.fetched == {index: 2 if 16 <= index < 20 else 1 for index in range(SAMPLES)}
    if kind is Sometimes:
        assert rows == reference(data)


def test_generators_that_are_drawn_from_one_after_the_other_cost_one_batch_each() -> None:
    first = {8: "random", 20: "torch", 40: "numpy.random"}
    data = Sometimes(lambda index: [name for start, name in first.items() if index >= start])
    stream = Stream(make_loader(data, shuffle=False, batch_size=4), device=CPU, seed=1)
    assert rows_of(stream.rest()) == reference(data)
    assert [index for index, count in data.fetched.items() if count == 2] == [
        *range(8, 12),
        *range(20, 24),
        *range(40, 44),
    ]


def test_a_second_fetch_is_told_with_what_avoids_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="treadle")
    stream = Stream(make_loader(Sometimes(PATTERNS["torch late"]), shuffle=False, batch_size=4), device=CPU, seed=1)
    rows_of(stream.rest())
    assert caplog.messages == [
        "Sometimes draws from torch for the first time: this batch is fetched again, with seeds of its own; "
        "draws_nothing = False in the class has every batch fetched once, with all seeds"
    ]


@pytest.mark.parametrize("wrapped", ["alone", "subset", "joined"])
def test_data_that_says_that_it_draws_is_fetched_once_with_all_seeds(
    wrapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drawing(Sometimes):
        draws_nothing = False

    data = Drawing(PATTERNS["one sample"])
    whole: Any = {
        "alone": data,
        "subset": Subset(data, range(SAMPLES)),
        "joined": ConcatDataset([Subset(data, range(8)), Subset(data, range(8, SAMPLES))]),
    }[wrapped]
    with seedings(monkeypatch) as counts:
        assert fetched(whole) == reference(data)
    assert counts == dict.fromkeys(ALL, SAMPLES)
    assert set(data.fetched.values()) == {1}


def test_a_data_set_that_remembers_its_samples_gives_the_same_ones() -> None:
    class Remembering(Sometimes):
        def __init__(self) -> None:
            super().__init__(PATTERNS["torch late"])
            self.kept: dict[int, float] = {}

        def __getitem__(self, index: int) -> Any:
            # What costs much is kept; what is random is drawn each time.
            value = self.kept.setdefault(index, index**0.5)
            return index, value, *super().__getitem__(index)[1:]

    data = Remembering()
    expected_rows = {index: (index**0.5, *sample) for index, sample in reference(data).items()}
    assert fetched(data) == expected_rows
    assert fetched(data) == expected_rows


# Batches that are fetched or joined as a whole --------------------------------------------------------------


def test_batches_fetched_at_once_are_seeded_when_they_draw_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Together(lambda index: ("torch",) if index > 30 else ())

    def whole(workers: int) -> dict[int, Any]:
        stream = Stream(make_loader(data, shuffle=False, batch_size=4, num_workers=workers), device=CPU, seed=1)
        return rows_of(stream.rest())

    with seedings(monkeypatch) as counts:
        rows = whole(0)
    # The first batch, the one that is fetched again, and the four after it.
    assert counts == {"torch": 1 + 1 + 4, "random": 2, "numpy.random": 2}
    for place in range(0, SAMPLES, 4):
        indices = list(range(place, place + 4))
        generator = torch.Generator().manual_seed(fold_seed(1, 0, indices))
        for index in indices:
            drawn = float(torch.rand((), generator=generator)) if index > 30 else 0.0
            assert rows[index] == (0.0, 0.0, drawn)
    assert whole(2) == rows


def late_mixing(items: list[Any]) -> Any:
    """Collate, and draw only in batches without small indices; samples are taken apart while it does."""
    indices = [item.pop("index") for item in items]
    mixed = float(torch.rand(())) if min(indices) >= 24 else 0.0
    return [torch.tensor(indices), torch.full((len(indices),), mixed, dtype=torch.float64)]


class TakenApart(Sometimes):
    """Samples that are dicts, made anew each time."""

    def __getitem__(self, index: int) -> Any:
        self.fetched[index] += 1
        return {"index": index}


def test_a_collate_function_that_draws_late_gets_its_samples_anew() -> None:
    data = TakenApart()

    def whole(workers: int) -> dict[int, Any]:
        loader = DataLoader(data, batch_size=4, collate_fn=late_mixing, num_workers=workers)
        return rows_of(Stream(loader, device=CPU, seed=1).rest())

    rows = whole(0)
    assert data.fetched == {index: 2 if 24 <= index < 28 else 1 for index in range(SAMPLES)}
    for index, (mixed,) in rows.items():
        indices = list(range(index // 4 * 4, index // 4 * 4 + 4))
        generator = torch.Generator().manual_seed(fold_seed(1, 0, indices))
        assert mixed == (float(torch.rand((), generator=generator)) if index >= 24 else 0.0)
    assert whole(2) == rows


def test_batches_that_draw_nothing_are_fetched_at_once_for_any_collate_function() -> None:
    class Whole(Sometimes):
        draws_nothing = True

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("batches are fetched at once")

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [(index, 0.0) for index in indices]

    assert len(fetched(Whole(), collate_fn=lambda items: default_collate(items))) == SAMPLES


def test_a_collate_function_does_not_have_the_samples_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(items: list[Any]) -> Any:
        return [*default_collate(items), torch.full((len(items),), float(torch.rand(())))]

    with seedings(monkeypatch) as counts:
        assert len(fetched(Sometimes(), collate_fn=mixed)) == SAMPLES
    # Each sample of the first batch, and each batch.
    assert counts == {"torch": 4 + SAMPLES // 4, "random": 5, "numpy.random": 5}


def test_a_sample_that_is_fetched_alone_is_watched_too() -> None:
    data = Sometimes(PATTERNS["torch late"])
    samples = SeededSamples(data, tuple, 1)
    for index in range(SAMPLES):
        assert samples[Place(0, index)] == (index, *reference(data)[index])
    assert data.fetched == {index: 2 if index == 31 else 1 for index in range(SAMPLES)}


# Draws that are hard to see ---------------------------------------------------------------------------------


class Normal(Sometimes):
    """One late sample draws one normal number; generators make two at once, and keep the second."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return index, self.draw() if index == 40 else 0.0


@pytest.mark.parametrize(
    ("draw", "again"),
    [
        (lambda: random.gauss(0, 1), lambda seed: random.Random(seed).gauss(0, 1)),
        (lambda: float(np.random.randn()), lambda seed: float(np.random.RandomState(seed).randn())),
        (lambda: float(torch.randn(())), lambda seed: float(torch.randn((), generator=torch.manual_seed(seed)))),
    ],
    ids=ALL,
)
def test_a_number_that_a_generator_has_in_store_is_not_taken(draw: Any, again: Any) -> None:
    stream = Stream(make_loader(Normal(draw), shuffle=False, batch_size=4), device=CPU, seed=1)
    rows: dict[int, Any] = {}
    while stream.has_next():
        # What a model draws, which leaves a second number in store each time.
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        random.gauss(0, 1), np.random.randn(), torch.randn(())
        rows |= rows_of(stream.window(1))
    assert rows[40] == (again(fold_seed(1, 0, 40)),)


def test_a_generator_that_comes_round_to_its_place_is_seen() -> None:
    class Round(Sometimes):
        def __getitem__(self, index: int) -> Any:
            # As many numbers as the generator makes at once.
            return index, float(random.getrandbits(32 * 624) % 1009) if index == 40 else 0.0

    stream = Stream(make_loader(Round(), shuffle=False, batch_size=4), device=CPU, seed=1)
    seed = fold_seed(1, 0, 40)
    assert rows_of(stream.rest())[40] == (float(random.Random(seed).getrandbits(32 * 624) % 1009),)


def test_a_data_set_that_seeds_a_generator_itself_does_so_for_itself_only() -> None:
    class Seeding(Sometimes):
        def __getitem__(self, index: int) -> Any:
            if index >= 24:
                torch.manual_seed(index)
            return index, float(torch.rand(())) if index >= 24 else 0.0

    torch.manual_seed(3)
    before = torch.get_rng_state()
    rows = rows_of(Stream(make_loader(Seeding(), shuffle=False, batch_size=4), device=CPU, seed=1).rest())
    assert torch.equal(torch.get_rng_state(), before)
    assert rows[30] == (float(torch.rand((), generator=torch.Generator().manual_seed(30))),)


def forked() -> float:
    with torch.random.fork_rng(devices=()):
        return float(torch.rand(()))


def put_back() -> float:
    state = random.getstate()
    drawn = random.random()
    random.setstate(state)
    return drawn


def put_back_by_numpy() -> float:
    state = np.random.get_state()
    drawn = np.random.rand()
    np.random.set_state(state)
    return float(drawn)


LOOKS: dict[str, tuple[Callable[[], float], Callable[[int], float]]] = {
    "fork_rng": (forked, lambda seed: float(torch.rand((), generator=torch.Generator().manual_seed(seed)))),
    "initial_seed": (lambda: float(torch.initial_seed()), float),
    "random": (put_back, lambda seed: random.Random(seed).random()),
    "numpy.random": (put_back_by_numpy, lambda seed: float(np.random.RandomState(seed).rand())),
}


@pytest.mark.parametrize("kind", LOOKS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_that_is_looked_at_and_does_not_move_is_seeded(kind: str, workers: int) -> None:
    look, again = LOOKS[kind]
    before = [getattr(module, name) for places in global_rngs.READERS.values() for module, name in places]

    class Looking(Sometimes):
        def __getitem__(self, index: int) -> Any:
            return index, look()

    rows = fetched(Looking(), workers=workers)
    assert rows == {index: (again(fold_seed(1, 0, index)),) for index in range(SAMPLES)}
    after = [getattr(module, name) for places in global_rngs.READERS.values() for module, name in places]
    assert after == before


def test_a_sample_that_fails_for_what_it_drew_is_fetched_with_its_own_seed() -> None:
    class Failing(Sometimes):
        def __getitem__(self, index: int) -> Any:
            self.fetched[index] += 1
            if index == 17 and random.random() != random.Random(fold_seed(1, 0, 17)).random():
                raise KeyError("another number")
            if index == 41:
                random.random()
                raise KeyError("whatever is drawn")
            return index, 0.0

    data = Failing()
    stream = Stream(make_loader(data, shuffle=False, batch_size=4), device=CPU, seed=1)
    with pytest.raises(KeyError, match="whatever is drawn"):
        rows_of(stream.rest())
    assert data.fetched == {index: 2 if 16 <= index < 18 else 1 for index in range(42)}


def test_the_seed_of_a_sample_is_known_in_batches_that_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asks(Sometimes):
        def __getitem__(self, index: int) -> Any:
            self.fetched[index] += 1
            return index, sample_seed() if index % 7 == 0 else 0

    data = Asks()
    with seedings(monkeypatch) as counts:
        rows = fetched(data)
    assert rows == {index: (fold_seed(1, 0, index) if index % 7 == 0 else 0,) for index in range(SAMPLES)}
    assert counts == dict.fromkeys(ALL, 4)
    assert set(data.fetched.values()) == {1}
    assert fetched(data, workers=2) == rows


# The generators of the process ------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["to the end", "a sample fails"])
@pytest.mark.parametrize("pattern", ["never", "one sample", "always"])
@pytest.mark.parametrize("peeks", [True, False], ids=["by memory", "by state"])
def test_the_generators_of_the_process_stay_as_they_were(
    pattern: str, fails: bool, peeks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(Sometimes):
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            if fails and index == 17:
                raise KeyError(index)
            return sample

    if not peeks:
        monkeypatch.setattr(global_rngs, "_words_of_python", None)
        monkeypatch.setattr(global_rngs, "_normal_of_numpy", None)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    random.gauss(0, 1), np.random.randn()
    before = RandomState().state_dict()
    stream = Stream(make_loader(Fails(PATTERNS[pattern]), shuffle=False, batch_size=4), device=CPU, seed=1)
    try:
        rows = rows_of(stream.rest())
        assert not fails
        assert rows == reference(Fails(PATTERNS[pattern]))
    except KeyError:
        assert fails
    after = RandomState().state_dict()
    assert before["python"] == after["python"]
    assert torch.equal(before["torch"], after["torch"])
    assert torch.equal(before["numpy"]["keys"], after["numpy"]["keys"])
    for name in ("position", "has_gauss", "cached"):
        assert before["numpy"][name] == after["numpy"][name]


def test_memory_of_pythons_generator_is_its_state() -> None:
    words = global_rngs._words_of_python
    assert words is not None, "on this Python, drawing is watched by copying states, which costs more"
    random.seed(11)
    for _ in range(3):
        place, *keys = np.frombuffer(words.raw, dtype=np.uint32).tolist()
        assert (*keys, place) == random.getstate()[1]
        random.getrandbits(32 * 400)


def test_memory_of_numpys_generator_is_its_normal_number() -> None:
    assert global_rngs._normal_of_numpy is not None, "with this NumPy, drawing is watched by states, which costs more"
    np.random.seed(11)
    for _ in range(4):
        state = np.random.get_state(legacy=False)
        assert global_rngs._normal_in_store() == (state["gauss"] if state["has_gauss"] else None)
        np.random.randn()


def test_samples_of_another_data_set_that_are_fetched_on_the_way_disturb_nothing() -> None:
    inner = SeededSamples(Sometimes(PATTERNS["always"]), default_collate, 5)

    class Mixing(Sometimes):
        def __getitem__(self, index: int) -> Any:
            first = np.random.rand()
            other = inner[Place(0, index)]
            return index, first, np.random.rand(), random.random(), float(torch.rand(())), float(other[2])

    rows = fetched(Mixing())
    for index, sample in rows.items():
        seed = fold_seed(1, 0, index)
        numbers = np.random.RandomState(seed)
        mine = (numbers.rand(), numbers.rand(), random.Random(seed).random())
        assert sample[:3] == mine
        assert sample[3] == float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
        assert sample[4] == np.float32(np.random.RandomState(fold_seed(5, 0, index)).rand())


def test_what_was_learned_goes_to_another_process() -> None:
    samples = SeededSamples(Sometimes(), default_collate, 1)
    samples.__getitems__(Place(0, [0, 1]))
    other = pickle.loads(pickle.dumps(samples._samples))  # noqa: S301 - as a loader sends it to its workers
    assert not other.learning
    assert vars(other) == vars(samples._samples)


# Runs ---------------------------------------------------------------------------------------------------------


def test_processes_fetch_the_samples_that_one_would() -> None:
    data = Sometimes(PATTERNS["one sample"])
    rows: dict[int, Any] = {}
    for rank in (0, 1):
        loader = make_loader(data, shuffle=True, batch_size=4)
        rows |= rows_of(Stream(loader, device=CPU, seed=1, rank=rank, size=2).rest())
    assert rows == reference(data)


class Regression(Sometimes):
    """One sample of an epoch has noise; which one, nobody knows before."""

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(2) if index == 17 else torch.zeros(2)
        return torch.full((2,), index / SAMPLES) + noise, torch.ones(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_resumed_where_drawing_is_first_seen_has_the_same_bits(workers: int, tmp_path: Path) -> None:
    def train(folder: str, steps: int) -> dict[str, torch.Tensor]:
        model = plain_network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=(), seed=1, run_dir=tmp_path / folder)
        loading = {"num_workers": workers, "shuffle": False}
        options: Any = {"max_steps": steps, "save_every": "1 step", "resume": "auto"}
        trainer.train(Regression(), 2, per_device_batch_size=4, train_dataloader_kwargs=loading, **options)
        return model.state_dict()

    whole = train("whole", 14)
    # Sample 17 is in the fifth batch.
    for cut in (3, 4, 5):
        train(f"cut {cut}", cut)
        resumed = train(f"cut {cut}", 14)
        assert starts_of(tmp_path / f"cut {cut}") == [0, cut]
        assert all(torch.equal(resumed[name], whole[name]) for name in whole)
