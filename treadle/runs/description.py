"""What a run is made of beyond shapes: loss, modules, seed and rows of data, to be told of where it changes.

None of it keeps a run from going on; all of it decides what comes out.
"""

import functools
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

# What an object keeps, and what its parts keep: found by its attributes


DEPTH = 3
"""How many objects deep things are looked for: in a trainer, in its parts, and in theirs."""
ENTRIES = 100
"""How many entries of a list or dict are looked at: longer ones are data."""


def kept_by(keeper: Any, depth: int = DEPTH) -> list[tuple[str, Any]]:
    """Return whatever `keeper` and its parts have as attributes, or in lists and dicts, with its name; its own first.

    >>> from types import SimpleNamespace
    >>> [name for name, _ in kept_by(SimpleNamespace(several={"one": 1}, part=SimpleNamespace(other=2)))]
    ['several', "several['one']", 'part', 'part.other']
    """
    # Every start of a run walks through hundreds of objects: a call for each of them is what would take the time.
    kept: list[tuple[str, Any]] = []
    layer: list[tuple[str, Any]] = [("", keeper)]
    known = {id(keeper)}
    for _ in range(depth):
        found = [one for place, holder in layer for one in _held_in(place, holder)]
        kept += found
        layer = []
        for name, value in found:
            holds = hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, Tensor))
            if holds and id(value) not in known:
                known.add(id(value))
                layer.append((name, value))
    return kept


def name_within(keeper: Any, wanted: Any, depth: int = DEPTH) -> str | None:
    """Return the name by which `keeper` or a part of it keeps `wanted`, the shortest; None if it does not."""
    return next((name for name, value in kept_by(keeper, depth) if value is wanted), None)


def _held_in(place: str, holder: Any) -> list[tuple[str, Any]]:
    try:
        attributes = dict(vars(holder))
    except (TypeError, ReferenceError):
        return []
    held: list[tuple[str, Any]] = []
    for name, value in attributes.items():
        path = f"{place}.{name}" if place else name
        held.append((path, value))
        entries: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            entries = value.items()
        elif isinstance(value, (list, tuple)):
            entries = enumerate(value)
        for key, entry in list(islice(entries, ENTRIES)):
            held.append((f"{path}[{key!r}]", entry))
    return held


CHECKED_BYTES = 16 * 2**20
"""Of a larger column of data, rows spread over it are looked at, of together so many bytes."""
COMPUTING = ("forward", "training_step", "calculate_loss")
"""The methods in which modules compute outputs and losses."""
MOST_ITEMS = 100_000
"""So many items of a list of samples are looked at."""


