"""Checkpoint folders of the Trainer of transformers: weights, optimizer and schedule, with nothing in them run."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.checkpoint.importers.weights import import_torch, import_weights
from treadle.errors import CheckpointError

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
INDEX = ".index.json"
OPTIMIZER, SCHEDULER, STATE = "optimizer.pt", "scheduler.pt", "trainer_state.json"
NOT_TAKEN = {
    "rng_state*.pth": "the state of random generators",
    "training_args.bin": "the arguments of the Trainer, a pickle of its own class",
    "scaler.pt": "the scale of the loss in fp16",
    "global_step*": "the state of DeepSpeed",
    "optimizer_*": "the sharded state of an optimizer",
    "pytorch_model_fsdp*": "the shards of FSDP",
}
"""What such a folder may hold beside these, and what that is."""
WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""The names, in small letters, of weights that the Trainer of transformers puts into a group without weight decay."""


@dataclass
class TrainerFolder:
    """What a checkpoint folder holds.

    Attributes:
        weights: The weights of the model, or of its adapter, by name.
        adapter: Whether they are those of an adapter alone.
        optimizer: The state of the optimizer, as torch has it; None if there is none that can be read.
        scheduler: The state of the schedule; None likewise.
        facts: Plain data beside them: step, epoch, the best metric.
        passed_over: What was left, in words.
    """

    weights: dict[str, Tensor]
    adapter: bool
    optimizer: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)


def is_trainer_folder(path: Path) -> bool:
    """Whether a folder holds weights as transformers and PEFT write them."""
    names = [*WEIGHTS, *ADAPTERS, *(f"{name}{INDEX}" for name in WEIGHTS)]
    return path.is_dir() and any((path / name).is_file() for name in names)


def read_trainer_folder(path: Path) -> TrainerFolder:
    """Return what a checkpoint folder of transformers' Trainer holds, or a folder that `save_pretrained` wrote.

    Raises:
        CheckpointError: A file is damaged, or the weights are not whole.
    """
    weights, adapter = _read_weights(path)
    found = TrainerFolder(weights, adapter, facts=_read_facts(path / STATE))
    found.optimizer = _read_state(path / OPTIMIZER, found)
    found.scheduler = _read_state(path / SCHEDULER, found)
    for pattern, what in NOT_TAKEN.items():
        found.passed_over += [f"{one.name} ({what})" for one in sorted(path.glob(pattern))]
    return found


def _read_weights(path: Path) -> tuple[dict[str, Tensor], bool]:
    for name in (*WEIGHTS, *ADAPTERS):
        if (path / name).is_file():
            return import_weights(path / name), name in ADAPTERS
        index = path / f"{name}{INDEX}"
        if index.is_file():
            return _read_shards(index), False
    raise CheckpointError(f"{path} holds none of {', '.join((*WEIGHTS, *ADAPTERS))}")


def _read_shards(index: Path) -> dict[str, Tensor]:
    where = _read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(one, str) and Path(one).name == one for one in where.values()):
        raise CheckpointError(f"{index} does not say in which file beside it each weight is")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(where.values())):
        weights |= import_weights(index.with_name(name))
    missing = sorted(set(where) - set(weights))
    if missing:
        raise CheckpointError(f"{index} names weights that its files do not hold: {', '.join(missing[:5])}")
    return weights


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def _read_facts(path: Path) -> dict[str, Any]:
    """Return the plain numbers of the Trainer's state, by the names that they have here."""
    state = _read_json(path) if path.is_file() else {}
    names = {"global_step": "step", "epoch": "epoch", "best_metric": "best_metric"}
    return {ours: state[name] for name, ours in names.items() if isinstance(state.get(name), (int, float))}


def _read_state(path: Path, found: TrainerFolder) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        return import_torch(path)
    except CheckpointError as error:
        found.passed_over.append(f"{path.name} ({error})")
        return None


# Fitted to a model and an optimizer that are there ---------------------------------------------------------------


def fitted_weights(found: TrainerFolder, model: nn.Module, where: str) -> dict[str, Tensor]:
    """Return weights under the names that a model has for them; beside those of an adapter, its own.

    Raises:
        CheckpointError: The model has no such adapter.
    """
    if not found.adapter:
        return found.weights
    own = model.state_dict()
    adapters = list(getattr(model, "peft_config", None) or {})
    if len(adapters) != 1:
        raise CheckpointError(
            f"{where} holds the weights of an adapter, and the model has {len(adapters)} adapters; make it with "
            "PeftModel.from_pretrained(model, folder, is_trainable=True), which loads them"
        )
    names = {_name_in_file(name, adapters[0]): name for name in own}
    unknown = sorted(set(found.weights) - set(names))
    if unknown:
        raise CheckpointError(
            f"{where} holds weights of an adapter that the model does not have: {', '.join(unknown[:5])}; make it with "
            "PeftModel.from_pretrained(model, folder, is_trainable=True), which loads them"
        )
    return {**own, **{names[name]: tensor for name, tensor in found.weights.items()}}


def _name_in_file(name: str, adapter: str) -> str:
    """Return the name that a weight of an adapter has in the files of PEFT.

    >>> _name_in_file("base_model.model.head.lora_A.default.weight", "default")
    'base_model.model.head.lora_A.weight'
    """
    return name.replace(f".modules_to_save.{adapter}.", ".").replace(f".{adapter}.", ".").removesuffix(f".{adapter}")


def fitted_optimizer(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer, where: str) -> dict[str, Any]:
    """Return the state of the Trainer's optimizer for one whose weights may be grouped otherwise.

    The Trainer of transformers has the weights with decay before those without; which is which follows from their
    names. Where this optimizer has other groups, its own arguments stay.

    Raises:
        CheckpointError: It is of other weights.
    """
    groups, own = state.get("param_groups"), optimizer.state_dict()
    if not isinstance(groups, list) or not isinstance(state.get("state"), dict):
        raise CheckpointError(f"{where} holds no state of an optimizer")
    order = _order_of_transformers(model)
    mine = [weight for group in optimizer.param_groups for weight in group["params"]]
    place = {id(weight): number for number, weight in enumerate(order)}
    if len(mine) != len(order) or any(id(weight) not in place for weight in mine):
        raise CheckpointError(
            f"{where} is of an optimizer of every weight that is trained, {len(order)} of them, and this one has "
            f"{len(mine)}; give it the same, or pass load_optimizer=False"
        )
    entries = [state["state"].get(place[id(weight)]) for weight in mine]
    for weight, entry in zip(mine, entries, strict=True):
        _check_shapes(entry, weight, where)
    found = {number: entry for number, entry in enumerate(entries) if entry is not None}
    in_order = [place[id(weight)] for weight in mine] == list(range(len(order)))
    same = in_order and [len(one["params"]) for one in groups] == [len(one["params"]) for one in own["param_groups"]]
    return {"state": found, "param_groups": groups if same else own["param_groups"]}


def _order_of_transformers(model: nn.Module) -> list[nn.Parameter]:
    norms = [f"{name}." for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]

    def decays(name: str) -> bool:
        return not WITHOUT_DECAY.search(name.lower()) and not name.startswith(tuple(norms))

    return [weight for name, weight in trained if decays(name)] + [w for name, w in trained if not decays(name)]


def _check_shapes(entry: Any, weight: Tensor, where: str) -> None:
    for name, value in (entry or {}).items():
        if isinstance(value, Tensor) and value.dim() and value.shape != weight.shape:
            raise CheckpointError(
                f"{where} has {name} of shape {tuple(value.shape)} for a weight of shape {tuple(weight.shape)}; it is "
                "of another model, or of an optimizer with other groups"
            )
