"""The behaviours that users of lazy configs count on, by the numbers under which the contract's study lists them."""

import builtins
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.config import ConfigDict, InstantiationError, LazyConfig, get_config, instantiate
from treadle.config import LazyCall as L
from treadle.config.resolution import resolve_batch_sizes, resolve_iterations, resolve_train, resolve_warmup
from treadle.errors import ConfigError


@pytest.mark.parametrize(
    ("micro", "whole", "accumulation", "expected"),
    [
        (8, 64, None, (8, 64, 4)),
        (8, 64, 4, (8, 64, 4)),
        (8, None, None, (8, 16, 1)),
        (8, None, 3, (8, 48, 3)),
        (None, 64, None, (32, 64, 1)),
        (None, 64, 4, (8, 64, 4)),
    ],
)
def test_b13_missing_batch_sizes_are_derived(
    micro: int | None, whole: int | None, accumulation: int | None, expected: tuple[int, int, int]
) -> None:
    assert resolve_batch_sizes(micro, whole, accumulation, data_parallel_size=2) == expected


@pytest.mark.parametrize(
    ("micro", "whole", "accumulation", "message"),
    [
        (
            8,
            60,
            None,
            "global_batch_size=60 is no multiple of train_micro_batch_size=8 times data_parallel_size=2, which is 16",
        ),
        (
            8,
            64,
            2,
            "train_micro_batch_size=8 times data_parallel_size=2 times num_accumulation_steps=2 is 32, but "
            "global_batch_size=64; set num_accumulation_steps=4, or leave it out",
        ),
        (
            None,
            62,
            4,
            "global_batch_size=62 is no multiple of num_accumulation_steps=4 times data_parallel_size=2, which is 8",
        ),
        (None, None, 4, "give train_micro_batch_size or global_batch_size, or both; neither is set"),
        (0, None, None, "train_micro_batch_size=0 must be a whole number from 1 up"),
        (8, 64.0, None, "global_batch_size=64.0 must be a whole number from 1 up"),
        (8, None, True, "num_accumulation_steps=True must be a whole number from 1 up"),
    ],
)
def test_b13_inconsistent_batch_sizes_raise_and_name_the_numbers(
    micro: Any, whole: Any, accumulation: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_batch_sizes(micro, whole, accumulation, data_parallel_size=2)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("iterations", "epochs", "expected"),
    [(100, 0, 100), (100, 3, 100), (10, 3, 94), (0, 3, 94), (0, 0.5, 16), (94, 3, 94)],
)
def test_b14_the_longer_of_iterations_and_epochs_wins(iterations: int, epochs: float, expected: int) -> None:
    assert resolve_iterations(iterations, epochs, dataset_length=1000, global_batch_size=32) == expected


def test_b14_the_resolved_length_is_logged_and_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = get_config("common/train.py").train
    train.update(train_iter=10, train_epoch=3, train_micro_batch_size=16, warmup_ratio=0.1)
    with caplog.at_level(logging.INFO, logger="treadle.config.resolution"):
        resolved = resolve_train(train, data_parallel_size=2, dataset_length=1000)
    assert caplog.messages == [
        "BatchSizes(train_micro_batch_size=16, global_batch_size=32, num_accumulation_steps=1), train_iter=94, "
        "warm-up of 10"
    ]
    LazyConfig.save(ConfigDict({"train": resolved}), tmp_path / "config.yaml")
    saved = LazyConfig.load(tmp_path / "config.yaml").train
    assert (saved.train_iter, saved.global_batch_size, saved.num_accumulation_steps) == (94, 32, 1)
    assert (saved.scheduler.max_iter, saved.scheduler.warmup_iter) == (94, 10)
    assert train.train_iter == 10, "the config that was given is left as it was"
    assert resolve_train(saved, data_parallel_size=2, dataset_length=1000) == saved


@pytest.mark.parametrize(
    ("ratio", "iterations", "expected"), [(0, 100, 0), (0.05, 100, 5), (0.07, 100, 7), (0.01, 94, 1), (0.999, 10, 10)]
)
def test_b15_warmup_is_the_share_of_the_iterations_rounded_up(ratio: float, iterations: int, expected: int) -> None:
    assert resolve_warmup(ratio, iterations) == expected


