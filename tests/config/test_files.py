"""Config files: what of them becomes the config, and what is said where one cannot be read."""

import enum
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf, open_dict

from treadle.config import ConfigDict, ConfigTuple, LazyConfig, instantiate, try_get_key
from treadle.errors import ConfigError


class Colour(enum.Enum):
    """Something to choose."""

    RED = 1


def message(path: Any, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        LazyConfig.load(path, **arguments)
    return str(caught.value)


def test_scalars_lists_tuples_and_none_at_the_top_survive(write: Any) -> None:
    path = write(
        "main.py",
        """
        import torch
        from pathlib import Path
        from treadle.config import LazyCall as L

        steps, rate, name, flag, nothing = 10, 0.1, "x", True, None
        sizes = [1, 2]
        betas = (0.9, 0.95)
        folder = Path("runs")
        train = dict(a=1)
        _private = 3

        def helper():
            return 1

        class Helper:
            pass
        """,
    )
    loaded = LazyConfig.load(path)
    assert list(loaded) == ["steps", "rate", "name", "flag", "nothing", "sizes", "betas", "folder", "train"]
    assert (loaded.steps, loaded.flag, loaded.nothing, loaded.folder) == (10, True, None, Path("runs"))
    assert isinstance(loaded.betas, ConfigTuple)
    assert isinstance(loaded.train, ConfigDict)


def test_keys_ask_for_single_values_which_keep_their_place_in_the_config(write: Any) -> None:
    path = write("main.py", "width = 4\ntrain = dict(size='${width}')\nother = dict(a=1)")
    assert LazyConfig.load(path, keys="train").size == 4
    train, other = LazyConfig.load(path, keys=("train", "other"))
    assert (train.size, other.a) == (4, 1)
    assert message(path, keys="trian") == "main.py has no key 'trian'; did you mean 'train'?"
    assert message(path, keys=["zzz"]) == "main.py has no key 'zzz'; it has ['width', 'train', 'other']"


def test_yaml_is_read_as_people_write_it(write: Any) -> None:
    path = write(
        "main.yaml",
        """
        optim: {_target_: torch.optim.Adam, lr: 3e-4, betas: !tuple [0.9, 0.95]}
        old: !!python/tuple [1, 2]
        date: 2024-01-31
        number: 1e5
        infinite: .inf
        folder: !path runs/a
        base: &base {a: 1, b: 2}
        derived: {<<: *base, b: 3}
        width: ${derived.b}
        """,
    )
    loaded = LazyConfig.load(path)
    assert (loaded.optim.lr, loaded.number, loaded.infinite) == (3e-4, 1e5, float("inf"))
    assert (loaded.date, loaded.folder, loaded.width) == ("2024-01-31", Path("runs/a"), 3)
    assert isinstance(loaded.optim.betas, ConfigTuple)
    assert isinstance(loaded.old, ConfigTuple)
    assert loaded.derived == {"a": 1, "b": 3}
    assert LazyConfig.load(write("empty.yml", "# nothing")) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2", "x.yaml, line 2: 'a' is given twice"),
        ("t: {a: 1,\n  a: 2}", "x.yaml, line 2: 'a' is given twice"),
        ("[1, 2]", "x.yaml holds a list; a config is a mapping of names to values"),
        ("a: [1", "x.yaml, line 1: expected ',' or ']', but got '<stream end>'"),
        ("a: {[1]: 2}", "x.yaml, line 1: found unhashable key"),
        (
            "a:\n  b: !thing 1",
            "x.yaml, line 2: could not determine a constructor for the tag '!thing'; a config holds plain data, !tuple "
            "and !path, and nothing that would run code",
        ),
    ],
)
def test_yaml_that_is_wrong_is_named_with_its_line(write: Any, text: str, expected: str) -> None:
    assert message(write("x.yaml", text)) == expected


def test_a_file_with_forbidden_characters_is_named(write: Any) -> None:
    assert message(write("x.yaml", "a: \x01")).startswith("x.yaml: unacceptable character")
    Path("y.yaml").write_bytes(b"\xff\xfe\xff")
    assert message("y.yaml").startswith("y.yaml cannot be read: 'utf-8' codec can't decode")


def test_a_file_that_is_not_there_is_named_with_the_nearest(write: Any) -> None:
    write("configs/gpt_small.py", "")
    assert message("configs/gpt_smal.py") == "there is no config file configs/gpt_smal.py; did you mean 'gpt_small.py'?"
    assert message("configs/x.yaml") == "there is no config file configs/x.yaml; the folder has ['gpt_small.py']"
    assert message("nowhere/x.py") == "there is no config file nowhere/x.py"
    assert message("x.json") == "x.json is no config file; its name must end in one of .py, .yaml, .yml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n1 / 0", "main.py, line 2: ZeroDivisionError: division by zero"),
        ("def f():\n    raise KeyError('x')\nf()", "main.py, line 2: KeyError: 'x'"),
        ("a = (", "main.py, line 1: SyntaxError: '(' was never closed"),
        ("import not_there_at_all", "main.py, line 1: ModuleNotFoundError: No module named 'not_there_at_all'"),
        (
            "from .bse import x",
            "main.py, line 1: ModuleNotFoundError: there is no config file bse.py; did you mean 'base'?",
        ),
        (
            "from . import zzz",
            "main.py, line 1: ModuleNotFoundError: there is no config file zzz.py; the folder has ['base', 'main']",
        ),
        ("from .base import y", "main.py, line 1: ImportError: cannot import name 'y' from base.py"),
        (
            "from .deep.er import y",
            "main.py, line 1: ModuleNotFoundError: there is no config file deep.py; the folder has ['base', 'main']",
        ),
        (
            "from treadle.config import LazyCall\nLazyCall(3)",
            "main.py, line 2: LazyCall(3): the target must be a class, a function, its name as text, or a lazy call",
        ),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(write: Any, text: str, expected: str) -> None:
    write("base.py", "x = 1")
    path = write("main.py", text)
    assert message(path) == expected


