"""The losses of an epoch, added up where they are."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import DEVICES, no_sync
from treadle.parallel import Processes
from treadle.recsys.trainers.loop.updater import EpochLosses


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("share", [1.0, 0.5, torch.tensor(0.5), torch.tensor(1.0)], ids=str)
def test_losses_are_added_up_by_their_shares_and_the_host_waits_for_none(
    share: Any, shape: tuple[int, ...], device: str
) -> None:
    sums = EpochLosses(torch.device(device))
    losses: list[Tensor] = [torch.full(shape, value, device=device) for value in (1.0, 2.0, 4.0)]
    share = share.to(device) if isinstance(share, Tensor) else share
    with no_sync(device):
        for loss in losses:
            sums.add("train", [loss], share)
    assert sums.read(["train"], Processes()) == [[pytest.approx(7.0 * float(share))]]
