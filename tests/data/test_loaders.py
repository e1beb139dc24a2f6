"""What loaders are made with, and what is refused."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from tests.interrupting import make_trainer, samples
from treadle.data.loaders import as_loader, loader_arguments
from treadle.errors import ConfigError, DataError
from treadle.trainer import Trainer


class Ready:
    """Ready batches."""

    def __iter__(self) -> Iterator[Any]:
        yield torch.ones(2, 2), torch.zeros(2, 1)


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(samples())


def arguments(given: dict[str, Any], data: Any = None, **defaults: Any) -> dict[str, Any]:
    return loader_arguments(samples() if data is None else data, defaults, given, "train_dataloader_kwargs")


def test_workers_live_on_from_epoch_to_epoch_by_default() -> None:
    assert arguments({"num_workers": 2})["persistent_workers"] is True
    assert arguments({}, num_workers=2)["persistent_workers"] is True
    assert arguments({"num_workers": 2, "persistent_workers": False})["persistent_workers"] is False


def test_workers_of_an_iterable_do_not_for_they_could_not_be_resumed_exactly() -> None:
    assert arguments({"num_workers": 2}, Streamed())["persistent_workers"] is False
    assert arguments({"num_workers": 2, "persistent_workers": True}, Streamed())["persistent_workers"] is True


def test_what_only_workers_need_is_left_out_without_them_and_told(caplog: pytest.LogCaptureFixture) -> None:
    given = {"num_workers": 0, "persistent_workers": True, "prefetch_factor": 4, "batch_size": 2}
    with caplog.at_level("INFO", logger="treadle"):
        assert arguments(given, num_workers=8) == {"num_workers": 0, "batch_size": 2}
        assert arguments({"persistent_workers": False}) == {}
    assert caplog.messages == [
        "train_dataloader_kwargs: persistent_workers, prefetch_factor: no effect without workers; set num_workers"
    ]


def test_workers_and_how_far_they_read_ahead_reach_the_loader() -> None:
    trainer = make_trainer(None)
    given = {"num_workers": 1, "prefetch_factor": 5}
    trainer.train(samples(), 1, train_dataloader_kwargs=given, eval_dataset=samples(), eval_dataloader_kwargs=given)
    for stream in (trainer._train_dataloader, trainer._eval_dataloader):
        loader = stream.loader
        assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 5, True)


READY = {
    "train_dataloader_kwargs": lambda trainer, data, given: trainer.train(data, 1, train_dataloader_kwargs=given),
    "eval_dataloader_kwargs": lambda trainer, data, given: trainer.train(
        samples(), 1, eval_dataset=data, eval_dataloader_kwargs=given
    ),
    "dataloader_kwargs": lambda trainer, data, given: trainer.predict(data, dataloader_kwargs=given),
    "add_stream('other')": lambda trainer, data, given: trainer.add_stream("other", data, **given),
}


@pytest.mark.parametrize("name", list(READY))
@pytest.mark.parametrize(("kind", "source"), [("a DataLoader", DataLoader(samples())), ("ready batches", Ready())])
def test_loader_arguments_beside_a_ready_loader_are_refused_by_name(name: str, kind: str, source: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        READY[name](make_trainer(None), source, {"shuffle": False, "batch_size": 4})
    assert str(caught.value) == (
        f"{name} has ['batch_size', 'shuffle'], but the data is {kind} already, which they cannot change; set them "
        "where it is made, or pass its data set"
    )


class Summed(nn.Linear):
    """Returns its loss, whatever the targets are."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, *batch: Any) -> Any:
        loss = super().forward(batch[0]).mean()
        return SimpleNamespace(loss=loss, logits=loss)


SIZED = {
    "train": lambda trainer, data: trainer.train(data, 1, per_device_batch_size=4),
    "evaluate": lambda trainer, data: trainer.evaluate(data, per_device_batch_size=4),
    "predict": lambda trainer, data: trainer.predict(data, per_device_batch_size=4),
}