def describe_run(
    model: nn.Module,
    loss: Any,
    *,
    seed: int | None,
    data: Mapping[str, Any],
    verbs: Iterable[Callable[..., Any]] = (),
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return, as plain data, what a run is made of.

    Args:
        model: The model.
        loss: The loss function; None if there is none.
        seed: The seed that the trainer was given.
        data: Data sets by what they are for.
        verbs: Methods that may be the user's, such as the one that calculates the loss.
        settings: What else decides what comes out, by name.
    """
    own = {verb.__qualname__: code_checksum(verb) for verb in verbs if not _is_ours(verb)}
    return {
        "loss": describe_loss(loss),
        "modules": describe_modules(model),
        "seed": seed,
        "data": {name: rows_checksum(dataset) for name, dataset in data.items()},
        "code": {**own, **_forwards(model)},
        "settings": {**(settings or {}), "weights that learn": _learning(model), **_attributes(model)},
    }


def count_parameters(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> tuple[int, int]:
    """Return how many numbers of a model its optimizers learn, and how many stay as they are.

    Those of a lazy layer that has seen no batch do not count yet.

    >>> model = nn.Linear(3, 2)
    >>> count_parameters(model, [torch.optim.SGD([model.weight], lr=0.1)])
    (6, 2)
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    learning = {id(one) for group in groups for one in group["params"] if one.requires_grad}
    # By tensor: weights that two layers share are one parameter.
    own = {id(one): one for one in model.parameters() if not is_lazy(one)}
    trained = sum(one.numel() for key, one in own.items() if key in learning)
    return trained, sum(one.numel() for one in own.values()) - trained


def describe_loss(loss: Any) -> str | None:
    """Return what a loss function is, with the settings that a module's own text leaves out.

    >>> describe_loss(nn.CrossEntropyLoss(label_smoothing=0.1))
    "CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1, reduction='mean')"
    >>> describe_loss(nn.functional.mse_loss)
    'mse_loss'
    """
    if loss is None:
        return None
    if isinstance(loss, functools.partial):
        given = [*map(repr, loss.args), *(f"{name}={value!r}" for name, value in sorted(loss.keywords.items()))]
        return f"{describe_loss(loss.func)} with {', '.join(given)}" if given else describe_loss(loss.func)
    if isinstance(loss, nn.Module):
        plain = {name: value for name, value in sorted(vars(loss).items()) if _is_setting(name, value)}
        tensors = {name: rows_checksum(tensor) for name, tensor in [*loss.named_buffers(), *loss.named_parameters()]}
        settings = [f"{name}={value!r}" for name, value in {**plain, **tensors}.items()]
        return f"{type(loss).__qualname__}({', '.join(settings)})"
    name = str(getattr(loss, "__qualname__", type(loss).__qualname__))
    return f"{name} {code_checksum(loss)}" if "<lambda>" in name else name


def _is_setting(name: str, value: Any) -> bool:
    return name != "training" and not name.startswith("_") and isinstance(value, (bool, int, float, str))


def describe_modules(model: nn.Module) -> dict[str, str]:
    """Return every module that holds no other, in the words in which it shows itself.

    >>> describe_modules(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    {'0': 'Linear(in_features=2, out_features=1, bias=True)', '1': 'ReLU()'}
    """
    leaves = [(name, module) for name, module in model.named_modules() if next(module.children(), None) is None]
    return {name.replace("_orig_mod.", "").replace("_orig_mod", ""): _shown(module) for name, module in leaves}


def _attributes(model: nn.Module) -> dict[str, Any]:
    """Return the plain attributes of every module that is not torch's: what its author calculates with."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if type(module).__module__.partition(".")[0] != "torch":
            given = {key: value for key, value in sorted(vars(module).items()) if _is_setting(key, value)}
            found |= {f"{name}.{key}".removeprefix("."): value for key, value in given.items()}
    return found


def _learning(model: nn.Module) -> str:
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return f"{len(learning)} ({zlib.crc32(' '.join(sorted(learning)).encode()):08x})"


def _shown(module: nn.Module) -> str:
    kind = type(module).__name__.removeprefix("FSDP")
    try:
        return f"{kind}({module.extra_repr()})"
    except Exception:  # what a module says of itself is no reason to stop
        return kind


def _forwards(model: nn.Module) -> dict[str, str | None]:
    """Return a checksum of how every class of modules computes that is neither torch's nor Treadle's."""
    kinds = {type(module) for module in model.modules()}
    verbs: list[Any] = [getattr(kind, name) for kind in kinds for name in COMPUTING if hasattr(kind, name)]
    named = {verb.__qualname__: verb for verb in verbs if hasattr(verb, "__qualname__") and not _is_ours(verb)}
    return {name: code_checksum(verb) for name, verb in sorted(named.items())}


def _is_ours(verb: Any) -> bool:
    return str(getattr(verb, "__module__", "")).partition(".")[0] in ("torch", "treadle")


def code_checksum(function: Any) -> str | None:
    """Return a checksum of what a function does; None if Python does not know that, as of one in C."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return None if code is None else f"{_code_checksum(code, 0):08x}"


def _code_checksum(code: CodeType, value: int) -> int:
    value = zlib.crc32(code.co_code + repr(code.co_names).encode(), value)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            value = _code_checksum(constant, value)
        elif isinstance(constant, (bool, int, float, str, bytes, type(None))):
            value = zlib.crc32(repr(constant).encode(), value)
    return value


def rows_checksum(dataset: Any) -> str | None:
    """Return a checksum of the rows of a data set; None if they cannot be seen without drawing samples.

    Seen are tensors, arrays, lists of them and of plain values, and the attributes of a data set that are such. One
    with a method `fingerprint` says itself what it is known by: its arrays may be mapped from files, and opened later.

    >>> rows_checksum([1, 2]) == rows_checksum([1, 2]), rows_checksum([1, 2]) == rows_checksum([2, 1])
    (True, False)
    """
    try:
        own = getattr(dataset, "fingerprint", None)
        known = own() if callable(own) else None
        value = zlib.crc32(repr(known).encode()) if known else _rows(dataset, 0, 4)
    except Exception:  # a look at data that somebody made is no reason to stop
        return None
    return None if value is None else f"{value:08x}"


def _rows(value: Any, checksum: int, depth: int) -> int | None:
    """Return a checksum of a value that goes on from another; None if there is nothing in it that can be seen."""
    if isinstance(value, (Tensor, np.ndarray)):
        return _column(value, checksum)
    if isinstance(value, (bool, int, float, str, bytes, np.generic, type(None))):
        return zlib.crc32(repr(value).encode(), checksum)
    if isinstance(value, range):
        return zlib.crc32(repr(value).encode(), checksum)
    if depth == 0:
        return None
    if isinstance(value, (list, tuple)):
        return _sequence(value, checksum, depth)
    inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    seen = [(str(name), item) for name, item in inside.items() if _is_data(item)]
    for name, item in seen:
        found = _rows(item, zlib.crc32(name.encode(), checksum), depth - 1)
        checksum = checksum if found is None else found
    return checksum if seen else None


def _is_data(value: Any) -> bool:
    """Whether something that a data set holds may be its rows, or another data set that it is made from."""
    return isinstance(value, (Tensor, np.ndarray, list, tuple, dict)) or (
        hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, (str, bytes))
    )


