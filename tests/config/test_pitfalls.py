"""The ten traps of the lazy configs that came before, each with what happens here instead."""

import builtins
from typing import Any

import pytest
import torch
from torch import nn

from treadle.config import ConfigDict, LazyConfig, get_config, instantiate
from treadle.config import LazyCall as L
from treadle.errors import ConfigError


def test_pitfall_1_a_misspelt_assignment_in_a_config_file_fails(write: Any) -> None:
    write(
        "base.py",
        """
        from treadle.config import LazyCall as L
        model = L(dict)(cfg=dict(hidden_layers=6, hidden_size=8))
        """,
    )
    path = write("main.py", "from .base import model\nmodel.cfg.num_layers = 24")
    with pytest.raises(ConfigError) as caught:
        LazyConfig.load(path)
    assert str(caught.value) == (
        "main.py, line 2: cfg has no key 'num_layers'; it has ['hidden_layers', 'hidden_size']; to add a key, assign "
        "it inside 'with omegaconf.open_dict(...):'"
    )


def test_pitfall_1_a_misspelt_key_of_the_default_settings_fails() -> None:
    train = get_config("common/train.py").train
    with pytest.raises(ConfigError, match=r"train in .* has no key 'trian_iter'; did you mean 'train_iter'"):
        train.trian_iter = 5
    with pytest.raises(
        ConfigError, match=r"train\.evaluation in .* has no key 'evl_period'; did you mean 'eval_period'"
    ):
        train.update(evaluation={"evl_period": 5})


def test_pitfall_2_arguments_are_plain_containers() -> None:
    built = instantiate(L(dict)(betas=(0.9, 0.95), sizes=[1, [2]], names={"a": {"b": (1,)}}))
    assert built == {"betas": (0.9, 0.95), "sizes": [1, [2]], "names": {"a": {"b": (1,)}}}
    assert [type(value) for value in built.values()] == [tuple, list, dict]
    assert type(built["sizes"][1]) is list
    assert type(built["names"]["a"]) is dict
    parameters = [nn.Parameter(torch.zeros(1))]
    optimizer = instantiate(L(torch.optim.Adam)(lr=0.1, betas=(0.9, 0.95)), params=parameters)
    assert type(optimizer.param_groups[0]["betas"]) is tuple


def test_pitfall_3_a_lazy_call_inside_a_plain_dict_is_made() -> None:
    built = instantiate(L(dict)(layers={"first": L(complex)(real=1), "rest": [(L(complex)(real=2),)]}))
    assert built == {"layers": {"first": 1 + 0j, "rest": [(2 + 0j,)]}}


def test_pitfall_4_a_plain_dict_is_instantiated() -> None:
    assert instantiate({"_target_": "builtins.complex", "real": 1.0, "imag": 2.0}) == 1 + 2j
    assert instantiate([{"_target_": "builtins.complex", "real": 1.0}]) == [1 + 0j]


def test_pitfall_5_a_failed_load_leaves_import_as_it_was(write: Any) -> None:
    original = builtins.__import__
    with pytest.raises(ConfigError):
        LazyConfig.load(write("bad.py", "from .nowhere import thing"))
    assert builtins.__import__ is original


def test_pitfall_6_star_imports_and_imports_of_whole_files_work(write: Any) -> None:
    write("common/base.py", "train = dict(steps=10)\nrate = 0.1")
    path = write(
        "exp/main.py", "from ..common import base\nfrom ..common.base import *\ntrain.steps = 20\nseen = base.rate"
    )
    loaded = LazyConfig.load(path)
    assert (loaded.train.steps, loaded.rate, loaded.seen) == (20, 0.1, 0.1)


def test_pitfall_7_a_class_of_a_config_file_is_saved_by_file_and_name(write: Any) -> None:
    path = write(
        "configs/net.py",
        """
        from treadle.config import LazyCall as L

        class Net:
            class Inner:
                pass

            def __init__(self, width):
                self.width = width

        def double(x):
            return 2 * x

        net = L(Net)(width=3)
        kinds = L(dict)(net=Net, inner=Net.Inner, double=double)
        """,
    )
    LazyConfig.save(LazyConfig.load(path), "run/config.yaml")
    loaded = LazyConfig.load("run/config.yaml")
    assert loaded.net._target_ == f"{path.resolve()}:Net"
    net, kinds = instantiate(loaded.net), instantiate(loaded.kinds)
    assert (type(net).__name__, net.width) == ("Net", 3)
    assert (kinds["inner"].__qualname__, kinds["double"](4)) == ("Net.Inner", 8)
    assert kinds["net"] is type(net), "one file gives one class, however often it is named"


def test_pitfall_8_objects_that_are_passed_to_instantiate_do_not_enter_the_config(tmp_path: Any) -> None:
    config = get_config("common/optim.py")
    model = nn.Linear(2, 2)
    before = LazyConfig.to_py(config)
    groups = instantiate(config.optim.params, model=model)
    optimizer = instantiate(config.optim, params=groups)
    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert LazyConfig.to_py(config) == before
    LazyConfig.save(config, tmp_path / "config.yaml")


def test_pitfall_8_an_object_that_was_written_into_the_config_is_named(tmp_path: Any) -> None:
    config = ConfigDict({"optim": L(dict)(params=L(dict)())})
    config.optim.params.model = nn.Linear(2, 2)
    with pytest.raises(ConfigError) as caught:
        LazyConfig.save(config, tmp_path / "config.yaml")
    assert str(caught.value) == (
        "optim.params.model: Linear objects cannot be written to a file; write a LazyCall that makes one, or pass the "
        "object to instantiate()"
    )
    assert list(tmp_path.iterdir()) == []


def test_pitfall_9_yaml_is_read_with_a_safe_loader(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.system", lambda command: pytest.fail(f"{command} was run"))
    with pytest.raises(ConfigError, match="nothing that would run code"):
        LazyConfig.load(write("evil.yaml", "a: !!python/object/apply:os.system ['echo']"))


def test_pitfall_10_there_is_one_resolved_config_and_it_is_frozen() -> None:
    config = ConfigDict({"width": 4, "model": L(dict)(width="${width}", sizes=["${width}", 1]), "empty": {}})
    resolved = LazyConfig.resolved(config)
    config.width = 5
    assert (config.model.width, resolved.model.width, resolved.model.sizes[0]) == (5, 4, 4)
    message = r"^model\.width: the config is resolved and frozen; change it before LazyConfig\.resolved\(\)$"
    with pytest.raises(ConfigError, match=message):
        resolved.model.width = 6
    with pytest.raises(ConfigError, match="is resolved and frozen"):
        resolved["empty"]["new"] = 6
    with pytest.raises(Exception, match="read-only"):
        resolved.model.sizes.append(1)
    with pytest.raises(ConfigError) as caught:
        LazyConfig.apply_overrides(resolved, ["width=1"])
    assert str(caught.value) == ("the config is resolved and frozen; apply overrides before LazyConfig.resolved()")