def test_an_error_in_an_imported_file_names_that_file(write: Any) -> None:
    write("configs/base.py", "x = 1\ny = x.z")
    path = write("configs/main.py", "from .base import x")
    assert message(path) == "configs/base.py, line 2: AttributeError: 'int' object has no attribute 'z'"


def test_files_that_import_each_other_are_named(write: Any) -> None:
    write("a.py", "from .b import x")
    write("b.py", "from .a import x")
    assert message("a.py") == "config files import each other in a circle: a.py imports b.py imports a.py"


def test_a_relative_import_may_be_optional(write: Any) -> None:
    path = write("main.py", "try:\n    from .local import x\nexcept ImportError:\n    x = 1")
    assert LazyConfig.load(path).x == 1
    write("local.py", "x = 2")
    assert LazyConfig.load(path).x == 2


def test_folders_need_no_init_file_and_may_have_any_name(write: Any) -> None:
    write("top/base.py", "x = 1")
    write("top/__init__.py", "raise RuntimeError('a folder above the file is only a folder')")
    write("top/v1.0 50%/mid.py", "from ..base import x\ny = x + 1")
    write("top/v1.0 50%/package/__init__.py", "from .inner import z\nw = 10")
    write("top/v1.0 50%/package/inner.py", "from ..mid import y\nz = y + 1")
    path = write(
        "top/v1.0 50%/main.py", "from .package import w, z\nfrom .package import inner\nfrom .mid import y\nv = inner.z"
    )
    assert LazyConfig.load(path) == {"w": 10, "z": 3, "y": 2, "v": 3}


def test_only_dicts_that_are_imported_become_configs(write: Any) -> None:
    write(
        "base.py",
        """
        train = {"a": 1}
        table = {int: (1, 2)}
        sizes = {"small": (1, 2)}

        def size():
            return sizes["small"]
        """,
    )
    path = write(
        "main.py",
        """
        from .base import size as _size, table as _table, train
        kinds = [type(train).__name__, type(_table).__name__, type(_size()).__name__]
        train.a = 2
        """,
    )
    loaded = LazyConfig.load(path)
    assert loaded.kinds == ["ConfigDict", "dict", "tuple"]
    assert loaded.train.a == 2


def test_a_dict_that_cannot_be_a_config_is_named(write: Any) -> None:
    assert message(write("main.py", "table = {int: 1}")) == (
        "table in main.py: Incompatible key type 'type'; a name that begins with an underscore is no part of the config"
    )


def test_an_open_dict_takes_new_keys(write: Any) -> None:
    write("base.py", "train = dict(nested=dict(a=1))")
    path = write(
        "main.py",
        """
        from omegaconf import open_dict
        from . import base
        with open_dict(base.train):
            base.train.new = (1, 2)
            base.train.nested.b = 2
        train = base.train
        """,
    )
    loaded = LazyConfig.load(path)
    assert loaded.train == {"nested": {"a": 1, "b": 2}, "new": (1, 2)}
    with open_dict(loaded):
        loaded.train.nested.c = 3
    assert loaded.train.nested.c == 3


def test_configs_of_plain_omegaconf_are_taken_over(write: Any) -> None:
    path = write(
        "main.py",
        """
        from omegaconf import OmegaConf
        from treadle.config import LazyCall as L
        dataloader = OmegaConf.create()
        dataloader.train = L(dict)(size=(1, 2))
        dataloader.test = [L(dict)(size=3)]
        dataloader.width = "${dataloader.test[0].size}"
        """,
    )
    loaded = LazyConfig.load(path)
    assert instantiate(loaded.dataloader) == {"train": {"size": (1, 2)}, "test": [{"size": 3}], "width": 3}
    assert isinstance(loaded.dataloader, ConfigDict)


