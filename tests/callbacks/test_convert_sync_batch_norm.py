from typing import Any

import pytest
import torch
from torch import nn

from treadle.callbacks import ConvertSyncBatchNormCallback
from treadle.errors import ConfigError


def test_on_one_process_the_model_stays(make_trainer: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert make_trainer(ConvertSyncBatchNormCallback, model=model).model is model


def test_several_processes_without_cuda_are_refused(make_trainer: Any) -> None:
    trainer = make_trainer()
    trainer.processes.size = 2
    with pytest.raises(ConfigError) as caught:
        ConvertSyncBatchNormCallback().on_init_end(trainer)
    assert str(caught.value) == (
        "ConvertSyncBatchNormCallback: torch's SyncBatchNorm needs CUDA, but this process trains on cpu; "
        "remove the callback, or use GroupNorm in the model"
    )


def test_batch_norms_are_converted_and_keep_their_weights(make_trainer: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    trainer = make_trainer(model=model)
    weight = model[1].weight
    trainer.processes.size, trainer.processes.device = 2, torch.device("cuda", 0)
    ConvertSyncBatchNormCallback().on_init_end(trainer)
    assert isinstance(trainer.model[1], nn.SyncBatchNorm)
    assert trainer.model[1].weight is weight
