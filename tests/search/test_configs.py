"""Hyperparameters: domains in configs, dicts, lazy calls and trainers, and as text."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.search.support import Judge, Net, search_in
from treadle import nas, search
from treadle.config import ConfigDict, LazyCall, LazyConfig
from treadle.config.yaml_format import from_yaml
from treadle.errors import ConfigError
from treadle.search.space.config_space import config_key, fill_values, find_dimensions, find_domains
from treadle.search.space.domains import Choice, Range, is_domain, parse_domain


def config() -> ConfigDict:
    return ConfigDict(
        {
            "width": 8,
            "optim": LazyCall("torch.optim.AdamW")(lr=nas.log_uniform(1e-4, 1e-2), betas=(0.9, nas.one_of(0.95, 0.99))),
            "model": {"layers": [{"width": nas.integer(1, 4)}, {"width": "${width}"}]},
        }
    )


def test_domains_are_found_with_their_places() -> None:
    assert list(find_dimensions(config())) == ["optim.lr", "optim.betas[1]", "model.layers[0].width"]


def test_values_are_put_into_a_copy_and_everything_else_stays() -> None:
    given = config()
    taken = {"optim.lr": 0.001, "optim.betas[1]": 0.99, "model.layers[0].width": 3}
    decided = fill_values(given, taken)
    assert decided.optim.lr == 0.001
    assert tuple(decided.optim.betas) == (0.9, 0.99)
    assert type(decided.optim.betas) is type(given.optim.betas)
    assert decided.model.layers[0].width == 3
    assert decided.model.layers[1].width == 8
    assert isinstance(given.optim.lr, Range)


def test_plain_dicts_lists_and_tuples_hold_domains_too() -> None:
    tree = {"a": [1, nas.one_of(2, 3)], "b": (nas.one_of("x"), {"c": 4})}
    assert [config_key(place) for place, _ in find_domains(tree)] == ["a[1]", "b[0]"]
    assert fill_values(tree, {"a[1]": 3, "b[0]": "x"}) == {"a": [1, 3], "b": ("x", {"c": 4})}
    assert isinstance(tree["a"], list)
    assert isinstance(tree["a"][1], Choice)


def test_a_frozen_config_can_be_searched(tmp_path: Path) -> None:
    resolved = LazyConfig.resolved(config())
    results = search_in(tmp_path, resolved, lambda made: made.optim.lr, trials=3).run()
    assert len(results["trials"]) == 3


def test_yaml_calls_a_domain_by_name() -> None:
    loaded = ConfigDict(from_yaml("lr: {_target_: treadle.nas.log_uniform, low: 1e-4, high: 1e-2}", "x.yaml"))
    (dimension,) = find_dimensions(loaded).values()
    assert dimension.described() == {"range": [0.0001, 0.01], "step": None, "log": True}
    assert fill_values(loaded, {"lr": 0.005}) == {"lr": 0.005}


def test_value_choices_and_expressions_over_them_are_domains() -> None:
    width = nas.ValueChoice([8, 16], label="width")
    tree = {"first": width, "second": width * 2 + 1, "third": nas.ValueChoice([1, 2])}
    assert list(find_dimensions(tree)) == ["width", "third"]
    assert fill_values(tree, {"width": 16, "third": 2}) == {"first": 16, "second": 33, "third": 2}


def test_a_label_for_different_values_is_refused() -> None:
    tree = {"a": nas.ValueChoice([1, 2], label="x"), "b": nas.ValueChoice([1, 3], label="x")}
    with pytest.raises(
        ConfigError, match=r"^the label 'x' stands for {'choice': \[1, 2\]} and for {'choice': \[1, 3\]}; "
    ):
        nas.Search(tree, lambda at: 1.0)


def test_a_function_is_given_the_config_with_values(tmp_path: Path) -> None:
    seen: list[Any] = []

    def judge(made: ConfigDict) -> float:
        seen.append((type(made), made.optim._target_, made.optim.lr, made.model.layers[0].width))
        return float(made.model.layers[0].width)

    results = search_in(tmp_path, config(), judge, trials=5).run()
    assert all(kind is ConfigDict and name == "torch.optim.AdamW" for kind, name, *_ in seen)
    assert [trial["parameters"]["optim.lr"] for trial in results["trials"]] == [lr for _, _, lr, _ in seen]


def test_a_lazy_call_with_domains_is_built_for_the_trainer(tmp_path: Path) -> None:
    call = LazyCall(nn.Linear)(in_features=2, out_features=nas.integer(2, 5))
    results = search_in(tmp_path, call, lambda layer: layer.out_features, strategy="grid").run()
    assert results["best"]["parameters"] == {"out_features": 5}


def test_architecture_and_hyperparameters_are_searched_together(tmp_path: Path) -> None:
    trainer = LazyCall(Judge)(rate=nas.log_uniform(0.01, 1.0), steps=2)
    results = search_in(tmp_path, Net, trainer, trials=6).run()
    assert {"inner", "trainer.rate"} <= set(results["trials"][0]["parameters"])
    rates = {trial["parameters"]["trainer.rate"] for trial in results["trials"]}
    assert len(rates) == 6
    assert all(len(trial["curve"]) == 2 for trial in results["trials"])


def test_a_registered_trainer_is_used_with_the_arguments_it_was_made_with(tmp_path: Path) -> None:
    results = search_in(tmp_path, Net, Judge(None, rate=0.5, steps=4), strategy="grid").run()
    assert all(len(trial["curve"]) == 4 for trial in results["trials"])


def test_a_space_that_is_an_object_is_not_changed(tmp_path: Path) -> None:
    space = Net()
    before = {name: value.clone() for name, value in space.state_dict().items()}
    search_in(tmp_path, space, Judge, strategy="grid").run()
    assert all((value == before[name]).all() for name, value in space.state_dict().items())


def test_a_trainer_that_is_not_registered_is_refused() -> None:
    class Loose(nas.BaseTrainer):
        def __init__(self, model: Any) -> None:
            pass

        def fit(self) -> None:
            """Do nothing."""

    for given in (Loose, Loose(None)):
        with pytest.raises(
            ConfigError, match=r"Loose is not registered; decorate the class with @nas.register_trainer$"
        ):
            nas.Search(Net, given)


def test_a_model_without_choices_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^there is nothing to decide in Linear; put a LayerChoice, an InputChoice or a V"
    ):
        nas.Search(nn.Linear(1, 1), Judge)


def test_a_lazy_trainer_needs_a_place_for_the_model() -> None:
    with pytest.raises(ConfigError, match=r"^nothing takes no argument by name; the first one must be the model$"):
        nas.Search(Net, LazyCall(nothing)())


def nothing() -> float:
    """Take no model."""
    return 1.0


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("log(1e-4,1e-2)", nas.log_uniform(1e-4, 1e-2)),
        ("log_uniform(1e-4, 1e-2)", nas.log_uniform(1e-4, 1e-2)),
        ("uniform(0, 0.5)", nas.uniform(0, 0.5)),
        ("uniform(0,0.5,step=0.1)", nas.uniform(0, 0.5, 0.1)),
        ("int(2,8)", nas.integer(2, 8)),
        ("integer(2, 8, 2)", nas.integer(2, 8, 2)),
        ("int(1,64,log=true)", nas.integer(1, 64, log=True)),
        ("one_of(64,128)", nas.one_of(64, 128)),
        ("choice(relu,'a, b',null,[1,2],{a:1})", nas.one_of("relu", "a, b", None, [1, 2], {"a": 1})),
        ("one_of((0.9,0.95),(0.9,0.99))", nas.one_of((0.9, 0.95), (0.9, 0.99))),
        ("one_of(a,b,weights=[3,1])", nas.one_of("a", "b", weights=[3, 1])),
    ],
)
def test_domains_are_written_as_text(text: str, domain: Any) -> None:
    assert is_domain(text)
    assert parse_domain(text) == domain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lg(1,2)",
            r"^'lg\(1,2\)' is no domain; write one_of\(a, b, ...\), uniform\(low, high, step=...\), log\(low, high\), ",
        ),
        ("log(1)", r"^'log\(1\)' cannot be read \(.*missing 1 required positional argument: 'high'\); write one_of"),
        ("log(0,1)", r"^'log\(0,1\)': log_uniform\(0.0, 1.0\): by logarithm, a range begins above 0$"),
        ("uniform(0,1,stp=1)", r"unexpected keyword argument 'stp'"),
        ("log(a,b)", r"^'log\(a,b\)' cannot be read"),
    ],
)
def test_text_that_is_no_domain_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_domain(text)


# Without a pack ----------------------------------------------------------------------------------------------


def test_a_search_of_settings_sends_models_and_proxies_by_name_to_the_search_of_networks() -> None:
    with pytest.raises(ConfigError, match=r"^the space is <class .*Net'>; give a config .* searched by nas.Search$"):
        search.Search(Net, Judge)
    with pytest.raises(ConfigError, match=r"^proxy='synflow' must be a function of what is tried$"):
        search.Search({"x": search.one_of(1, 2)}, lambda at: at["x"], proxy="synflow")
    with pytest.raises(ConfigError, match=r"^inherit, keep_weights and proxy are for spaces of networks; this one is"):
        search.Search({"x": search.one_of(1, 2)}, lambda at: at["x"], proxy=lambda built: 0.0)


@pytest.mark.parametrize("place", ["treadle.search", "treadle.nas", "treadle.nas.search", "treadle.nas.search.domains"])
def test_a_file_names_domains_by_every_place_that_they_ever_had(place: str) -> None:
    tree = {"width": {"_target_": f"{place}.integer", "low": 2, "high": 8}}
    assert [(place, domain) for place, domain in find_domains(tree)] == [(("width",), nas.integer(2, 8))]


def test_searching_settings_loads_no_networks() -> None:
    program = "import sys, treadle.search; print([name for name in sys.modules if name.startswith('treadle.nas')])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