def test_load_rel_starts_at_the_file_that_calls(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("configs/base.py", "train = dict(a=1)")
    path = write(
        "configs/main.py",
        "from treadle.config import LazyConfig\ntrain = LazyConfig.load_rel('base.py', 'train')\ntrain.a = 2",
    )
    full = path.resolve()
    monkeypatch.chdir("/")
    assert LazyConfig.load(full).train.a == 2
    names: dict[str, Any] = {"LazyConfig": LazyConfig}
    exec(compile("def load():\n    LazyConfig.load_rel('x.py')", "<typed>", "exec"), names)  # noqa: S102 - in no file
    with pytest.raises(ConfigError) as caught:
        names["load"]()
    assert str(caught.value) == "load_rel('x.py') starts at the caller's file, and <typed> is none; use load"


def test_classes_of_a_config_file_work_as_elsewhere(write: Any) -> None:
    path = write(
        "main.py",
        """
        from __future__ import annotations
        from dataclasses import dataclass
        from treadle.config import LazyCall as L

        @dataclass
        class Size:
            width: int = 2
            depth: int | None = None

        size = L(Size)(width=3)
        given = L(dict)(size=Size(4))
        """,
    )
    loaded = LazyConfig.load(path)
    size = instantiate(loaded.size)
    assert (size.width, size.depth) == (3, None)
    assert pickle.loads(pickle.dumps(size)) == size  # noqa: S301 - what was just written
    assert instantiate(loaded.given)["size"].width == 4


def test_running_a_file_writes_no_bytecode(write: Any) -> None:
    write("base.py", "x = 1")
    LazyConfig.load(write("main.py", "from .base import x"))
    assert sorted(path.name for path in Path().iterdir()) == ["base.py", "main.py"]


def test_interpolations_resolve_across_the_config(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_TEST_WIDTH", "7")
    path = write(
        "main.py",
        """
        from treadle.config import LazyCall as L
        width = 4
        model = L(dict)(width="${width}", inner=L(dict)(width="${..width}"), pair=("${width}", [L(dict)(w="${width}")]))
        env = "${oc.env:TREADLE_TEST_WIDTH}"
        """,
    )
    loaded = LazyConfig.load(path)
    assert instantiate(loaded.model) == {"width": 4, "inner": {"width": 4}, "pair": (4, [{"w": 4}])}
    assert loaded.env == "7"
    LazyConfig.apply_overrides(loaded, ["width=5"])
    assert instantiate(loaded.model)["pair"] == (5, [{"w": 5}])


def test_a_load_leaves_only_the_modules_whose_classes_may_be_looked_up(write: Any) -> None:
    write("data.py", "x = 1")
    write("code.py", "class Net:\n    pass")
    before = set(sys.modules)
    LazyConfig.load(write("main.py", "from .data import x\nfrom .code import Net"))
    new = sorted(name.rpartition(".")[2] for name in set(sys.modules) - before)
    assert [name for name in new if not name.startswith("_treadle")] == ["code"]


def test_a_key_that_is_there_as_none_is_none_and_an_absent_one_the_default() -> None:
    config = ConfigDict({"a": None, "b": {"c": 1, "gap": "???"}, "text": "x"})
    assert try_get_key(config, "a", default=5) is None
    assert try_get_key(config, "z", "b.z", "b.c", default=5) == 1
    assert try_get_key(config, "z", "b.gap", "text.below", "a.below", default=5) == 5
    assert try_get_key(config, "z") is None
    assert try_get_key(OmegaConf.create({"a": 1}), "a") == 1


def test_enum_members_are_values(write: Any) -> None:
    config = ConfigDict({"call": {"_target_": dict, "colour": Colour.RED}})
    assert instantiate(config.call) == {"colour": Colour.RED}


def test_a_config_that_is_a_link_has_the_neighbours_of_the_link(write: Any) -> None:
    write("here/base.py", "x = 'here'")
    target = write("there/main.py", "from .base import x")
    Path("here/main.py").symlink_to(target.resolve())
    assert LazyConfig.load("here/main.py").x == "here"


def test_a_syntax_error_in_a_module_is_put_to_the_line_that_imports_it(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(".")
    write("broken_syntax.py", "\n\n\na = (")
    assert message(write("main.py", "\nimport broken_syntax")) == ("main.py, line 2: SyntaxError: '(' was never closed")


def test_the_program_of_the_documentation_loads(write: Any) -> None:
    path = write(
        "configs/gpt_small.py",
        """
        import torch
        from treadle.config import LazyCall as L, get_config
        from treadle.optim.param_groups import get_default_optimizer_params

        class GPT(torch.nn.Module):
            def __init__(self, vocab_size, layers, width):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

        model = L(GPT)(vocab_size=256, layers=6, width=8)
        optim = L(torch.optim.AdamW)(params=L(get_default_optimizer_params)(weight_decay=0.1), lr=3e-4)
        train = get_config("common/train.py").train
        train.update(train_iter=5000, evaluation=dict(eval_period=500), amp=dict(enabled=True))
        """,
    )
    config = LazyConfig.load(path)
    LazyConfig.apply_overrides(config, ["train.train_micro_batch_size=16", "optim.lr=1e-3"])
    model = instantiate(config.model)
    optimizer = instantiate(config.optim, params=instantiate(config.optim.params, model=model))
    assert (len(model.layers), optimizer.param_groups[0]["lr"], config.train.evaluation.enabled) == (6, 1e-3, True)
    assert (config.train.train_micro_batch_size, config.train.evaluation.eval_period) == (16, 500)
