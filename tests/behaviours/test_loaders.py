"""How the loaders of a run are made, and what of the user's stays the user's."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, SubsetRandomSampler, TensorDataset

from treadle.callback import TrainerCallback
from treadle.trainer import Trainer


class Batches(TrainerCallback):
    """Keeps the inputs of every training and every evaluation batch."""

    def __init__(self) -> None:
        self.train: list[torch.Tensor] = []
        self.eval: list[torch.Tensor] = []

    def on_train_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        self.train.append(batch[0])

    def on_eval_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        self.eval.append(batch[0])


def sizes(batches: list[torch.Tensor]) -> list[int]:
    return [len(batch) for batch in batches]


def test_d20_by_default_training_is_shuffled_and_evaluation_is_not(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    assert trainer.get_default_train_dl_kwargs(4)["shuffle"] is True
    assert trainer.get_default_eval_dl_kwargs(4)["shuffle"] is False
    watch = Batches()
    make_trainer(watch).train(data, 2, eval_dataset=data)
    inputs = data.tensors[0]
    first, second = torch.cat(watch.train[:3]), torch.cat(watch.train[3:])
    assert not torch.equal(first, inputs)
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert torch.equal(epoch.sort(dim=0).values, inputs.sort(dim=0).values)
    assert torch.equal(torch.cat(watch.eval[:3]), inputs)


def test_d20_loader_arguments_win_over_the_defaults(make_trainer: Any, data: TensorDataset) -> None:
    watch = Batches()
    trainer = make_trainer(watch)
    trainer.train(
        data,
        1,
        eval_dataset=data,
        per_device_batch_size=2,
        train_dataloader_kwargs={"shuffle": False, "batch_size": 7, "drop_last": True},
        eval_dataloader_kwargs={"batch_size": 10},
    )
    assert torch.equal(torch.cat(watch.train), data.tensors[0][:21])
    assert sizes(watch.train) == [7, 7, 7]
    assert sizes(watch.eval) == [10, 10, 4]


def test_d20_a_sampler_takes_the_place_of_shuffling(make_trainer: Any, data: TensorDataset) -> None:
    watch = Batches()
    make_trainer(watch).train(data, 1, train_dataloader_kwargs={"sampler": SequentialSampler(data)})
    assert torch.equal(torch.cat(watch.train), data.tensors[0])


def test_d20_a_sampler_may_leave_samples_out(make_trainer: Any, data: TensorDataset) -> None:
    watch = Batches()
    result = make_trainer(watch).train(data, 2, train_dataloader_kwargs={"sampler": SubsetRandomSampler(range(10))})
    assert sizes(watch.train) == [8, 2, 8, 2]
    assert result.steps == 4


def test_d20_a_batch_sampler_takes_the_place_of_size_and_shuffling(make_trainer: Any, data: TensorDataset) -> None:
    watch = Batches()
    make_trainer(watch).train(data, 1, train_dataloader_kwargs={"batch_sampler": [[0, 1, 2], [23], [4, 5]]})
    assert [batch.tolist() for batch in watch.train] == [
        data.tensors[0][places].tolist() for places in ([0, 1, 2], [23], [4, 5])
    ]


def test_d20_the_verbs_that_make_loaders_can_be_overridden(make_trainer: Any, data: TensorDataset) -> None:
    class Own(Trainer):
        def create_train_dataloader(self, batch_size: int, train_dl_kwargs: Any = None) -> Any:
            return DataLoader(self.train_dataset, batch_size=batch_size * 2)

        def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: Any = None) -> Any:
            return DataLoader(self.eval_dataset, batch_size=batch_size * 3)

    watch = Batches()
    make_trainer(watch, kind=Own).train(data, 1, eval_dataset=data)
    assert sizes(watch.train) == [16, 8]
    assert sizes(watch.eval) == [24]


def test_d20_a_collate_function_joins_samples_of_training_and_evaluation(make_trainer: Any) -> None:
    texts = [("one", 1.0), ("three", 3.0)]

    def collate(samples: list[tuple[str, float]]) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.tensor([[float(len(text)), 1.0] for text, _ in samples])
        return lengths, torch.tensor([[number] for _, number in samples])

    watch = Batches()
    trainer = make_trainer(watch, lr=0.001)
    trainer.train(texts, 1, eval_dataset=texts, collate_fn=collate)
    trainer.evaluate(texts)
    assert [batch.tolist() for batch in watch.eval] == [[[3.0, 1.0], [5.0, 1.0]]] * 2


def test_d21_a_batch_size_in_the_loader_arguments_wins_and_is_reported(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    trainer.train(data, 1, eval_dataset=data, eval_dataloader_kwargs={"batch_size": 5})
    assert trainer.run_config.eval_per_device_batch_size == 5
    assert trainer.run_config.eval_total_batch_size == 5
    assert trainer.run_config.train_per_device_batch_size == 8
    trainer.evaluate(data, dataloader_kwargs={"batch_size": 3})
    assert trainer.run_config.eval_per_device_batch_size == 3


def test_d21_the_run_config_reports_the_numbers_of_the_run(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    trainer.train(data, 2, gradient_accumulation_steps=2, gradient_clip_value=0.5, max_steps=3)
    config = trainer.run_config
    assert (config.num_epochs, config.max_num_train_steps, config.num_processes) == (2, 3, 1)
    assert (config.num_update_steps_per_epoch, config.num_local_update_steps_per_epoch) == (2, 2)
    assert (config.train_total_batch_size, config.gradient_accumulation_steps) == (16, 2)
    assert (config.eval_per_device_batch_size, config.eval_dl_kwargs) == (None, None)
    assert (config.gradient_clip_value, config.mixed_precision, config.is_distributed) == (0.5, "fp32", False)


@pytest.mark.parametrize("name", ["sampler", "generator", "worker_init_fn"])
def test_d21_the_run_config_becomes_plain_data_whatever_the_loader_was_given(
    make_trainer: Any, data: TensorDataset, name: str
) -> None:
    value = {"sampler": SequentialSampler(data), "generator": torch.Generator(), "worker_init_fn": print}[name]
    trainer = make_trainer()
    trainer.train(data, 1, train_dataloader_kwargs={name: value})
    first, second = trainer.run_config.to_dict(), trainer.run_config.to_dict()
    assert first == second
    assert first["train_dl_kwargs"] == {name: type(value).__name__}
    assert trainer.run_config.train_dl_kwargs[name] is value


def test_d24_after_a_run_the_model_is_the_users_own(make_trainer: Any, data: TensorDataset) -> None:
    model = nn.Linear(2, 1)
    trainer = make_trainer(model=model)
    trainer.train(data, 1)
    assert trainer.model is model
    assert trainer.get_model() is model


def test_d24_the_users_optimizer_goes_on_to_control_the_next_run(make_trainer: Any, data: TensorDataset) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model[1].parameters(), lr=0.05), callbacks=(), device="cpu")
    mine = trainer.optimizer
    frozen = model[0].weight.detach().clone()
    trainer.train(data, 1)
    assert trainer.optimizer is mine
    assert torch.equal(model[0].weight, frozen)
    for parameter in model[0].parameters():
        parameter.requires_grad_(True)
    mine.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
    trainer.train(data, 1)
    assert not torch.equal(model[0].weight, frozen)


def test_d27_a_fresh_trainer_without_an_optimizer_evaluates(data: TensorDataset) -> None:
    model = nn.Linear(2, 1)
    trainer = Trainer(model, nn.MSELoss(), None, callbacks=(), device="cpu")
    expected = nn.functional.mse_loss(model(data.tensors[0]), data.tensors[1])
    assert trainer.evaluate(data)["evaluation_loss"] == pytest.approx(expected.item(), rel=1e-6)


def test_evaluate_without_data_takes_that_of_the_last_training_run(make_trainer: Any, data: TensorDataset) -> None:
    watch = Batches()
    trainer = make_trainer(watch)
    trainer.train(data, 1, eval_dataset=data)
    trainer.evaluate(TensorDataset(*(tensor[:4] for tensor in data.tensors)))
    watch.eval.clear()
    trainer.evaluate()
    assert sum(sizes(watch.eval)) == 24


def test_an_evaluation_by_a_callback_leaves_the_run_its_own_data_and_callbacks(
    make_trainer: Any, data: TensorDataset
) -> None:
    test_data = TensorDataset(*(tensor[:4] for tensor in data.tensors))
    closed: list[str] = []

    class Tests(TrainerCallback):
        def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.evaluate(test_data)

        def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
            assert closed == []

        def close(self) -> None:
            closed.append("closed")

    watch = Batches()
    trainer = make_trainer(watch, Tests)
    trainer.train(data, 2, eval_dataset=data)
    assert sizes(watch.eval) == [8, 8, 8, 4] * 2
    assert closed == ["closed"]
