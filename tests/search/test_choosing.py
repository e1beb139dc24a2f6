"""Duplicates, retries, giving up, zero-cost proxies, inherited weights: what becomes of proposals and of failures."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.search.support import Judge, Net, iter_count, letters, noisy, numbers, search_in, vowels
from treadle import nas
from treadle.errors import ConfigError
from treadle.nas.classic.network_space import Network, NetworkWeights, load_matching_weights
from treadle.search import run as running
from treadle.search.store.history import Outcome


def test_a_duplicate_is_replayed_from_its_stored_value_and_does_not_count(tmp_path: Path) -> None:
    ran: Counter[str] = Counter()

    def counted(taken: dict[str, str]) -> float:
        ran["".join(taken.values())] += 1
        return noisy(taken)

    results = search_in(tmp_path, letters(2, "ab"), counted, trials=4).run()
    assert set(ran.values()) == {1}
    assert len(ran) == 4
    replays = [trial for trial in results["trials"] if "replayed_from" in trial]
    assert replays
    assert len(results["trials"]) == 4 + len(replays)
    for trial in replays:
        first = results["trials"][trial["replayed_from"]]
        assert (trial["values"], trial["parameters"]) == (first["values"], first["parameters"])
        assert "replayed_from" not in first


def test_duplicates_run_again_where_that_is_wanted(tmp_path: Path) -> None:
    results = search_in(tmp_path, letters(1, "a"), noisy, trials=3, duplicates="run").run()
    assert len({trial["values"]["default"] for trial in results["trials"]}) == 3


def test_a_search_that_finds_nothing_new_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "PATIENCE", 5)
    space = {"x0": nas.one_of("a", "b", weights=[1, 0])}  # the other one is never drawn
    with caplog.at_level(logging.INFO):
        results = search_in(tmp_path, space, vowels, trials=50).run()
    assert [trial.get("replayed_from") for trial in results["trials"]] == [None, 0, 0, 0, 0, 0]
    assert "the last 5 proposals had been tried before; the search ends here" in caplog.messages
    assert search_in(tmp_path, space, vowels, trials=50).run() == results


@pytest.mark.parametrize(
    ("space", "count"),
    [
        ({"x": nas.one_of("a", "b"), "y": nas.integer(1, 3)}, 6),
        ({"x": nas.uniform(0, 1, step=0.5)}, 3),
        (Net, 4),  # two of the three layers, and two activations of the third
    ],
    ids=["values", "steps", "nested"],
)
def test_a_search_ends_when_everything_there_is_was_tried(tmp_path: Path, space: Any, count: int) -> None:
    results = search_in(tmp_path, space, lambda taken: 1.0, trials=50).run()
    tried = [trial["parameters"] for trial in results["trials"] if "replayed_from" not in trial]
    assert len(tried) == len({nas.key_of(one) for one in tried}) == count
    assert "replayed_from" not in results["trials"][-1]


def flaky(fails: int, kind: type[Exception] = RuntimeError) -> Any:
    """Return a function whose first calls fail."""
    count = iter_count()

    def judge(taken: Any) -> float:
        if next(count) < fails:
            raise kind("not now")
        return 1.0

    return judge


def test_a_failed_trial_is_kept_and_run_again_with_the_same_parameters(tmp_path: Path) -> None:
    results = search_in(tmp_path, trainer=flaky(2), trials=2, retries=2).run()
    first, second, third, last = results["trials"]
    assert [trial["state"] for trial in results["trials"]] == ["failed", "failed", "complete", "complete"]
    assert [trial.get("retry_of") for trial in results["trials"]] == [None, 0, 0, None]
    assert first["parameters"] == second["parameters"] == third["parameters"] != last["parameters"]
    assert "not now" in first["error"]["traceback"]


def test_retries_come_to_an_end(tmp_path: Path) -> None:
    results = search_in(tmp_path, letters(4), flaky(3), trials=2, retries=1).run()
    assert [trial["state"] for trial in results["trials"]] == ["failed", "failed", "failed", "complete"]
    assert [trial.get("retry_of") for trial in results["trials"]] == [None, 0, None, 2]


@pytest.mark.parametrize("kinds", [[OSError], ["OSError", "ValueError"]], ids=str)
def test_only_failures_of_certain_kinds_are_run_again(tmp_path: Path, kinds: Any) -> None:
    again = search_in(tmp_path / "a", trainer=flaky(1, OSError), trials=1, retries=3, retry_on=kinds).run()
    assert [trial["state"] for trial in again["trials"]] == ["failed", "complete"]
    never = search_in(tmp_path / "b", trainer=flaky(1, KeyError), trials=1, retries=3, retry_on=kinds).run()
    assert [trial["state"] for trial in never["trials"]] == ["failed"]


def test_a_search_gives_up_after_failures_in_a_row_and_goes_on_when_they_are_mended(tmp_path: Path) -> None:
    with pytest.raises(nas.SearchError) as given_up:
        search_in(tmp_path, trainer=flaky(100), trials=20, max_failures=3).run()
    text = str(given_up.value)
    assert text.startswith("the last 3 trials failed, trial 2 with RuntimeError: not now\nTraceback")
    assert text.endswith(
        "Mend it and start the search again: it resumes (max_failures=None lets it continue in any case)"
    )
    results = search_in(tmp_path, trainer=vowels, trials=6, retries=1).run()
    assert len(numbers(results)) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, r"^retries=-1 must be a whole number from 0 up$"),
        ({"retries": 1, "retry_on": [3]}, r"^retry_on has 3; give classes of errors, or their names$"),
        ({"proxy": "synflow"}, r"^proxy='synflow': synflow needs the arguments \['inputs'\], got \[\]$"),
        (
            {"proxy": "sinflow"},
            r"^proxy='sinflow' must be a function of the network, or a name out of \['synflow', 'grad",
        ),
        ({"inherit": True}, r"^inherit, keep_weights and proxy are for spaces of networks; this one is a config$"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nas.Search(letters(), vowels, **options)


def linear(*rows: list[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def test_synflow_is_the_sum_over_all_paths_with_positive_weights_once_per_layer() -> None:
    network = nn.Sequential(linear([1.0, -2.0], [3.0, 0.0]), linear([-1.0, 1.0]))
    # With ones as input: |1|+|-2| = 3 and |3| = 3 reach the second layer, whose weights are 1 and 1: the output is 6,
    # and each of the two layers contributes 6.
    assert nas.synflow(network, torch.randn(4, 2)) == pytest.approx(12.0)
    assert nas.synflow(network, (2,)) == pytest.approx(12.0)
    assert network[0].weight.tolist() == [[1.0, -2.0], [3.0, 0.0]]
    assert network.training


def test_synflow_leaves_batch_norm_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    nas.synflow(network, (2,))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_gradient_norm_is_that_of_autograd() -> None:
    network, inputs = linear([2.0, 0.0]), torch.tensor([[3.0, 4.0]])
    # The loss is the output itself, so its gradient is the input, of norm 5.
    assert nas.gradient_norm(network, inputs, None, lambda output, target: output.sum()) == pytest.approx(5.0)
    assert network.weight.grad is None


def test_the_gradient_norm_leaves_buffers_as_they_were() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    nas.gradient_norm(network, torch.randn(8, 2), None, lambda output, target: output.square().mean())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_parameters_are_counted() -> None:
    assert nas.parameter_count(nn.Linear(3, 2)) == 8


def test_a_network_without_weights_has_no_proxy() -> None:
    with pytest.raises(ConfigError, match=r"^ReLU has nothing to train, so no proxy says anything about it$"):
        nas.synflow(nn.ReLU(), (2,))


@pytest.mark.parametrize(
    "proxy",
    [nas.parameter_count, ("parameter_count", {}), ("synflow", {"inputs": (2,)})],
    ids=["own", "named", "synflow"],
)
def test_of_several_proposals_the_proxy_chooses_the_one_to_try(tmp_path: Path, proxy: Any) -> None:
    results = search_in(tmp_path, Net, Judge, trials=1, proxy=proxy, proxy_pool=30).run()
    (trial,) = results["trials"]
    assert "proxy_score" in trial
    if proxy != ("synflow", {"inputs": (2,)}):
        # 12 + 10 weights around, and 20 in the layer of the choice; skipping has none.
        assert (trial["proxy_score"], trial["parameters"]["inner"] != "skip") == (42.0, True)


def test_a_search_with_a_proxy_is_the_same_every_time(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "proxy": ("synflow", {"inputs": (2,)}),
        "proxy_pool": 3,
        "trials": 4,
        "duplicates": "run",
    }
    one, two = (search_in(tmp_path / name / "search", Net, Judge, **options).run() for name in "ab")
    assert [trial["parameters"] for trial in one["trials"]] == [trial["parameters"] for trial in two["trials"]]
    assert [trial["proxy_score"] for trial in one["trials"]] == [trial["proxy_score"] for trial in two["trials"]]


def test_weights_go_to_the_layers_of_the_same_name_and_shape(tmp_path: Path) -> None:
    one, two = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    Network(None, {}, keep=tmp_path / "x.safetensors").leave(one)
    other = two[1].weight.clone()
    assert load_matching_weights(two, tmp_path / "x.safetensors") == ["0.weight", "0.bias"]
    assert torch.equal(two[0].weight, one[0].weight)
    assert torch.equal(two[1].weight, other)


def test_the_nearest_network_hands_its_weights_on(tmp_path: Path) -> None:
    outcomes = [
        Outcome(0, {"a": 1, "b": 1}, (5.0,)),
        Outcome(1, {"a": 1, "b": 2}, (4.0,)),
        Outcome(2, {"a": 1, "b": 2}, (3.0,)),
        Outcome(3, {"a": 9, "b": 9}, (0.0,)),
    ]
    weights = NetworkWeights(tmp_path, inherit=True)
    assert weights.nearest({"a": 1, "b": 2}, None, outcomes) is None
    for number in (0, 1, 2, 3):
        weights.file(number).touch()
    assert weights.nearest({"a": 1, "b": 2}, None, outcomes) == 2  # as similar as number 1, and better
    assert weights.nearest({"a": 1, "b": 1, "c": 0}, None, outcomes) == 0
    assert weights.nearest({"a": 9, "b": 9}, None, outcomes) == 3


def test_children_begin_with_the_weights_of_their_parents(tmp_path: Path) -> None:
    begins: list[Any] = []

    def judge(network: nn.Module) -> float:
        first = dict(network.named_parameters())["first.weight"]
        begins.append(first.detach().clone())
        with torch.no_grad():
            first.add_(1.0)
        return 1.0

    options: dict[str, Any] = {"strategy": nas.Evolution(2, 1), "inherit": True, "duplicates": "run", "trials": 5}
    search = search_in(tmp_path, Net, judge, **options)
    trials = search.run()["trials"]
    assert "inherits_from" not in trials[0]
    assert trials[1]["inherits_from"] == 0
    for trial in trials[2:]:
        assert trial["inherits_from"] == trial["parent"]
    for trial in trials[1:]:
        assert torch.equal(begins[trial["number"]], begins[trial["inherits_from"]] + 1.0)


def test_the_best_network_has_the_weights_that_it_was_trained_to(tmp_path: Path) -> None:
    def judge(network: nn.Module) -> float:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(2.0)
        return 1.0

    search = search_in(tmp_path, Net, judge, trials=2, keep_weights=True)
    with pytest.raises(nas.SearchError, match=r"^no trial is complete yet; run the search first$"):
        search.best_network()
    search.run()
    assert all((parameter == 2.0).all() for parameter in search.best_network().parameters())
    without = search_in(tmp_path, Net, judge, trials=2)
    with pytest.raises(nas.SearchError, match=r"^weights were not kept; make the search with keep_weights=True$"):
        without.best_network()


def test_on_trial_hears_of_every_end(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    results = search_in(tmp_path, letters(2, "ab"), flaky(1), trials=4, retries=1, on_trial=heard.append).run()
    assert heard == results["trials"]


def test_no_trial_begins_after_the_time_is_up(tmp_path: Path) -> None:
    assert search_in(tmp_path, timeout=0.0).run()["trials"] == []


def test_trials_know_their_numbers(tmp_path: Path) -> None:
    seen: list[Any] = []

    def judge(taken: Any) -> float:
        seen.append(nas.current_trial())
        return noisy(taken)

    search_in(tmp_path, trainer=judge, trials=3).run()
    assert seen == [0, 1, 2]
    assert nas.current_trial() is None
