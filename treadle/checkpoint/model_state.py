"""The weights and buffers of a model under the names that they have without `torch.compile`."""

from typing import Any

from torch import nn

from treadle.errors import CheckpointError
from treadle.parallel import state_dict as copying

COMPILED_PREFIX = "_orig_mod."


class ModelState:
    """A model's weights and buffers under the names they have without `torch.compile`."""

    reads_pieces = True

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Return weights and buffers, or the pieces of them that this process holds."""
        return without_prefix(copying.local_state_dict(self._model))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take weights and buffers back."""
        load_plain_state_dict(self._model, state, where="the training state")


def plain_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the weights and buffers of `model`, whole ones, without the prefix of `torch.compile`."""
    return without_prefix(copying.gather_state(model))


def without_prefix(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state under the names that it has without `torch.compile`."""
    return {name.replace(COMPILED_PREFIX, ""): value for name, value in state.items()}


def load_plain_state_dict(model: nn.Module, state: dict[str, Any], *, where: str) -> None:
    """Load weights and buffers into `model`, compiled or not.

    Raises:
        CheckpointError: Names or shapes differ; the message lists them.
    """
    if copying.load_state(model, state, where=where):
        return
    actual = {name.replace(COMPILED_PREFIX, ""): name for name in model.state_dict()}
    renamed = _with_tied(model, {actual.get(name, name): value for name, value in state.items()})
    try:
        model.load_state_dict(renamed)
    except (RuntimeError, AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{where} does not fit the model: {error}") from error


def _with_tied(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with every name of a weight that has several: files of others often hold only one of them."""
    missing = {name: tensor for name, tensor in model.state_dict().items() if name not in state}
    if not missing:
        return state
    given = {id(weight): name for name, weight in model.named_parameters(remove_duplicate=False) if name in state}
    weights = dict(model.named_parameters(remove_duplicate=False))
    tied = {name: given.get(id(weights.get(name))) for name in missing if name in weights}
    return {**state, **{name: state[other] for name, other in tied.items() if other is not None}}
