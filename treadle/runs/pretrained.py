"""What `from_pretrained` needs beside weights, kept with a run: configs of the model and its adapters, a tokenizer.

Nothing here knows transformers: whatever has `save_pretrained` writes its own files.
"""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

PRETRAINED = "pretrained"
"""The folder, in that of the run."""
ADAPTERS = "adapters"
"""The folder in there with a folder for each adapter of the model."""
HOLDERS = ("tokenizer", "processor", "feature_extractor", "image_processor")
"""Where collators of transformers have what turns text or pictures into numbers."""


def keep_pretrained(folder: Path, model: nn.Module, sources: Iterable[Any], tell: Callable[[str], object]) -> None:
    """Write what `from_pretrained` needs of a model, and of what makes its batches, into the folder of its run.

    Args:
        folder: The folder of the run.
        model: The model; one without a config of transformers' kind has nothing to write.
        sources: What has a `collate_fn` that joins samples into batches; a tokenizer is looked for in it.
        tell: Called with a line for what cannot be written: training does not end for that.
    """
    place = folder / PRETRAINED
    kept: dict[int, Callable[[], object]] = {}
    base = base_model(model)
    if hasattr(base, "config") and _can_save(base.config):
        kept[id(base)] = lambda: _keep_configs(place, model, base)
    for source in sources:
        collator = getattr(source, "collate_fn", None)
        for name in HOLDERS:
            one = getattr(collator, name, None)
            if one is not None and _can_save(one):
                kept[id(one)] = lambda one=one: one.save_pretrained(place)  # type: ignore[misc]
    for write in kept.values():
        try:
            write()
        except Exception as error:
            # Checks of others: a config that they would not write all the same trains.
            tell(f"{place} is not complete, and `treadle export --format hf` may fail: {error}")


def base_model(model: nn.Module) -> Any:
    """Return the model below what PEFT and `torch.compile` put around it."""
    model = getattr(model, "_orig_mod", model)
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def _can_save(value: Any) -> bool:
    return callable(getattr(value, "save_pretrained", None)) and not isinstance(value, type)


def _keep_configs(place: Path, model: nn.Module, base: Any) -> None:
    config = copy.deepcopy(base.config)
    # A model that was made from a config has not said yet of which class it is.
    config.architectures = [type(base).__name__]
    config.save_pretrained(place)
    if _can_save(getattr(base, "generation_config", None)):
        base.generation_config.save_pretrained(place)
    for name, one in dict(getattr(model, "peft_config", None) or {}).items():
        one.save_pretrained(place / ADAPTERS / name)
