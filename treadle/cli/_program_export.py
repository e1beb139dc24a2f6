"""The model of a run built again, with an example of its inputs: what programs are exported of."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treadle.checkpoint.importers.weights import import_weights
from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.cli._consent import confirm_config
from treadle.errors import ConfigError
from treadle.runs.mirror import open_storage
from treadle.runs.place import is_url
from treadle.runs.pretrained import PRETRAINED, base_model
from treadle.runs.reader import read_config

TOKENS = 8
"""How many tokens the example of a text has."""


def build_model(
    source: str,
    weights: Callable[[], dict[str, Tensor]],
    *,
    allow: Sequence[str] | None,
    best: bool,
    merge: bool,
) -> nn.Module:
    """Return the model of a run on the CPU, with the weights of a checkpoint.

    Args:
        source: The folder of the run or its URL.
        weights: Reads the weights, for a model that a config describes.
        allow: What the config of somebody else's run may call.
        best: Whether to take the best checkpoint.
        merge: Whether adapters are added to the weights that they adapt.

    Raises:
        ConfigError: Nothing in the run's folder says how its model is built, or there are no adapters to merge.
    """
    if open_storage(source).files(PRETRAINED):
        from treadle.hf.export import load_pretrained

        model: Any = load_pretrained(source, best=best)
        return _merged(model, source) if merge else model
    if merge:
        raise ConfigError(f"{source} has no adapters to merge; leave --merge out")
    if is_url(source) or not {"model", "optim"} <= read_config(Path(source)).keys():
        raise ConfigError(
            f"nothing in {source} says how its model is built, since a program of yours did that; load its weights "
            "there, and call torch.onnx.export or torch.export.export"
        )
    return _model_of_config(Path(source), weights(), allow)


def _merged(model: Any, source: str) -> nn.Module:
    if base_model(model) is model:
        raise ConfigError(f"{source} has no adapters to merge; leave --merge out")
    merged: nn.Module = model.merge_and_unload()
    return merged


def _model_of_config(run: Path, weights: dict[str, Tensor], allow: Sequence[str] | None) -> nn.Module:
    from treadle.engine.trainers.default import DefaultTrainer
    from treadle.tools.run_config import find_run_config, load_saved

    confirm_config(find_run_config(run), allow)
    model = DefaultTrainer.build_model(load_saved(run, []))
    load_plain_state_dict(model, weights, where=str(run))
    return model.eval()


def example_of(model: nn.Module, file: Path | None) -> dict[str, Tensor]:
    """Return an example of the inputs of a model: what a file holds, or some that fit a model of transformers.

    Raises:
        ConfigError: There is no file, and the model is another one.
    """
    if file is not None:
        return {name: value for name, value in import_weights(file).items() if isinstance(value, Tensor)}
    base = base_model(model)
    config: Any = getattr(base, "config", None)
    name = getattr(base, "main_input_name", None)
    if name == "input_ids":
        ids = torch.arange(2 * TOKENS).reshape(2, TOKENS) % config.vocab_size
        found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        encoded = getattr(config, "is_encoder_decoder", False)
        return {**found, "decoder_input_ids": ids[:, : TOKENS // 2]} if encoded else found
    if name == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        size = config.image_size
        return {name: torch.linspace(-1, 1, 2 * config.num_channels * size * size).reshape(2, -1, size, size)}
    raise ConfigError(
        f"a {type(base).__name__} is exported by running it on an example; pass --example with a file of its inputs by "
        "name, such as safetensors.torch.save_file(batch, 'example.safetensors') writes"
    )
