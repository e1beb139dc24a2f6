"""Adapters of PEFT: put onto a model again from what a run keeps, and written as the folders of PEFT."""

import copy
import warnings
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, importing
from treadle.runs.pretrained import ADAPTERS

FILE = "adapter_config.json"
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Ways to begin a LoRA by which the weights below it are others than those of the model it was put on."""


def has_adapters(files: Path) -> bool:
    """Whether what a run keeps of its model speaks of adapters."""
    return any((files / ADAPTERS).glob(f"*/{FILE}"))


def add_adapters(model: Any, folder: Path) -> Any:
    """Return a model with the adapters whose configs lie in a folder; their weights are still to be loaded."""
    with importing("peft", extra="hf", user="a model with adapters"):
        import peft
    with warnings.catch_warnings():
        # PEFT calls names that the newest transformers is about to drop.
        warnings.simplefilter("ignore", FutureWarning)
        return _adapted(peft, model, folder)


def _adapted(peft: Any, model: Any, folder: Path) -> Any:
    adapted: Any = None
    for place in sorted(path.parent for path in folder.glob(f"*/{FILE}")):
        kept = peft.PeftConfig.from_pretrained(str(place))
        plain = _without_start(kept)
        if adapted is None:
            adapted = peft.get_peft_model(model, plain, adapter_name=place.name)
        else:
            adapted.add_adapter(place.name, plain)
        # As the program had it: where the model came from, and how the adapter began.
        adapted.peft_config[place.name] = kept
    return adapted


def save_adapters(model: Any, folder: Path) -> None:
    """Write the adapters of a model as `PeftModel.save_pretrained` does.

    Raises:
        ConfigError: They are of use only with other weights below them than those of the model they were put on.
    """
    for name, config in model.peft_config.items():
        start = str(getattr(config, "init_lora_weights", "")).lower()
        if start.startswith(CHANGES_BASE):
            raise ConfigError(
                f"the adapter {name!r} began with init_lora_weights={config.init_lora_weights!r}, which changed the "
                "weights below it, so that it does not fit the model it was made for; export with --merge"
            )
    model.save_pretrained(folder, save_embedding_layers=_keeps_embeddings(model))


def _keeps_embeddings(model: Any) -> Any:
    """Return whether embeddings belong to the adapters: PEFT would look at the hub for the model's size."""
    bases = {config.base_model_name_or_path for config in model.peft_config.values()}
    if all(not base or Path(base).is_dir() for base in bases):
        return "auto"
    targets = {str(one) for config in model.peft_config.values() for one in _listed(config, "target_modules")}
    return bool(targets & {"embed_tokens", "lm_head", "wte", "word_embeddings"})


def _listed(config: Any, name: str) -> list[Any]:
    value = getattr(config, name, None)
    return [value] if isinstance(value, str) else list(value or ())


def _without_start(config: Any) -> Any:
    """Return a config by which nothing is worked out of the weights that are below: they are not loaded yet."""
    plain = copy.deepcopy(config)
    # PEFT warns of a model that has another name than this one, and this one has none here.
    plain.base_model_name_or_path = None
    if isinstance(getattr(plain, "init_lora_weights", None), str):
        plain.init_lora_weights = True
    return plain
