"""The guard catches every way to read the device, and lets everything else pass."""

import copy
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.guards.no_sync import DEVICES, DeviceReadError, host_counters, no_sync

READS: dict[str, Callable[[Tensor], Any]] = {
    "cpu": lambda values: values.cpu(),
    "tolist": lambda values: values.tolist(),
    "numpy": lambda values: values.numpy(),
    "__repr__": lambda values: repr(values),
    "item": lambda values: values[0].item(),
    "__bool__": lambda values: bool(values[0]),
    "__float__": lambda values: float(values[0]),
    "__int__": lambda values: int(values[0]),
    "__index__": lambda values: range(values[0].long()),
    "__complex__": lambda values: complex(values[0]),
    "__array__": lambda values: numpy.asarray(values),
    "to('cpu')": lambda values: values.to("cpu"),
    "aten::_local_scalar_dense": lambda values: torch.full((2,), values[0]),
    "aten::equal": lambda values: torch.equal(values, values),
    "aten::allclose": lambda values: torch.allclose(values, values),
    "aten::nonzero": lambda values: torch.nonzero(values),
    "aten::masked_select": lambda values: values.masked_select(values > 1),
    "aten::index.Tensor": lambda values: values[values > 1],
    "aten::index_put_": lambda values: values.__setitem__(values > 1, values[:2]),
    "aten::_unique2": lambda values: values.unique(),
    "aten::bincount": lambda values: values.long().bincount(),
    "aten::repeat_interleave.Tensor": lambda values: torch.repeat_interleave(values.long()),
    "aten::_to_sparse": lambda values: values.to_sparse(),
}

OTHER_SPELLINGS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "to(device=)": ("to('cpu')", lambda values: values.to(device="cpu")),
    "if": ("__bool__", lambda values: 1 if values[0] else 2),
    "an f-string": ("item", lambda values: f"{values[0]:.3f}"),
    "str": ("__repr__", lambda values: str(values)),
    "in": ("item", lambda values: 2.0 in values),
    "is_nonzero": ("aten::_local_scalar_dense", lambda values: torch.is_nonzero(values[0])),
    "where of one argument": ("aten::nonzero", lambda values: torch.where(values > 1)),
    "a parameter": ("item", lambda values: nn.Parameter(values[:1]).item()),
    "cuda.synchronize": ("cuda.synchronize", lambda values: torch.cuda.synchronize()),
}

HARMLESS: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda values: (values * 2 + 1).sum() / values.numel(),
    "shapes": lambda values: (len(values), values.shape, values.dim(), values.dtype),
    "choosing by number": lambda values: values[torch.zeros(2, dtype=torch.long, device=values.device)],
    "filling a mask": lambda values: values.clone().masked_fill_(values > 1, 0.0),
    "where of three arguments": lambda values: torch.where(values > 1, values, -values),
    "another type": lambda values: values.to(torch.float64),
    "the same device": lambda values: values.to(values.device),
    "a copy": lambda values: copy.deepcopy(values),
    "a gradient": lambda values: values.detach().requires_grad_().square().sum().backward(),
    "stacking scalars": lambda values: torch.stack([values[0], values[1]]).mean(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", READS)
def test_a_read_is_caught_and_named(name: str, device: str) -> None:
    values = torch.tensor([1.0, 2.0, 3.0], device=device)
    with pytest.raises(DeviceReadError) as caught, no_sync(device):
        READS[name](values)
    assert str(caught.value) == f"{name} reads the device"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spelling", OTHER_SPELLINGS)
def test_other_spellings_of_a_read_are_caught(spelling: str, device: str) -> None:
    name, read = OTHER_SPELLINGS[spelling]
    values = torch.tensor([1.0, 2.0, 3.0], device=device)
    with pytest.raises(DeviceReadError) as caught, no_sync(device):
        read(values)
    assert str(caught.value) == f"{name} reads the device"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_stays_on_the_device_passes(name: str, device: str) -> None:
    values = torch.tensor([1.0, 2.0, 3.0], device=device)
    with no_sync(device):
        HARMLESS[name](values)


def test_everything_can_be_read_again_afterwards() -> None:
    methods = dict(vars(Tensor))
    with pytest.raises(DeviceReadError), no_sync():
        torch.ones(1).item()
    assert dict(vars(Tensor)) == methods
    assert (torch.ones(1).item(), torch.ones(1).tolist(), repr(torch.ones(1))) == (1.0, [1.0], "tensor([1.])")


def test_guards_can_be_nested() -> None:
    with no_sync():
        with no_sync():
            torch.ones(1)
        with pytest.raises(DeviceReadError):
            torch.ones(1).item()


def test_an_exempt_tensor_may_be_read_and_another_may_not() -> None:
    host, other = torch.tensor(3.0), torch.tensor(4.0)
    with no_sync(exempt=lambda: [host]):
        assert (host.item(), float(host), host.tolist()) == (3.0, 3.0, 3.0)
        with pytest.raises(DeviceReadError, match="item"):
            other.item()


def test_the_counters_of_adam_are_read_each_step_unless_exempt() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.grad = torch.ones(2)
    with pytest.raises(DeviceReadError, match="item"), no_sync():
        optimizer.step()
    with no_sync(exempt=host_counters(optimizer)):
        optimizer.step()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_the_host_may_be_read_and_cuda_reports_what_is_left() -> None:
    values = torch.ones(3, device="cuda")
    with no_sync("cuda"):
        assert torch.ones(1).item() == 1.0
        with pytest.raises(DeviceReadError, match="to"):
            values.to(torch.device("cpu"))
        with pytest.raises(RuntimeError, match="synchronizing"):
            torch.empty(3).copy_(values)
    assert torch.cuda.get_sync_debug_mode() == 0
