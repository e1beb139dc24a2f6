"""Batches that are cut out of a whole epoch are those of the loader."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.trainer.runs import parts
from treadle.recsys.data.dataloader import EpochBatches
from treadle.recsys.trainers.loop.streams import LoaderStream

CASES: dict[str, dict[str, Any]] = {
    "BPR": {},
    "BPR with three negatives": {"train_neg_sample_args": {"distribution": "uniform", "sample_num": 3}},
    "NeuMF": {},
}


@pytest.mark.parametrize("case", CASES)
def test_a_batch_at_a_place_is_that_of_the_loader_in_every_epoch(case: str, tmp_path: Path) -> None:
    _, loader, _, _ = parts(tmp_path, case.split()[0], **CASES[case])
    epochs = EpochBatches(loader)
    addresses = set()
    for epoch in (0, 1, 5):
        epochs.begin(epoch)
        addresses.add(epochs.address)
        for number in (0, len(loader) - 1):
            place = number * loader.step
            size = min(loader.step, loader.sample_size - place)
            expected = loader.batch_at(epoch, number).interaction
            for batch in (epochs.batch_of(place, size), epochs.batch_at(torch.tensor(place), size)):
                assert list(batch) == list(expected)
                assert all(torch.equal(batch[name], column) for name, column in expected.items())
    assert len(addresses) == 1


def stream_of(loader: Any, **given: Any) -> LoaderStream:
    return LoaderStream(loader, device=torch.device("cpu"), rank=0, name="train", **{"size": 1, **given})


def test_places_go_on_where_batches_ended_and_batches_where_places_did(tmp_path: Path) -> None:
    _, loader, _, _ = parts(tmp_path)
    stream = stream_of(loader)
    stream.begin(2)
    stream.window(1)
    assert stream.places(2) == [(loader.step, loader.step), (2 * loader.step, loader.step)]
    (batch,) = stream.window(1)
    expected = loader.batch_at(2, 3).interaction
    assert all(torch.equal(batch[name], column) for name, column in expected.items())
    assert not stream.has_next()
    assert stream.places(1) == []


def test_several_processes_passes_or_endless_data_have_no_places(tmp_path: Path) -> None:
    _, loader, _, _ = parts(tmp_path)
    assert stream_of(loader, size=2).in_memory is None
    assert stream_of(loader, passes=2).in_memory is None
    stream = stream_of(loader)
    stream.endless = True
    assert stream.places(1) is None
