"""Overrides: what they change, and what is said where they cannot."""

from typing import Any

import pytest
import torch

from treadle.config import ConfigDict, ConfigTuple, LazyConfig, instantiate
from treadle.config import LazyCall as L
from treadle.errors import ConfigError


def config() -> ConfigDict:
    return ConfigDict(
        {
            "optim": L(torch.optim.AdamW)(lr=0.1, eps=1e-8),
            "train": {"steps": 10, "amp": {"enabled": False, "dtype": "fp16"}, "none": None},
            "data": {"test": [{"name": "a"}, {"name": "b"}], "sizes": (1, 2), "by_number": {1: "one", "x": 0}},
            "link": "${train}",
        }
    )


def apply(*overrides: str) -> Any:
    return LazyConfig.apply_overrides(config(), list(overrides))


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        apply(*overrides)
    return str(caught.value)


def test_values_change_in_place_and_in_order() -> None:
    given = config()
    assert LazyConfig.apply_overrides(given, ["train.steps=1", "train.steps=2", "train.none=3"]) is given
    assert (given.train.steps, given.train.none) == (2, 3)


def test_items_of_lists_and_tuples_change_by_index() -> None:
    changed = apply("data.test.0.name=c", "data.test[1].name=d", "data.sizes.1=5", "+data.test.2={name:e}")
    assert changed.data.test == [{"name": "c"}, {"name": "d"}, {"name": "e"}]
    assert changed.data.sizes == (1, 5)
    assert isinstance(changed.data.sizes, ConfigTuple)
    assert apply("~data.test.0").data.test == [{"name": "b"}]
    assert apply("data.by_number.1=uno").data.by_number == {1: "uno", "x": 0}


def test_a_mapping_changes_only_the_keys_that_it_names() -> None:
    assert apply("train.amp={enabled:true}").train.amp == {"enabled": True, "dtype": "fp16"}
    assert apply("optim={lr:0.5}").optim.lr == 0.5
    assert message("train.amp={enabld:true}") == (
        "unknown key 'train.amp.enabld' in the config; did you mean 'train.amp.enabled'? "
        "(+train.amp.enabld=... adds it)"
    )
    assert apply("+train.amp={level:2}").train.amp == {"enabled": False, "dtype": "fp16", "level": 2}


def test_a_mapping_with_a_target_replaces() -> None:
    changed = apply("optim={_target_: builtins.dict, rate: 1}")
    assert instantiate(changed.optim) == {"rate": 1}


def test_two_plus_signs_add_or_change() -> None:
    assert apply("++train.steps=5", "++train.fresh=6").train.fresh == 6


def test_removing_may_insist_on_a_value() -> None:
    assert "steps" not in apply("~train.steps=10").train
    assert message("~train.steps=11") == "'~train.steps=11': train.steps is 10, not 11; it was not removed"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "train.steps",
            "'train.steps' is no override; write key=value, +key=value to add a key, or ~key to remove one",
        ),
        ("=5", "'=5' is no override; write key=value, +key=value to add a key, or ~key to remove one"),
        ("~stepz", "unknown key 'stepz' in the config; the config has ['optim', 'train', 'data', 'link']"),
        ("~train.step", "unknown key 'train.step' in the config; did you mean 'train.steps'?"),
        (
            "train.xyz=1",
            "unknown key 'train.xyz' in the config; train has ['steps', 'amp', 'none'] (+train.xyz=... adds it)",
        ),
        (
            "xyz.abc=1",
            "unknown key 'xyz.abc' in the config; the config has ['optim', 'train', 'data', 'link'] "
            "(+xyz.abc=... adds it)",
        ),
        (
            "optim.betas=(0.9,0.95)",
            "unknown key 'optim.betas' in the config; AdamW takes it: +optim.betas=... adds it",
        ),
        ("+optim.lrr=1", "optim.lrr: AdamW takes no 'lrr'; did you mean 'lr'?"),
        ("+train.steps=1", "'+train.steps=1' adds a key that the config has already; write train.steps=1 to change it"),
        ("train.steps.deep=1", "'train.steps.deep=1': train.steps is 10, and nothing can be set below that"),
        ("+train.none.deep=1", "'+train.none.deep=1': train.none is None, and nothing can be set below that"),
        ("link.steps=1", "'link.steps=1': link is '${train}'; override what it refers to instead"),
        (
            "data.test.2={name:c}",
            "unknown key 'data.test.2' in the config; did you mean 'data.test.1' or 'data.test.0' or 'data.test'? "
            "(+data.test.2=... adds it)",
        ),
        ("+data.test.5=1", "'+data.test.5=1': data.test is a list of 2 items"),
        ("+data.test.x=1", "'+data.test.x=1': data.test is a list of 2 items"),
        ("train.steps=[1,2", "'train.steps=[1,2' cannot be read; put quotes around text: 'train.steps=\"[1,2\"'"),
        (
            "train.steps=1,2",
            "'train.steps=1,2' lists several values; write [...] for a list, (...) for a tuple, or quotes for text: "
            "'train.steps=\"1,2\"'",
        ),
        (
            "train.steps=5 (five)",
            "'train.steps=5 (five)' cannot be read; put quotes around text: 'train.steps=\"5 (five)\"'",
        ),
    ],
)
def test_an_override_that_cannot_be_meant_is_explained(override: str, expected: str) -> None:
    assert message(override) == expected


def test_the_file_is_named(write: Any) -> None:
    path = write(
        "configs/x.py",
        "import torch\nfrom treadle.config import LazyCall\noptimizer = LazyCall(torch.optim.AdamW)(lr=1)",
    )
    with pytest.raises(ConfigError) as caught:
        LazyConfig.apply_overrides(LazyConfig.load(path), ["+optimizer.lrr=1"])
    assert str(caught.value) == "optimizer.lrr in configs/x.py: AdamW takes no 'lrr'; did you mean 'lr'?"
    with pytest.raises(
        ConfigError, match=r"^unknown key 'optimizer\.rl' in configs/x\.py; did you mean 'optimizer\.lr' or"
    ):
        LazyConfig.apply_overrides(LazyConfig.load(path), ["optimizer.rl=1"])


def test_all_overrides_are_applied_or_none() -> None:
    given = config()
    with pytest.raises(ConfigError):
        LazyConfig.apply_overrides(given, ["train.steps=5", "+train.extra=1", "nope=1"])
    assert given == config()


def test_one_text_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        LazyConfig.apply_overrides(config(), "a=1")
    assert str(caught.value) == "overrides must be a list of texts, got 'a=1'; write ['a=1']"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'(1,2)'", "(1,2)"),
        ('"it\'s (1, 2)"', "it's (1, 2)"),
        ("((1, 2), [3, (4,)])", ((1, 2), [3, (4,)])),
        ("(a b, 'c,d', null)", ("a b", "c,d", None)),
        (r"\(a\)", "(a)"),
        ("str(5)", "5"),
        ("[${train.steps},(${train.steps})]", [10, (10,)]),
        ("./output", "./output"),
        ("f(x=1)", "f(x=1)"),
    ],
)
def test_tuples_nest_and_quotes_escapes_and_casts_stay_what_they_are_in_hydra(text: str, expected: Any) -> None:
    changed = LazyConfig.apply_overrides(config(), [f"+value={text}"])
    assert instantiate(changed.value) == expected