def _sequence(items: Any, checksum: int, depth: int) -> int | None:
    step = max(1, len(items) // MOST_ITEMS)
    for item in items[::step]:
        found = _rows(item, checksum, depth - 1)
        if found is None:
            return None
        checksum = found
    return zlib.crc32(str(len(items)).encode(), checksum)


def _column(column: Any, checksum: int) -> int | None:
    """Return a checksum of a tensor or an array: of all of it, or of rows spread over it if it is large."""
    if isinstance(column, np.ndarray):
        if column.dtype.hasobject:
            return None
        flat = np.ascontiguousarray(column).reshape(-1) if column.ndim == 0 else np.ascontiguousarray(column)
        column = torch.from_numpy(flat.view(np.uint8).reshape(len(flat), -1))
    if column.layout is not torch.strided or column.is_meta:
        return None
    column = column.detach()
    if column.nbytes > CHECKED_BYTES and column.dim():
        wanted = max(1, min(len(column), CHECKED_BYTES * len(column) // column.nbytes))
        rows = torch.arange(wanted) * (len(column) - 1) // max(wanted - 1, 1)
        column = column[rows.to(column.device)]
    column = column.cpu().resolve_conj().contiguous()
    kind = zlib.crc32(f"{column.dtype} {tuple(column.shape)}".encode(), checksum)
    return zlib.crc32(column.reshape(-1).view(torch.uint8).numpy().data, kind) if column.numel() else kind


# What changed ---------------------------------------------------------------------------------------------


def describe_changes(saved: Mapping[str, Any], present: Mapping[str, Any], *, same_python: bool) -> list[str]:
    """Return a line for each thing that is another one than when a checkpoint was written.

    Args:
        saved: What `describe_run` returned then; parts may be missing, as in checkpoints of older versions.
        present: What it returns now.
        same_python: Whether it is the same Python, so that the code of functions can be compared.
    """
    lines = []
    if "loss" in saved and saved["loss"] != present["loss"]:
        lines.append(f"the loss function was {saved['loss']} and is {present['loss']} now; the run continues with that")
    if "seed" in saved and saved["seed"] != present["seed"]:
        lines.append(
            f"the seed was {saved['seed']} and is {present['seed']} now; the run continues with the random numbers of "
            "the checkpoint, so that the new seed has no effect"
        )
    lines += _changed_modules(_mapping(saved, "modules"), present["modules"])
    for name, value in _mapping(saved, "settings").items():
        if name in present["settings"] and not _is_same(present["settings"][name], value):
            now = present["settings"][name]
            lines.append(f"{name}: {value} when the run was saved, {now} now; it continues with that")
    for name, rows in _mapping(saved, "data").items():
        if rows is not None and present["data"].get(name) not in (None, rows):
            lines.append(
                f"the rows of the {name} data are not those of when the run was saved; it continues with these"
            )
    code = _mapping(saved, "code") if same_python else {}
    changed = [name for name, value in code.items() if present["code"].get(name, value) != value]
    if changed:
        lines.append(
            f"the code of {', '.join(sorted(changed))} is not that of when the run was saved; it continues with this"
        )
    return lines


def _is_same(present: Any, saved: Any) -> bool:
    # nan is no other value than nan.
    return bool(present == saved) or repr(present) == repr(saved)


def _mapping(saved: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = saved.get(name)
    return found if isinstance(found, dict) else {}


def _changed_modules(saved: dict[str, Any], present: dict[str, str]) -> list[str]:
    if not saved:
        return []
    names = [name for name in {**saved, **present} if saved.get(name) != present.get(name)]
    if not names:
        return []
    first = names[0]
    more = f" (and {len(names) - 1} more modules differ)" if len(names) > 1 else ""
    was, now = saved.get(first, "not there"), present.get(first, "not there")
    where = f"the module {first!r}" if first else "the model"
    return [f"{where} was {was} and is {now} now{more}; the run continues with the new one"]