@pytest.mark.parametrize("verb", list(SIZED))
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("a DataLoader with batch_size=6", DataLoader(samples(), batch_size=6)),
        ("a DataLoader with batch_size=None", DataLoader(samples(), batch_sampler=[[0, 1]])),
        ("ready batches", Ready()),
    ],
)
def test_a_batch_size_beside_a_ready_loader_of_another_one_is_told_of(
    verb: str, kind: str, source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    SIZED[verb](make_trainer(None, loss_func=None, build=Summed), source)
    assert capsys.readouterr().out.splitlines()[0] == (
        f"per_device_batch_size=4 has no effect: the data is {kind} already; set the size of batches where it is made, "
        "or pass its data set"
    )


def test_a_batch_size_that_is_the_loaders_or_that_some_data_needs_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(samples(), batch_size=4)
    assert make_trainer(None).train(loader, 1, per_device_batch_size=4).steps == 6
    trainer = make_trainer(None)
    trainer.train(DataLoader(samples(), batch_size=8), 1, eval_dataset=samples(), per_device_batch_size=4)
    assert [stream.batch_size for stream in (trainer._train_dataloader, trainer._eval_dataloader)] == [8, 4]
    assert make_trainer(None).train(DataLoader(samples(), batch_size=8), 1).steps == 3
    assert "has no effect" not in capsys.readouterr().out


class MakesLoaders(Trainer):
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: Any = None) -> Any:
        assert type(batch_size) is int
        return DataLoader(samples(), batch_size=batch_size)


def test_a_batch_size_is_taken_where_a_verb_of_ones_own_makes_the_loaders() -> None:
    assert make_trainer(None, kind=MakesLoaders).train(Ready(), 1, per_device_batch_size=4).steps == 6
    assert make_trainer(None, kind=MakesLoaders).train(Ready(), 1).steps == 3


SHUFFLED = {
    "train_dataloader_kwargs": lambda trainer, given: trainer.train(Streamed(), 1, train_dataloader_kwargs=given),
    "eval_dataloader_kwargs": lambda trainer, given: trainer.train(
        samples(), 1, eval_dataset=Streamed(), eval_dataloader_kwargs=given
    ),
    "dataloader_kwargs": lambda trainer, given: trainer.predict(Streamed(), dataloader_kwargs=given),
    "add_stream('other')": lambda trainer, given: trainer.add_stream("other", Streamed(), **given),
}


@pytest.mark.parametrize("name", list(SHUFFLED))
def test_an_iterable_that_is_to_be_shuffled_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SHUFFLED[name](make_trainer(None), {"shuffle": True})
    assert str(caught.value) == (
        f"{name}: shuffle=True cannot shuffle a Streamed, an iterable with an order of its own; shuffle in the data "
        "set itself, such as through a buffer, or pass one with __getitem__ and __len__"
    )
    assert make_trainer(None).train(Streamed(), 1, train_dataloader_kwargs={"shuffle": False}).steps == 3
    assert make_trainer(None).train(Streamed(), 1).steps == 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sampler": [0, 1], "shuffle": True}, "shuffle=True has no effect beside sampler="),
        ({"batch_sampler": [[0, 1]], "batch_size": 3}, "batch_size=3 has no effect beside batch_sampler="),
        (
            {"batch_sampler": [[0, 1]], "drop_last": True, "shuffle": True},
            "shuffle=True, drop_last=True has no effect beside batch_sampler=",
        ),
    ],
)
def test_loader_arguments_that_exclude_each_other_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^train_dataloader_kwargs: {text}; leave one of them out$"):
        make_trainer(None).train(samples(), 1, train_dataloader_kwargs=given)
    one = {key: value for key, value in given.items() if "sampler" in key}
    assert make_trainer(None).train(samples(), 1, train_dataloader_kwargs=one).steps == 1


def first(rows: list[Any]) -> Any:
    """Join samples by leaving out all but the first."""
    return rows[0]


IDLE = {
    "train": lambda trainer, data: trainer.train(data, 1, collate_fn=first),
    "train and evaluate": lambda trainer, data: trainer.train(data, 1, eval_dataset=data, collate_fn=first),
    "evaluate": lambda trainer, data: trainer.evaluate(data, collate_fn=first),
    "predict": lambda trainer, data: trainer.predict(data, collate_fn=first),
}


