"""What is saved loads again and builds the same."""

import enum
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from treadle.config import ConfigDict, LazyConfig, get_config, instantiate, locate
from treadle.config import LazyCall as L
from treadle.config.targets import target_name
from treadle.errors import ConfigError

# Text that OmegaConf gives a meaning of its own is no plain text.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda text: "${" not in text and text != "???"
)
KEYS = TEXT.filter(lambda key: not key.startswith("_"))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=6)
    | st.sampled_from([Path("runs/a"), Path()])
)
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3).map(lambda arguments: L(dict)(**arguments)),
        st.lists(inner, max_size=2).map(lambda arguments: L(pack)(*arguments)),
    ),
    max_leaves=12,
)


def pack(*items: Any) -> tuple[str, tuple[Any, ...]]:
    return "packed", items


class Colour(enum.Enum):
    """Something to choose."""

    RED = "red"


def exact(value: Any) -> Any:
    """Return a value with its types spelt out, so that 1, 1.0 and True differ, and (1,) and [1]."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [exact(item) for item in value])
    return (type(value).__name__, value)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(KEYS, TREES, max_size=4))
def test_any_tree_survives_saving_and_loading(tmp_path_factory: Any, content: dict[str, Any]) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    config = ConfigDict(content)
    LazyConfig.save(config, file)
    loaded = LazyConfig.load(file)
    assert exact(instantiate(loaded)) == exact(instantiate(config))
    first = file.read_text(encoding="utf-8")
    LazyConfig.save(loaded, file)
    assert file.read_text(encoding="utf-8") == first


def saved(config: Any, path: Path) -> Any:
    LazyConfig.save(config, path)
    return LazyConfig.load(path)


def test_classes_functions_dtypes_and_enum_members_are_saved_by_name(tmp_path: Path) -> None:
    kinds = {
        "norm": nn.LayerNorm,
        "activation": torch.nn.functional.gelu,
        "dtype": torch.bfloat16,
        "builtin": int,
        "method": nn.Module.eval,
        "choice": Colour.RED,
    }
    loaded = saved({"call": {"_target_": dict, **kinds}}, tmp_path / "config.yaml")
    assert loaded.call.norm == {"_target_": "treadle.config.locate", "name": "torch.nn.LayerNorm"}
    assert loaded.call.dtype.name == "torch.bfloat16"
    assert instantiate(loaded.call) == kinds


def test_interpolations_and_missing_values_stay_what_they_are(tmp_path: Path) -> None:
    config = ConfigDict({"a": 1, "b": "${a}", "c": "???", "d": ["${a}"], "e": {"f": "x-${a}"}})
    loaded = saved(config, tmp_path / "config.yaml")
    assert loaded.b == 1
    assert loaded.e.f == "x-1"
    loaded.a = 2
    assert (loaded.b, loaded.d[0]) == (2, 2)
    assert "c: ???" in (tmp_path / "config.yaml").read_text()


def test_numbers_of_numpy_become_numbers_and_nan_stays_nan(tmp_path: Path) -> None:
    loaded = saved({"a": numpy.float64(0.5), "b": float("nan"), "c": -math.inf, "d": {1, 2}}, tmp_path / "config.yaml")
    assert (loaded.a, loaded.c) == (0.5, -math.inf)
    assert math.isnan(loaded.b)
    assert loaded.d == {1, 2}


def test_the_file_is_plain_yaml_with_two_tags(tmp_path: Path) -> None:
    config = {
        "optim": L(torch.optim.AdamW)(lr=1e-5, betas=(0.9, 0.95)),
        "text": "1e5",
        "folder": Path("a/b"),
        "yes": "no",
    }
    saved(config, tmp_path / "config.yaml")
    assert (tmp_path / "config.yaml").read_text() == (
        "optim:\n"
        "  _target_: torch.optim.AdamW\n"
        "  lr: 1.0e-05\n"
        "  betas: !tuple\n"
        "  - 0.9\n"
        "  - 0.95\n"
        "text: '1e5'\n"
        "folder: !path 'a/b'\n"
        "'yes': 'no'\n"
    )


def test_a_config_without_tuples_is_read_by_any_yaml_reader(tmp_path: Path) -> None:
    saved({"a": {"_target_": "x.y", "b": [1, 2.5, None, "t"]}}, tmp_path / "config.yaml")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {
        "a": {"_target_": "x.y", "b": [1, 2.5, None, "t"]}
    }


@pytest.mark.parametrize("name", ["common/train.py", "common/optim.py", "common/schedule.py"])
def test_the_packaged_configs_survive(tmp_path: Path, name: str) -> None:
    config = get_config(name)
    loaded = saved(config, tmp_path / "config.yaml")
    assert loaded == config
    assert LazyConfig.to_py(loaded) == LazyConfig.to_py(config)


def local_function() -> Callable[[], None]:
    def inside() -> None:
        pass

    return inside


@pytest.mark.parametrize("value", [lambda: None, local_function()])
def test_what_has_no_name_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    for config, place in [({"x": L(value)()}, "x._target_"), ({"x": {"y": [value]}}, "x.y[0]")]:
        with pytest.raises(ConfigError) as caught:
            LazyConfig.save(config, tmp_path / "config.yaml")
        assert str(caught.value) == (
            f"{place}: {value!r} has no name that leads back to it; define it at the top of a module or config file, "
            "or give its name as text, such as LazyCall('package.module.name')"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^cannot write the config to .*/file/config\.yaml: "):
        LazyConfig.save({"a": 1}, tmp_path / "file" / "config.yaml")


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.yaml"
    LazyConfig.save({"a": 1}, file)

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigError, match="the disk is full"):
        LazyConfig.save({"a": 2}, file)
    assert LazyConfig.load(file).a == 1
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_names_are_the_shortest_that_lead_to_the_thing() -> None:
    assert target_name(torch.optim.AdamW) == "torch.optim.AdamW"
    assert target_name(nn.LayerNorm) == "torch.nn.LayerNorm"
    assert target_name(Path) == "pathlib.Path"
    assert target_name(print) == "builtins.print"
    assert target_name(ConfigError) == "treadle.errors.ConfigError"


def test_classes_of_the_program_itself_are_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    program = tmp_path / "program.py"
    program.write_text("class Net:\n    pass\n\nif __name__ == '__main__':\n    raise RuntimeError")
    main = ModuleType("__main__")
    main.Net = type("Net", (), {"__module__": "__main__", "__qualname__": "Net"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ConfigError, match="has no name that leads back to it"):
        target_name(main.Net)
    main.__file__ = str(program)
    assert target_name(main.Net) == f"{program}:Net"
    assert locate(target_name(main.Net)).__qualname__ == "Net"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AdamW", "'AdamW' is no full name; write it as 'package.module.Name'"),
        ("", "'' is no full name; write it as 'package.module.Name'"),
        ("not_there_at_all.X", "'not_there_at_all.X' cannot be found: there is no module 'not_there_at_all'"),
        (
            "torch.optim.AdmW",
            "'torch.optim.AdmW' cannot be found: torch.optim has no 'AdmW'; did you mean 'AdamW'?",
        ),
        (
            "torch.nn.Linear.forwrd",
            "'torch.nn.Linear.forwrd' cannot be found: there is no 'forwrd'; did you mean 'forward'?",
        ),
        ("/nowhere/x.py:Net", "'/nowhere/x.py:Net' cannot be found: there is no file /nowhere/x.py"),
    ],
)
def test_a_name_that_leads_nowhere_is_explained(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        locate(name)
    assert str(caught.value) == expected


def test_a_module_that_fails_to_import_is_told_from_one_that_is_not_there(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(".")
    write("broken_one/__init__.py", "")
    write("broken_one/needs.py", "import not_there_at_all")
    write("broken_one/fails.py", "1 / 0")
    write("configs/x.py", "Net = 1")
    for name, expected in [
        (
            "broken_one.needs.X",
            "'broken_one.needs.X' cannot be loaded: importing broken_one.needs failed: No module named "
            "'not_there_at_all'",
        ),
        (
            "broken_one.fails.X",
            "'broken_one.fails.X' cannot be loaded: importing broken_one.fails failed: ZeroDivisionError: division by "
            "zero",
        ),
        ("configs/x.py:Nt", "'configs/x.py:Nt' cannot be found: there is no 'Nt'; did you mean 'Net'?"),
    ]:
        with pytest.raises(ConfigError) as caught:
            locate(name)
        assert str(caught.value) == expected
