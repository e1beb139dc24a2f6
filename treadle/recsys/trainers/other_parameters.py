"""What belongs to a model beside its weights, as plain data and tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treadle.recsys.optional import scipy_sparse

KIND = "treadle_kind"
"""The key that tells what a dict stands for."""


def encoded(value: Any) -> Any:
    """Return an attribute as tensors and plain data: arrays, and sparse matrices of torch and SciPy, as their parts.

    >>> encoded(np.array([1.5]))["data"].tolist()
    [1.5]
    """
    if isinstance(value, np.ndarray):
        return {KIND: "array", "data": torch.from_numpy(np.array(value))}
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        entries: Any = value.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        layout = "csr" if value.layout is torch.sparse_csr else "coo"
        parts = {"indices": entries.indices(), "values": entries.values(), "shape": list(value.shape)}
        return {KIND: "sparse", "layout": layout, **parts}
    if hasattr(value, "tocoo"):
        entries = value.tocoo()
        indices = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
        data = torch.from_numpy(np.array(entries.data))
        return {KIND: "scipy", "layout": value.format, "indices": indices, "values": data, "shape": list(value.shape)}
    return value


def decoded(value: Any, device: torch.device) -> Any:
    """Return what `encoded` was given; tensors on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    kind = value.get(KIND) if isinstance(value, dict) else None
    if kind == "array":
        return value["data"].numpy()
    if kind == "sparse":
        made = torch.sparse_coo_tensor(value["indices"], value["values"], value["shape"], check_invariants=False)
        made = made.coalesce().to(device)
        return made.to_sparse_csr() if value["layout"] == "csr" else made
    if kind == "scipy":
        entries = (value["values"].numpy(), tuple(value["indices"].numpy()))
        return scipy_sparse().coo_matrix(entries, shape=tuple(value["shape"])).asformat(value["layout"])
    return value


class OtherParameters:
    """The attributes that `model.other_parameter()` names; modules among them are part of the weights anyway.

    Args:
        model: The model.
        device: Where its tensors are.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device = model, device

    def state_dict(self) -> dict[str, Any]:
        """Return them as plain data and tensors."""
        own = self._model.other_parameter() if hasattr(self._model, "other_parameter") else {}
        return {name: encoded(value) for name, value in (own or {}).items() if not isinstance(value, nn.Module)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        if state:
            self._model.load_other_parameter({name: decoded(value, self._device) for name, value in state.items()})
