"""Sources behind other doors: the same samples in the same order, and the same place after a resume."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor

from tests.data.sources.files import write_lines
from tests.data.sources.reference import listed
from tests.engine.parts import Classifier, iterations_of, make_config
from treadle.config import LazyCall
from treadle.data import Stream, make_loader
from treadle.data.sources import HuggingFaceStream, JsonLines, MixtureStream
from treadle.engine import DefaultTrainer, hooks
from treadle.errors import ConfigError, DataError


def as_point(record: dict[str, Any]) -> dict[str, Tensor]:
    number = record["number"]
    return {"inputs": torch.tensor([number / 100, 1.0]), "labels": torch.tensor(number % 2), "numbers": number}


class Recording(Classifier):
    """Remembers the numbers of the samples."""

    seen: list[int] = []

    def forward(self, inputs: Tensor, labels: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        self.seen.extend(numbers.tolist())
        return super().forward(inputs, labels)


@pytest.mark.slow
def test_the_engine_draws_from_a_source_and_resumes_in_its_order(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(80))
    config = make_config(tmp_path / "run", seed=7)
    config.dataloader.train = LazyCall(JsonLines)(path=str(path), transform=as_point)
    config.dataloader.test = None
    config.model = LazyCall(Recording)()
    Recording.seen = []

    def cut(own: Any) -> None:
        if own.iter == 7:
            raise RuntimeError("cut")

    trainer = DefaultTrainer(config)
    trainer.register_hooks([hooks.CallbackHook(after_step=cut)])
    with pytest.raises(RuntimeError, match="cut"):
        trainer.train()
    before, Recording.seen = Recording.seen, []
    config.train.resume = True
    again = DefaultTrainer(config)
    made = iterations_of(again)
    again.train()
    assert made[0] == 5
    whole = before[: 5 * 8] + Recording.seen
    assert whole == listed(JsonLines(path), 7, 0)


def test_what_a_stream_cannot_be_is_refused(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"x": list(range(8))})
    stream = HuggingFaceStream(rows.to_iterable_dataset())
    lines = JsonLines(write_lines(tmp_path / "a.jsonl", range(4)))
    with pytest.raises(DataError, match=r"is no datasets\.IterableDataset; one with an index is for HuggingFace"):
        HuggingFaceStream(rows)
    with pytest.raises(DataError, match="is shuffled by itself"):
        HuggingFaceStream(rows.to_iterable_dataset().shuffle(seed=1, buffer_size=4))
    with pytest.raises(ConfigError, match="HuggingFaceStream: buffer=-1 must be a whole number above 0"):
        HuggingFaceStream(rows.to_iterable_dataset(), buffer=-1)
    with pytest.raises(ConfigError, match=r"weights for \['b'\], and the sources are \['a'\]"):
        MixtureStream({"a": stream}, {"b": 1})
    with pytest.raises(ConfigError, match="'a' is a list, and no source"):
        MixtureStream({"a": [1]}, {"a": 1})
    with pytest.raises(ConfigError, match="no source is streamed; use Mixture, or say how long an epoch is"):
        MixtureStream({"a": lines}, {"a": 1})
    with pytest.raises(ConfigError, match="MixtureStream: length=0 must be"):
        MixtureStream({"a": stream}, {"a": 1}, length=0)
    with pytest.raises(ConfigError, match="a HuggingFaceStream gives samples; give its loader a batch_size"):
        Stream(make_loader(stream, shuffle=False, batch_size=None), device=torch.device("cpu"))


def test_a_stream_without_a_buffer_keeps_its_order_and_a_mixture_ends_with_it() -> None:
    rows = datasets.Dataset.from_dict({"x": list(range(8))}).to_iterable_dataset(num_shards=2)
    stream = Stream(
        make_loader(HuggingFaceStream(rows, buffer=0), shuffle=False, batch_size=3), device=torch.device("cpu")
    )
    for epoch in (0, 1):
        stream.begin(epoch)
        assert [batch["x"].tolist() for batch in stream.rest()] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    stream.begin(2)
    assert [batch["x"].tolist() for batch in stream] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    stream.window(1)
    again = Stream(
        make_loader(HuggingFaceStream(rows, buffer=0), shuffle=False, batch_size=3), device=torch.device("cpu")
    )
    again.load_state_dict(stream.state_dict())
    assert again.state_dict() == stream.state_dict()
    assert [batch["x"].tolist() for batch in again.rest()] == [[3, 4, 5], [6, 7]]
    mixed = MixtureStream({"a": HuggingFaceStream(rows, buffer=0), "b": HuggingFaceStream(rows)}, {"a": 3, "b": 1})
    drawn = [sample["x"] for sample in mixed]
    assert len(set(drawn)) == 8
    assert len(drawn) > 8
