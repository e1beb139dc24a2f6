"""Which samples a run sees: every one in every epoch, and the same ones whatever the number of processes."""

import itertools
from pathlib import Path

import pytest
import torch

from tests.engine.parts import Points, make_config
from treadle.data import Stream, make_loader
from treadle.engine import DefaultTrainer


def stream(rank: int, size: int, *, micro: int = 4, shuffle: bool = True) -> Stream:
    data = Points(103)
    data.points = torch.arange(103.0).unsqueeze(1).expand(103, 2)
    loader = make_loader(data, shuffle=shuffle, batch_size=micro)
    made = Stream(loader, device=torch.device("cpu"), seed=7, rank=rank, size=size, endless=True)
    made.begin(0)
    return made


def seen(streams: list[Stream], batches: int) -> list[list[int]]:
    """Return the samples of each global batch, over all ranks, without what only keeps a rank in step."""
    found = []
    for _ in range(batches):
        rows = []
        for own in streams:
            (batch,) = own.window(1)
            rows += [] if own.padded == 0 else batch["inputs"][:, 0].int().tolist()
        found.append(rows)
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_b45_resumed_at_any_place_the_stream_is_the_uninterrupted_one(size: int, shuffle: bool) -> None:
    whole = seen([stream(rank, size, shuffle=shuffle) for rank in range(size)], 40)
    for place in range(0, 40, 3):
        first = [stream(rank, size, shuffle=shuffle) for rank in range(size)]
        seen(first, place)
        resumed = [stream(rank, size, shuffle=shuffle) for rank in range(size)]
        for old, new in zip(first, resumed, strict=True):
            new.load_state_dict(old.state_dict())
        assert seen(resumed, 40 - place) == whole[place:]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_b45_every_sample_is_seen_once_in_every_epoch(size: int) -> None:
    streams = [stream(rank, size) for rank in range(size)]
    per_epoch = -(-103 // (4 * size))
    for _ in range(3):
        epoch = list(itertools.chain.from_iterable(seen(streams, per_epoch)))
        assert sorted(epoch) == list(range(103))


def test_b45_the_same_samples_make_a_step_however_many_processes_share_it() -> None:
    together = [
        [sorted(batch) for batch in seen([stream(rank, size, micro=8 // size) for rank in range(size)], 30)]
        for size in (1, 2, 4)
    ]
    assert together[0] == together[1] == together[2]


def test_consumed_samples_are_the_same_however_many_processes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = DefaultTrainer(make_config(tmp_path, train_iter=2))
    trainer.train()
    core = trainer.core
    # Two shares of the data with 95 samples each, since the last batch of an epoch was short, and four that go on.
    monkeypatch.setattr(core.parallel, "data_size", 4)
    state = core.this_run.state
    monkeypatch.setattr(state, "_load_resplit", lambda *arguments, **names: None)
    state.load({"processes": 2, "data": 2, "batch_size": 16, "tracked": {"progress": {"samples": 95}}}, {})
    assert (core.progress.samples, core.consumed_samples) == (47, 190)
    # What is not shared out evenly is counted apart.
    assert state.odd_samples == 2
