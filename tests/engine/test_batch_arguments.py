"""What a model is called with for a batch: a tensor is one argument, and not as many as it has rows."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from tests.engine.parts import make_config
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer, EagerTrainer, inference_on_dataset
from treadle.engine.batch_arguments import call_arguments
from treadle.engine.evaluation import ClsEvaluator, DatasetEvaluator
from treadle.errors import DataError
from treadle.ops.losses import read_targets

Pair = namedtuple("Pair", ["points", "labels"])


class Seeing(nn.Module):
    """Takes one or two arguments, and notes the shapes of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)
        self.seen: list[tuple[tuple[int, ...], ...]] = []

    def forward(self, points: Tensor, more: Tensor | None = None) -> dict[str, Tensor]:
        given = (points,) if more is None else (points, more)
        self.seen.append(tuple(tuple(part.shape) for part in given))
        return {"loss": self.body(points).square().mean()}


def trained_on(batch: Any) -> Seeing:
    model = Seeing()
    EagerTrainer(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1)).train(0, 1)
    return model


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_an_eager_trainer_hands_a_bare_tensor_over_whole(rows: int) -> None:
    assert trained_on(torch.ones(rows, 4)).seen == [((rows, 4),)]


def test_a_tuple_a_list_and_a_named_tuple_go_in_order() -> None:
    pair = (torch.ones(3, 4), torch.ones(3))
    for batch in (pair, list(pair), Pair(*pair)):
        assert trained_on(batch).seen == [((3, 4), (3,))]


class Rows(torch.utils.data.Dataset[Tensor]):
    """Rows of four numbers, and nothing else."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), float(index))


class OwnBatch(DefaultTrainer):
    """Returns a bare tensor from a `get_batch` of its own."""

    @classmethod
    def get_batch(cls, data: Any, input_placement_device: Any = None, mixup_func: Any = None) -> Any:
        return data * 2


@pytest.mark.parametrize("kind", [DefaultTrainer, OwnBatch])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_get_batch_may_return_a_bare_tensor(tmp_path: Path, kind: type[DefaultTrainer], size: int) -> None:
    made = make_config(tmp_path, train_iter=1, train_micro_batch_size=size)
    made.model, made.dataloader = LazyCall(Seeing)(), {"train": LazyCall(Rows)()}
    trainer = kind(made)
    trainer.train()
    # The second look counts the operations.
    assert set(trainer.model.seen) == {((size, 4),)}


@pytest.mark.parametrize("get_batch", [None, lambda batch: batch])
def test_an_evaluation_hands_a_bare_tensor_over_whole(get_batch: Any) -> None:
    model = Seeing()
    inference_on_dataset(model, [torch.ones(2, 4)], get_batch=get_batch, evaluator=DatasetEvaluator())
    assert model.seen == [((2, 4),)]


def test_what_is_no_tuple_list_or_mapping_is_one_argument() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert call_arguments(packed) == ((packed,), {})
    assert call_arguments("text") == (("text",), {})
    assert call_arguments(iter([1, 2])) == ((1, 2), {})


def test_a_get_batch_that_returns_nothing_is_named() -> None:
    with pytest.raises(DataError) as caught:
        call_arguments(None)
    assert str(caught.value) == (
        "get_batch returned None; return the arguments of the model: a dict, a tuple, or a tensor"
    )


def test_the_second_row_of_a_tensor_is_not_taken_for_labels() -> None:
    for batch in (torch.ones(2, 4), (torch.ones(2, 4),)):
        with pytest.raises(DataError, match=r"has no \(inputs, targets\); make the data set return pairs"):
            read_targets(batch)
    with pytest.raises(DataError, match=r"a batch of type Tensor has no \(inputs, targets\)"):
        ClsEvaluator().process(torch.ones(2, 4), torch.ones(2, 3))