@pytest.mark.parametrize("verb", list(IDLE))
@pytest.mark.parametrize(("kind", "source"), [("a DataLoader", DataLoader(samples())), ("ready batches", Ready())])
def test_a_collate_function_beside_a_ready_loader_is_refused(verb: str, kind: str, source: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        IDLE[verb](make_trainer(None), source)
    assert str(caught.value) == (
        f"collate_fn=first joins samples into batches, but the data is {kind} already; give it to the DataLoader, or "
        "pass the data set"
    )


def test_a_collate_function_is_taken_if_only_the_training_data_is_a_ready_loader() -> None:
    sizes: list[int] = []

    def noted(rows: list[Any]) -> Any:
        sizes.append(len(rows))
        return default_collate(rows)

    loader = DataLoader(samples(), batch_size=4)
    make_trainer(None).train(loader, 1, eval_dataset=samples(), per_device_batch_size=6, collate_fn=noted)
    assert sizes == [6, 6, 6, 6]


@pytest.mark.parametrize("given", [None, {}])
def test_a_ready_loader_alone_is_used_as_it_is(given: Any) -> None:
    loader = DataLoader(samples(), batch_size=6)
    trainer = make_trainer(None)
    assert trainer.train(loader, 1, train_dataloader_kwargs=given).steps == 4
    assert trainer._train_dataloader.source is loader


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"ids": torch.zeros(2), "words": ["a", "b"], "more": 3},
            "a dict is data if each value is a tensor or an array with a row for every sample; this one has int, list",
        ),
        ({}, "a dict is data if each value is a tensor or an array with a row for every sample; this one has none"),
        (
            (torch.zeros(5, 2), torch.zeros(5)),
            "a tuple is a data set of samples, but these 2 tensors of unequal shape look like its columns; pass a "
            "TensorDataset or an InMemoryDataset of them",
        ),
        (3, "a int is no data; pass a data set, a DataLoader or an iterable of batches"),
    ],
)
def test_what_is_no_data_is_refused_with_what_to_pass(data: Any, text: str) -> None:
    with pytest.raises(DataError) as caught:
        as_loader(data, shuffle=False)
    assert str(caught.value) == text


def test_tensors_of_one_shape_in_a_tuple_are_samples() -> None:
    (batch,) = as_loader((torch.zeros(3), torch.ones(3)), shuffle=False, batch_size=2)
    assert batch.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_collate_function_may_take_tensors_of_any_shape() -> None:
    (batch,) = as_loader((torch.zeros(3, 1), torch.ones(3)), shuffle=False, batch_size=2, collate_fn=len)
    assert batch == 2


@pytest.mark.parametrize("data", [torch.zeros(6, 2), np.zeros((6, 2), dtype=np.float32)])
def test_a_bare_tensor_or_array_is_data_for_a_run_in_a_folder(data: Any, tmp_path: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(inputs).sum()}

    trainer = make_trainer(tmp_path / "run", build=Model, loss_func=None)
    assert trainer.train(data, 1, per_device_batch_size=2).steps == 3
    again = make_trainer(tmp_path / "run", build=Model, loss_func=None)
    assert again.train(data, 2, per_device_batch_size=2, resume="auto").steps == 6


def test_an_empty_dict_of_rows_is_refused_as_empty() -> None:
    with pytest.raises(DataError, match="the data set InMemoryDataset is empty; give it at least one sample"):
        as_loader({"ids": torch.zeros(0, 2)}, shuffle=False)


def test_a_list_of_ready_batches_is_taken_as_samples() -> None:
    batches = [(torch.ones(4, 2), torch.zeros(4, 1))] * 3
    trainer = make_trainer(None, loss_func=torch.nn.MSELoss())
    trainer.train(DataLoader(batches, batch_size=None), 1)  # type: ignore[arg-type]
    assert trainer.progress.step == 3
    loader = as_loader(batches, shuffle=False, batch_size=2)
    assert isinstance(loader, DataLoader)
    assert [batch[0].shape for batch in loader] == [(2, 4, 2), (1, 4, 2)]


def test_a_tensor_data_set_is_no_tuple_of_columns() -> None:
    assert isinstance(as_loader(TensorDataset(torch.zeros(2)), shuffle=True), DataLoader)
