"""Models that are given packed rows: whether they keep documents apart, and what models of transformers need for it."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from treadle.errors import ConfigError, DataError, TreadleError
from treadle.ops.document_attention import document_ids, document_mask, document_offsets
from treadle.ops.losses import model_inputs
from treadle.runs.pretrained import base_model

TOKENS = ("input_ids", "tokens")
POSITIONS = ("position_ids", "positions")
TOLERANCE = 1e-5
"""By how much, of what the logits of the changed documents moved, those of others may move."""
PROBE = (3, 5, 3)
"""The lengths of the documents by which a model is tried."""


def check_no_leak(model: nn.Module, batch: Mapping[str, Any], *, tolerance: float = TOLERANCE) -> None:
    """Make sure that no document of a packed batch has a part in the predictions for another one.

    Every other document is given other tokens, and the logits of those between them must stay where they were; then the
    other way round. The model is run three times without a gradient, in evaluation mode.

    Args:
        model: The model; it returns logits, or an object or a dict with them.
        batch: A batch of packed rows.
        tolerance: By how much the logits may move, as a share of how far those of the changed documents do. A model
            that shares its work out among all tokens, as a mixture of experts may, does not give the same bits twice.

    Raises:
        DataError: The batch has no two documents in a row, or no tokens or positions.
        ConfigError: A document leaks into another one.
    """
    inputs = model_inputs(batch)[1]
    tokens, positions = _named(inputs, TOKENS), _named(inputs, POSITIONS)
    ids = document_ids(inputs[positions])
    if not int(ids.max()):
        raise DataError("no row of the batch holds two documents, so none can leak; pass a packed batch")
    with _evaluating(model):
        before = _logits(model, inputs)
        for odd in (0, 1):
            changed = ids % 2 == odd
            after = _logits(model, {**inputs, tokens: _others(inputs[tokens], changed)})
            moved = (after - before).abs().amax(-1)
            _judge(model, moved, changed, ids, tolerance)


def _named(inputs: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((name for name in names if isinstance(inputs.get(name), Tensor)), None)
    if found is None:
        raise DataError(f"a packed batch has tensors called {' or '.join(names)}, but this one has {sorted(inputs)}")
    return found


def _others(tokens: Tensor, changed: Tensor) -> Tensor:
    """Return tokens of which the `changed` ones are others, from the same range."""
    low, high = tokens.min(), tokens.max()
    if bool(low == high):
        raise DataError("all tokens of the batch are the same, so no document can be changed; pass another batch")
    mirrored = low + high - tokens
    return torch.where(changed, torch.where(mirrored == tokens, low, mirrored), tokens)


def _judge(model: nn.Module, moved: Tensor, changed: Tensor, ids: Tensor, tolerance: float) -> None:
    bound = tolerance * moved[changed].max()
    leaks = (moved > bound) & ~changed
    if not bool(leaks.any()):
        return
    row, place = leaks.nonzero()[0].tolist()
    raise ConfigError(
        f"{_name(model)} mixes documents that share a row: the logits of document {int(ids[row, place])} in row {row} "
        f"moved by {float(moved[row, place]):.2g} when its neighbours were changed, and theirs by "
        f"{float(moved[changed].max()):.2g}; {_remedy(model)}"
    )


def _name(model: nn.Module) -> str:
    implementation = _attention(model)
    return type(base_model(model)).__name__ + (f" with {implementation} attention" if implementation else "")


def _attention(model: nn.Module) -> str | None:
    return getattr(getattr(base_model(model), "config", None), "_attn_implementation", None)


def _remedy(model: nn.Module) -> str:
    if _attention(model) is None:
        return "attend within documents only, as treadle.ops.document_attention.attend does"
    if not any(isinstance(hook, _PackedInputs) for hook in model._forward_pre_hooks.values()):
        return "call treadle.ops.packed_models.prepare_for_packing with it"
    if _attention(model) == "eager":
        return "load it with attn_implementation='sdpa', or train it on padded rows"
    return "train it on padded rows"


def _logits(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    outputs = model(**inputs)
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if not isinstance(found, Tensor):
        raise ConfigError(
            f"{_name(model)} returned a {type(outputs).__name__} without logits, so leaks cannot be seen; have it "
            "return them where it is given no targets"
        )
    return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was in training.items():
            module.training = was


# Models of transformers


def prepare_for_packing(model: nn.Module, max_documents: int) -> RemovableHandle:
    """Have a model of transformers keep the documents of packed rows apart, and make sure that it does.

    From then on what it is given with `position_ids` and without an `attention_mask` is taken as packed rows. These
    models find documents by their positions, but not while they fill a cache, which is therefore left out; with flash
    attention only in a batch of one row, so that they are told where documents begin; and they read the device for it
    in each step, so that they are given a mask where a plain one is right.

    Then the model is tried on three short documents, as `check_no_leak` does, and a document must have the same logits
    wherever in a row it stands.

    Args:
        model: The model, as it is before training: on its device, with its attention chosen.
        max_documents: The most documents in a row, such as `PackedDocuments.max_documents`.

    Returns:
        What takes it back: its `remove()`.

    Raises:
        ConfigError: The model mixes documents, or does not go by positions.
    """
    handle = model.register_forward_pre_hook(_PackedInputs(model, max_documents), with_kwargs=True)
    try:
        _try_out(model)
    except BaseException:
        handle.remove()
        raise
    return handle


class _PackedInputs:
    """Goes before the `forward` of a model, and completes what it is given.

    Args:
        model: The model.
        max_documents: The most documents in a row.
    """

    def __init__(self, model: nn.Module, max_documents: int) -> None:
        implementation = _attention(model)
        self._flash = "flash" in str(implementation)
        self._masked = implementation == "sdpa" and _takes_mask(model)
        self._max_documents = max_documents
        taken = inspect.signature(base_model(model).forward).parameters.values()
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken)
        self._caches = takes_any or any(one.name == "use_cache" for one in taken)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        positions = kwargs.get("position_ids")
        if positions is None or kwargs.get("attention_mask") is not None:
            return None
        added: dict[str, Any] = {"use_cache": False} if self._caches else {}
        if self._masked:
            added["attention_mask"] = document_mask(positions)
        if self._flash:
            offsets, longest = document_offsets(positions, self._max_documents), positions.shape[-1]
            added |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
            added |= {"max_length_q": longest, "max_length_k": longest}
        return args, {**kwargs, **added}


def _takes_mask(model: nn.Module) -> bool:
    """Whether a mask of all that came before is what a model makes for a single document; it makes its own if not."""
    if not _is_fully_causal(base_model(model).config):
        return False
    row = _row((sum(PROBE),))
    inputs = {name: part[None].to(_device(model)) for name, part in row.items()}
    mask = document_mask(inputs["position_ids"])
    try:
        with _evaluating(model):
            own, masked = _logits(model, inputs), _logits(model, {**inputs, "attention_mask": mask})
    except (TypeError, ValueError, RuntimeError):
        return False
    return _are_close(own, masked, model)


def _is_fully_causal(config: Any) -> bool:
    """Whether nothing in a config speaks of layers that do not look at all that came before."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds) == {"full_attention"}
    names = [name for name in config.to_dict() if any(word in name for word in ("window", "chunk", "local"))]
    return not any(getattr(config, name, None) for name in names)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _are_close(one: Tensor, other: Tensor, model: nn.Module) -> bool:
    """Whether logits are the same numbers, though not summed up in the same order."""
    epsilon = torch.finfo(next(model.parameters()).dtype).eps
    return bool((one - other).abs().max() <= 1e3 * epsilon * one.abs().max())