@pytest.mark.parametrize("ratio", [1, 1.0, 1.5])
def test_b15_a_warmup_ratio_of_one_or_more_raises(ratio: float) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_warmup(ratio, 100)
    assert str(caught.value) == (
        f"warmup_ratio={ratio} must be from 0 up to, but not including, 1: a share of the whole run"
    )


@pytest.mark.parametrize("ratio", [-0.1, float("nan"), True, "0.1"])
def test_b15_a_warmup_ratio_that_is_no_number_from_zero_up_raises(ratio: Any) -> None:
    with pytest.raises(ConfigError, match=r"^warmup_ratio=.* must be a number from 0 up$"):
        resolve_warmup(ratio, 100)


def config() -> ConfigDict:
    return ConfigDict({"optim": {"lr": 0.1, "eps": 1e-8}, "train": {"train_iter": 10, "amp": {"enabled": False}}})


def test_b40_an_unknown_override_key_fails_and_names_near_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        LazyConfig.apply_overrides(config(), ["train.trian_iter=5"])
    assert str(caught.value) == (
        "unknown key 'train.trian_iter' in the config; did you mean 'train.train_iter'? (+train.trian_iter=... adds it)"
    )


def test_b40_a_key_that_stands_elsewhere_is_named_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'lr' in the config; did you mean 'optim\.lr'\?"):
        LazyConfig.apply_overrides(config(), ["lr=5"])


def test_b40_a_plus_adds_and_a_tilde_removes() -> None:
    changed = LazyConfig.apply_overrides(config(), ["+train.seed=7", "+new.deep.key=[1]", "~optim.eps"])
    assert changed == {
        "optim": {"lr": 0.1},
        "train": {"train_iter": 10, "amp": {"enabled": False}, "seed": 7},
        "new": {"deep": {"key": [1]}},
    }


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=[1,2]", [1, 2]),
        ("a=(1,2)", (1, 2)),
        ("a=(1,)", (1,)),
        ("a=()", ()),
        ("a=[(1,2),{k:(3,4)}]", [(1, 2), {"k": (3, 4)}]),
        ('a="x=y"', "x=y"),
        ("a='x=y'", "x=y"),
        ("a=x=y", "x=y"),
        ("a=b=c=d", "b=c=d"),
        ("a={k:1}", {"k": 1}),
        ("a=5", 5),
        ("a='5'", "5"),
        ("a=3e-4", 3e-4),
        ("a=null", None),
        ("a=true", True),
        ("a=some text", "some text"),
        ("a=", ""),
        ("a=${b}", 6),
    ],
)
def test_b41_overrides_parse_and_targets_receive_plain_values(override: str, expected: Any) -> None:
    changed = LazyConfig.apply_overrides(ConfigDict({"call": L(dict)(a=0), "b": 6}), [f"call.{override}"])
    built = instantiate(changed.call)["a"]
    assert built == expected
    assert type(built) is type(expected)
    if isinstance(expected, list):
        assert [type(item) for item in built] == [type(item) for item in expected]


def test_b41_lists_tuples_and_dicts_of_a_config_file_arrive_as_plain_ones(write: Any) -> None:
    write("base.py", "from treadle.config import LazyCall as L\ncall = L(dict)(betas=(0.9, 0.95), items=[(1,), [2]])")
    path = write("main.py", "from .base import call\ncall.late = ({'deep': (1, 2)},)\ncall['items'].append((3,))")
    built = instantiate(LazyConfig.load(path).call)
    assert built == {"betas": (0.9, 0.95), "items": [(1,), [2], (3,)], "late": ({"deep": (1, 2)},)}
    assert type(built["betas"]) is tuple
    assert type(built["items"]) is list
    assert [type(item) for item in built["items"]] == [tuple, list, tuple]
    assert type(built["late"][0]) is dict


