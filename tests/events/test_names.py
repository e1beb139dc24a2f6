"""The names that all doors report the same things under."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle import Trainer
from treadle.callbacks import LearningRateMonitor, ThroughputMonitor
from treadle.events import names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIME", "time"),
        ("WALL_TIME", "wall_time"),
        ("DATA_TIME", "data_time"),
        ("TOTAL_LOSS", "total_loss"),
        ("LR", "lr"),
        ("ETA_SECONDS", "eta_seconds"),
        ("SAMPLES_PER_SECOND", "samples_per_second"),
        ("STEPS_PER_SECOND", "steps_per_second"),
        ("TOKENS_PER_SECOND", "tokens_per_second"),
        ("MFU", "mfu"),
        ("PEAK_MEMORY_MIB", "peak_memory_mib"),
    ],
)
def test_b39_what_says_how_a_run_goes_has_one_name(name: str, value: str) -> None:
    """Files and dashboards depend on these, so that to change one is to break them."""
    assert getattr(names, name) == value


def test_b39_the_callbacks_report_under_these_names() -> None:
    model = nn.Linear(2, 1)
    callbacks = (LearningRateMonitor, ThroughputMonitor)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks)
    loading = {"num_workers": 0, "persistent_workers": False}
    data = TensorDataset(torch.ones(4, 2), torch.zeros(4, 1))
    trainer.train(data, 1, per_device_batch_size=2, train_dataloader_kwargs=loading)
    reported = {names.LR, names.SAMPLES_PER_SECOND, names.STEPS_PER_SECOND, names.PEAK_MEMORY_MIB}
    assert reported <= trainer.storage.names("step")
    assert reported - {names.LR} <= set(names.THROUGHPUT)