def _try_out(model: nn.Module) -> None:
    """Try a model on short documents.

    Raises:
        ConfigError: It mixes them, or where they stand matters.
    """
    rows = [_row(PROBE), _row(PROBE[1:], first=PROBE[0])]
    batch = {name: torch.stack([row[name] for row in rows]).to(_device(model)) for name in rows[0]}
    try:
        check_no_leak(model, batch)
        with _evaluating(model):
            logits = _logits(model, batch)
    except TreadleError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{_name(model)} takes no packed rows of input_ids and position_ids: {error}; train it on padded ones"
        ) from error
    begin, end = PROBE[0], sum(PROBE)
    behind, in_front = logits[0, begin:end], logits[1, : end - begin]
    if not _are_close(behind, in_front, model):
        raise ConfigError(
            f"{_name(model)} predicts something else for a document behind another one than for the same in front: it "
            "does not go by position_ids; train it on padded rows"
        )


def _row(lengths: tuple[int, ...], first: int = 0) -> dict[str, Tensor]:
    """Return a row of documents, and what is left over of the longest row."""
    left = sum(PROBE) - sum(lengths)
    positions = torch.cat([torch.arange(length) for length in (*lengths, left) if length])
    tokens = torch.arange(sum(PROBE)).roll(-first) * 3 % 11 + 3
    return {"input_ids": tokens, "position_ids": positions}