def test_b42_edits_do_not_leak_between_loads(write: Any) -> None:
    write("configs/base.py", "train = dict(steps=10, nested=dict(a=1))")
    first = write("configs/first.py", "from .base import train\ntrain.steps = 20\ntrain.nested.a = 2")
    second = write("configs/second.py", "from .base import train\nfrom .first import train as other")
    assert LazyConfig.load(first).train == {"steps": 20, "nested": {"a": 2}}
    loaded = LazyConfig.load(second)
    assert loaded.train == {"steps": 10, "nested": {"a": 1}}
    assert loaded.other == {"steps": 20, "nested": {"a": 2}}
    write("configs/base.py", "train = dict(steps=11, nested=dict(a=3))")
    assert LazyConfig.load(first).train == {"steps": 20, "nested": {"a": 2}}
    assert LazyConfig.load(second).train == {"steps": 11, "nested": {"a": 3}}


@pytest.mark.parametrize(
    "text", ["from .missing import x", "from .base import missing", "1 / 0", "a = (", "from . import z"]
)
def test_b42_a_failing_load_leaves_pythons_import_untouched(write: Any, text: str) -> None:
    write("base.py", "x = 1")
    path = write("main.py", f"from .base import x\n{text}")
    before = (builtins.__import__, list(sys.meta_path), list(sys.path), list(sys.path_hooks), set(sys.modules))
    with pytest.raises(ConfigError):
        LazyConfig.load(path)
    assert (builtins.__import__, sys.meta_path, sys.path, sys.path_hooks, set(sys.modules)) == before


def test_b43_a_resolved_config_is_saved_and_loaded_as_the_same_tree(write: Any) -> None:
    path = write(
        "main.py",
        """
        import torch
        from torch import nn
        from treadle.config import LazyCall as L

        width = 4
        linear = L(nn.Linear)(in_features="${width}", out_features=2, dtype=torch.float64)
        model = L(nn.Sequential)(linear, L(nn.ReLU)())
        optim = L(torch.optim.AdamW)(lr=1e-3, betas=(0.9, 0.95))
        """,
    )
    resolved = LazyConfig.resolved(LazyConfig.load(path))
    LazyConfig.save(resolved, "run/config.yaml")
    loaded = LazyConfig.load("run/config.yaml")
    first, second = instantiate(resolved.model), instantiate(loaded.model)
    assert repr(first) == repr(second)
    assert "in_features=4" in repr(second)
    assert second[0].weight.dtype == first[0].weight.dtype
    assert instantiate(loaded.optim, params=second.parameters()).defaults["betas"] == (0.9, 0.95)
    LazyConfig.save(loaded, "again.yaml")
    assert Path("again.yaml").read_text() == Path("run/config.yaml").read_text()


def test_b43_loading_runs_no_code(write: Any) -> None:
    text = """
    call: {_target_: run_me.start, argument: 1}
    file: {_target_: "run_me.py:start"}
    """
    write("run_me.py", "raise RuntimeError('this was run')")
    before = set(sys.modules)
    loaded = LazyConfig.load(write("config.yaml", text))
    assert set(sys.modules) - before == set()
    LazyConfig.apply_overrides(loaded, ["call.argument=2"])
    LazyConfig.save(loaded, "again.yaml")
    assert loaded.call == {"_target_": "run_me.start", "argument": 2}
    with pytest.raises(ConfigError, match="this was run"):
        instantiate(loaded.file)


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['true']",
        "a: !!python/name:os.system",
        "a: !!python/object:fractions.Fraction {}",
        "a: !!python/module:antigravity",
    ],
)
def test_b43_a_tag_that_would_run_code_is_refused(write: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^bad\.yaml, line 1: .*nothing that would run code$"):
        LazyConfig.load(write("bad.yaml", text))


def test_b44_a_failed_call_names_the_path_the_file_and_the_target_and_keeps_the_cause(write: Any) -> None:
    path = write(
        "configs/x.py",
        """
        import torch
        from treadle.config import LazyCall as L
        model = L(torch.nn.Sequential)(L(torch.nn.Linear)(in_features=2, out_features="two"))
        """,
    )
    with pytest.raises(InstantiationError) as caught:
        instantiate(LazyConfig.load(path).model)
    assert str(caught.value).startswith("model._args_[0] in configs/x.py: calling Linear failed: TypeError: ")
    assert isinstance(caught.value.__cause__, TypeError)
    assert isinstance(caught.value, ConfigError)
