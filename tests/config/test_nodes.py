"""The tree itself: tuples, copies, merging updates, keys that are not there."""

import copy
import pickle
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError

from treadle.config import ConfigDict, ConfigList, ConfigTuple, LazyConfig
from treadle.config import LazyCall as L
from treadle.errors import ConfigError


def config() -> ConfigDict:
    return ConfigDict({"a": (1, (2, [3])), "d": {"x": 1, "items": [(1, 2)]}, "call": L(dict)(size=(4,))})


def kinds(node: Any) -> list[str]:
    """Return the kinds of all containers in a tree, in order."""
    found = [type(node).__name__] if isinstance(node, (ConfigDict, ConfigList)) else []
    if isinstance(node, ConfigDict):
        return found + [kind for key in node for kind in kinds(node[key])]
    return found + [kind for item in node for kind in kinds(item)] if found else []


def through_pickle(node: Any) -> Any:
    return pickle.loads(pickle.dumps(node))  # noqa: S301 - what was just written


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, through_pickle])
def test_copies_keep_the_kinds_of_all_containers(copied: Any) -> None:
    assert kinds(copied(config())) == kinds(config())


def test_a_deep_copy_shares_nothing() -> None:
    first = config()
    second = copy.deepcopy(first)
    second.a[1][1].append(9)
    second.call.size = (5,)
    assert first == config()


def test_tuples_stay_tuples_however_they_come_in() -> None:
    tree = config()
    tree.d["items"].append((3,))
    tree.d["items"].insert(0, (0,))
    tree.d["items"] += [(4,)]
    tree.d["items"][1] = (7, 8)
    assert [type(item) for item in tree.d["items"]] == [ConfigTuple] * 4
    assert [type(item) for item in tree.d["items"] + [(9,)]] == [ConfigTuple] * 5
    assert [type(item) for item in [(9,)] + tree.d["items"]] == [ConfigTuple] * 5
    tree.update(d={"fresh": ((1,), [2])})
    assert kinds(tree.d.fresh) == ["ConfigTuple", "ConfigTuple", "ConfigList"]
    merged = OmegaConf.merge(tree, {"d": {"x": 5}})
    assert isinstance(merged.d.fresh, ConfigTuple)
    assert merged.d.x == 5
    assert repr(tree.a) == "(1, (2, [3]))"


def test_update_merges_plain_mappings_and_replaces_all_else() -> None:
    tree = config()
    tree.update({"d": {"x": 2}}, [("a", 5)], call={"y": 1})
    assert tree == {"a": 5, "d": {"x": 2, "items": [(1, 2)]}, "call": {"y": 1}}
    tree.update(OmegaConf.create({"d": {"x": "${a}"}}))
    assert tree.d.x == 5
    tree.a = 6
    assert tree.d.x == 6


def test_a_key_that_is_not_there_is_an_attribute_error_with_the_nearest() -> None:
    tree = config()
    with pytest.raises(ConfigAttributeError) as caught:
        tree.d.itms  # noqa: B018
    assert str(caught.value) == "d has no key 'itms'; did you mean 'items'?"
    assert not hasattr(tree, "zzz")
    assert getattr(tree, "zzz", 3) == 3
    assert tree.get("zzz", 4) == 4
    with pytest.raises(AttributeError, match="the config has no key 'zzz'; it is empty"):
        ConfigDict().zzz  # noqa: B018


def test_only_a_tree_from_a_file_has_its_keys_fixed(write: Any) -> None:
    tree = config()
    tree.new = 1
    loaded = LazyConfig.load(write("main.py", "empty = {}\ntrain = dict(steps=1, sizes=[1])"))
    with pytest.raises(ConfigError) as caught:
        loaded.train.step = 2
    assert str(caught.value) == (
        "train in main.py has no key 'step'; did you mean 'steps'?; to add a key, assign it inside 'with "
        "omegaconf.open_dict(...):'"
    )
    with pytest.raises(ConfigError, match=r"^empty in main\.py has no key 'x'; it is empty; to add"):
        loaded["empty"]["x"] = 2
    loaded.train.steps = L(dict)(a=1)
    loaded.train.steps.b = 2
    loaded.train.sizes.append(2)
    assert loaded.train == {"steps": {"_target_": dict, "a": 1, "b": 2}, "sizes": [1, 2]}


def test_changing_a_loaded_call_back_to_strictness_of_its_signature(write: Any) -> None:
    loaded = LazyConfig.load(write("main.py", "from treadle.config import LazyCall as L\ncall = L(complex)(real=1)"))
    loaded.call.imag = 2
    loaded.call.pop("real")
    assert loaded.call == {"_target_": complex, "imag": 2}


def test_a_whole_mapping_may_be_an_interpolation_or_none(tmp_path: Any) -> None:
    tree = ConfigDict(
        {"a": {"x": 1}, "b": OmegaConf.create({"link": "${a}"}), "c": DictConfig("${a}"), "d": DictConfig(None)}
    )
    assert (tree.b.link.x, tree.c.x, tree.d) == (1, 1, None)
    LazyConfig.save(tree, tmp_path / "config.yaml")
    assert (tmp_path / "config.yaml").read_text() == "a:\n  x: 1\nb:\n  link: ${a}\nc: ${a}\nd: null\n"
    assert LazyConfig.load(tmp_path / "config.yaml").c.x == 1
