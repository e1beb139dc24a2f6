"""Models of transformers in a config: calls of class methods, config objects and dataclasses as values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf.models import SMALL, TOKENS, build, weights
from treadle.config import LazyCall, LazyConfig, instantiate
from treadle.errors import ConfigError


@dataclass
class Shape:
    width: int = 3
    depths: tuple[int, ...] = (1, 2)
    names: list[str] = field(default_factory=list)


@dataclass
class Doubled:
    width: int = 3

    def __post_init__(self) -> None:
        self.width *= 2


def kept(value: Any) -> Any:
    return value


def saved_and_loaded(value: Any, folder: Path) -> Any:
    LazyConfig.save({"value": value}, folder / "config.yaml")
    return LazyConfig.load(folder / "config.yaml").value


def test_from_pretrained_of_a_folder_is_loaded_saved_printed_and_made(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = build("llama")
    model.save_pretrained(tmp_path / "model")
    file = tmp_path / "model.py"
    file.write_text(
        "from transformers import AutoModelForCausalLM\nfrom treadle.config import LazyCall\n"
        f"model = LazyCall(AutoModelForCausalLM.from_pretrained)({str(tmp_path / 'model')!r})\n"
    )
    config = LazyConfig.load(file)
    shown = f"cfg.model = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'model')!r})\n"
    assert LazyConfig.to_py(config).replace("\n    ", "").replace(",\n)", ")") == shown
    found = instantiate(saved_and_loaded(config.model, tmp_path))
    assert torch.equal(weights(found), weights(model))
    call = LazyCall(AutoModelForCausalLM.from_pretrained)(tmp_path / "model", dtype=torch.float64)
    assert instantiate(saved_and_loaded(call, tmp_path)).dtype is torch.float64


def test_a_config_of_transformers_is_a_value(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=1, rope_parameters={"rope_theta": 5.0})
    call = LazyCall(AutoModelForCausalLM.from_config)(config)
    assert "LlamaConfig(\n        vocab_size=40,\n" in LazyConfig.to_py({"model": call})
    back = saved_and_loaded(call, tmp_path)
    assert instantiate(back).config.to_dict() == instantiate(call).config.to_dict()
    # Written down as a call, it is changed by a key like any other.
    LazyConfig.apply_overrides(back, ["_args_[0].hidden_size=32"])
    assert instantiate(back).config.hidden_size == 32


def test_a_config_of_peft_is_a_value(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    LazyConfig.save({"peft_config": config}, tmp_path / "config.yaml")
    found = instantiate(LazyConfig.load(tmp_path / "config.yaml").peft_config)
    assert found == config
    assert get_peft_model(build("llama"), found).peft_config["default"].r == 2


def test_a_dataclass_is_a_value_and_shown_by_what_differs_from_its_defaults(tmp_path: Path) -> None:
    call = LazyCall(kept)(Shape(width=True, names=["a"]))
    shown = LazyConfig.to_py({"shape": call})
    assert shown == "cfg.shape = tests.hf.test_config.kept(tests.hf.test_config.Shape(width=True, names=['a']))\n"
    assert instantiate(saved_and_loaded(LazyCall(kept)(Shape(5)), tmp_path)) == Shape(5)
    file = tmp_path / "shape.py"
    file.write_text("from tests.hf.test_config import Shape\nshape = Shape(width=7)\nkind = Shape\n")
    assert dict(LazyConfig.load(file)) == {"shape": Shape(7)}


def test_an_object_that_its_arguments_do_not_make_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"value in|value: Doubled cannot be made again .*; write LazyCall\(Doubled\)"
    ):
        LazyConfig.save({"value": Doubled(4)}, tmp_path / "config.yaml")
