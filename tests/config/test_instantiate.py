"""Calls that are made from a config, and the arguments that are refused before any is made."""

from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, Unpack

import pytest
import torch
from torch import nn

from treadle.config import ConfigDict, InstantiationError, LazyConfig, configurable, instantiate
from treadle.config import LazyCall as L
from treadle.errors import ConfigError


@dataclass
class Size:
    """A dataclass, which OmegaConf would take for a schema."""

    width: int = 1
    tags: Any = None


class Options(TypedDict, total=False):
    """Keyword arguments that a function spells out."""

    warmup: int


def with_options(rate: float, **options: Unpack[Options]) -> dict[str, Any]:
    return {"rate": rate, **options}


def with_anything(**anything: Any) -> dict[str, Any]:
    return anything


def make_adder(first: int) -> Any:
    return lambda second: first + second


def keep(value: Any) -> Any:
    return value


calls: list[str] = []


def record(name: str, after: Any = None) -> str:
    calls.append(name)
    return name


def message(build: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(*arguments, **keywords)
    return str(caught.value)


def test_arguments_given_now_replace_those_in_the_config_which_are_not_built() -> None:
    calls.clear()
    config = L(dict)(a=L(record)(name="inner"), b=2)
    live = object()
    assert instantiate(config, a=live, c=3) == {"a": live, "b": 2, "c": 3}
    assert calls == []
    assert config.a.name == "inner"


def test_none_and_what_is_no_config_come_back_as_they_are() -> None:
    model = nn.Linear(1, 1)
    assert instantiate(None) is None
    assert instantiate(model) is model
    assert instantiate("text") == "text"
    assert instantiate(ConfigDict({"a": (1, [2])})) == {"a": (1, [2])}
    assert instantiate([L(complex)(real=1), (None,)]) == [1 + 0j, (None,)]


def test_live_objects_in_a_config_are_passed_untouched() -> None:
    size, tensor, table = Size(), torch.zeros(2), {1: 2}.items()
    built = instantiate(L(dict)(size=size, kind=Size, tensor=tensor, table=table, dtype=torch.float16))
    assert built["size"] is size
    assert built["kind"] is Size
    assert built["tensor"] is tensor
    assert built["table"] is table
    assert built["dtype"] is torch.float16


def test_a_dataclass_is_a_target_like_any_other() -> None:
    assert instantiate(L(Size)(width=3, tags=("a",))) == Size(3, ("a",))


def test_hydras_keys_mean_what_they_mean_there() -> None:
    built = instantiate(L(dict)(_partial_=True, a=1))
    assert isinstance(built, partial)
    assert built(b=2) == {"a": 1, "b": 2}
    assert instantiate(L("builtins.complex")(1, 2)) == 1 + 2j
    assert instantiate(L(dict)(a=1), _partial_=True)() == {"a": 1}
    unbuilt = instantiate(L(keep)(value={"inner": L(dict)(a="${..n}"), "n": 5}, _recursive_=False))
    assert instantiate(unbuilt["inner"]) == {"a": 5}
    assert instantiate(L(keep)(value=[1], _convert_="all")) == [1]


def test_conversions_to_other_than_plain_containers_are_refused() -> None:
    assert message(instantiate, ConfigDict({"x": L(keep)(value=1, _convert_="none")}).x) == (
        "x._convert_ is 'none', but targets always receive plain dicts, lists and tuples; remove it"
    )


def test_a_target_may_be_built_by_a_call() -> None:
    assert instantiate(L(L(make_adder)(first=1))(second=2)) == 3


def test_the_inside_is_built_first_and_nothing_if_a_name_is_wrong() -> None:
    calls.clear()
    instantiate(L(record)(name="outer", after=[L(record)(name="first"), L(record)(name="second")]))
    assert calls == ["first", "second", "outer"]
    calls.clear()
    wrong = {"_target_": "fractions.Fraction", "top": 1}
    config = {"_target_": record, "name": "outer", "after": [L(record)(name="first"), wrong]}
    assert message(instantiate, config) == (
        "after[1].top: Fraction takes no 'top'; it takes ['numerator', 'denominator']"
    )
    assert calls == []


def test_wrong_arguments_are_found_when_the_call_is_written_down() -> None:
    assert message(L(torch.optim.AdamW), lrr=1) == "lrr: AdamW takes no 'lrr'; did you mean 'lr'?"
    assert message(L(dict), nested=[L(Size)(width=1), {"_target_": Size, "widht": 2}]) == (
        "nested[1].widht: Size takes no 'widht'; did you mean 'width'?"
    )
    assert message(L("torch.optim.AdamW"), lrr=1).endswith("AdamW takes no 'lrr'; did you mean 'lr'?")
    assert message(L(Size), _target_=1) == (
        "LazyCall got '_target_' as an argument; the target is what LazyCall is made with"
    )


def test_wrong_arguments_of_a_config_file_are_found_when_it_is_loaded(write: Any) -> None:
    path = write(
        "configs/x.py",
        """
        import torch
        from treadle.config import LazyCall as L
        optimizer = L(torch.optim.AdamW)(lrr=1e-3)
        """,
    )
    assert message(LazyConfig.load, path) == "optimizer.lrr in configs/x.py: AdamW takes no 'lrr'; did you mean 'lr'?"
    text = "data:\n  test:\n  - {_target_: torch.optim.AdamW, lrr: 1}"
    assert message(LazyConfig.load, write("configs/x.yaml", text)) == (
        "data.test[0].lrr in configs/x.yaml: AdamW takes no 'lrr'; did you mean 'lr'?"
    )


def test_a_config_file_may_mend_an_imported_call_before_it_is_checked(write: Any) -> None:
    write(
        "base.py",
        "import torch\nfrom treadle.config import LazyCall as L\noptim = L(torch.optim.SGD)(lr=1, momentum=0)",
    )
    path = write(
        "main.py",
        """
        import torch
        from .base import optim
        optim._target_ = torch.optim.AdamW
        del optim.momentum
        optim.betas = (0, 0)
        """,
    )
    assert LazyConfig.load(path).optim.betas == (0, 0)


def test_named_options_are_checked_and_open_ones_are_not() -> None:
    assert instantiate(L(with_options)(rate=1, warmup=2)) == {"rate": 1, "warmup": 2}
    assert message(L(with_options), rate=1, wamup=2) == "wamup: with_options takes no 'wamup'; did you mean 'warmup'?"
    assert instantiate(L(with_anything)(whatever=1)) == {"whatever": 1}
    assert message(instantiate, L(Size)(), widht=1) == "widht: Size takes no 'widht'; did you mean 'width'?"


def test_check_finds_every_target_without_calling_any() -> None:
    calls.clear()
    LazyConfig.check({"a": L(record)(name="x")})
    assert calls == []
    assert message(LazyConfig.check, {"a": {"_target_": "fractions.Fracton"}}) == (
        "a._target_: 'fractions.Fracton' cannot be found: fractions has no 'Fracton'; did you mean 'Fraction'?"
    )
    assert message(LazyConfig.check, {"a": {"_target_": "math.pi"}}) == "a._target_: 3.141592653589793 cannot be called"


def test_a_value_that_is_missing_or_leads_nowhere_is_named() -> None:
    config = ConfigDict({"call": L(dict)(a="???", b=1), "other": L(dict)(a="${nowhere}")})
    assert message(instantiate, config.call) == "call.a has no value yet ('???'); give it one"
    assert message(instantiate, config.other) == "other.a: Interpolation key 'nowhere' not found"
    assert message(LazyConfig.resolved, config) == "other.a: Interpolation key 'nowhere' not found"
    config.other.a = 1
    assert message(LazyConfig.resolved, config) == "the config has no value yet ('???') for call.a; give each one"


def test_arguments_for_what_is_no_call_are_refused() -> None:
    assert message(instantiate, 5, a=1) == "instantiate got arguments for 5, which is no lazy call"
    assert message(instantiate, ConfigDict({"x": {"b": 1}}).x, a=1) == (
        "x is no lazy call, and takes no arguments; it needs '_target_' for that"
    )


def test_a_call_that_fails_is_named_once_with_its_own_place() -> None:
    config = ConfigDict({"outer": L(dict)(inner=[L("builtins.int")("x")])})
    with pytest.raises(InstantiationError) as caught:
        instantiate(config)
    assert str(caught.value) == (
        "outer.inner[0]: calling int failed: ValueError: invalid literal for int() with base 10: 'x'"
    )
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(InstantiationError, match=r"^the config: calling Size failed: TypeError: .*"):
        instantiate(L(Size)(1, 2, 3))


def test_a_configurable_class_takes_its_arguments_or_a_config() -> None:
    class Decoder:
        @configurable
        def __init__(self, width: int, layers: int = 1) -> None:
            self.size = (width, layers)

        @classmethod
        def from_config(cls, cfg: Any) -> dict[str, Any]:
            return {"width": cfg.hidden.size, "layers": cfg.layers}

    settings = {"hidden": {"size": 8}, "layers": 2}
    assert instantiate(L(Decoder)(cfg=settings)).size == (8, 2)
    assert instantiate(L(Decoder)(cfg=settings, layers=5)).size == (8, 5)
    assert instantiate(L(Decoder)(width=3)).size == (3, 1)
    assert Decoder(ConfigDict(settings)).size == (8, 2)
    assert Decoder(4).size == (4, 1)


def test_a_configurable_class_without_from_config_says_so() -> None:
    class Bare:
        @configurable
        def __init__(self, width: int) -> None:
            pass

    assert message(Bare, cfg={}) == "Bare was given a config, but has no class method from_config(cfg) to read it"
    assert message(configurable, keep).startswith("configurable is for __init__, got <function keep")


def rated(rate: float, *, count: "int | None" = None, part=0.5, loud=0, either: bool | int = 1, quiet: int = False):  # type: ignore[no-untyped-def]
    """Take numbers of every kind: annotated, in words, and by their defaults."""
    return rate, count, part, loud, either, quiet


@pytest.mark.parametrize("line", ["rate: off", "rate: 1\n  count: yes", "rate: 1\n  part: no", "rate: ${none}"])
def test_a_truth_value_where_a_number_is_due_is_refused_by_name(write: Any, line: str) -> None:
    path = write("main.yaml", f"none: no\ncall:\n  _target_: {__name__}.rated\n  {line}\n")
    name = line.split()[-2].rstrip(":")
    with pytest.raises(ConfigError) as caught:
        instantiate(LazyConfig.load(path).call)
    assert str(caught.value) == (
        f"call.{name} in main.yaml is {line.endswith('yes')}, but rated takes a number there; YAML reads `on`, `yes`, "
        "`off` and `no` as truth values"
    )


def test_a_truth_value_is_taken_where_it_may_be_meant() -> None:
    assert instantiate(L(rated)(rate=1, loud=True, either=False, quiet=True)) == (1, None, 0.5, True, False, True)
    with pytest.raises(ConfigError, match=r"lr is False, but SGD takes a number there"):
        instantiate({"_target_": "torch.optim.SGD", "lr": False}, params=[torch.nn.Parameter(torch.ones(1))])
