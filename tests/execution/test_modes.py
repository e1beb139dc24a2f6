"""Ways of execution and of compilation that are refused when a trainer is built."""

from typing import Any

import pytest
import torch
from torch import nn, optim

from treadle import Compile, Trainer
from treadle.errors import ConfigError
from treadle.execution import Execution, check_execution


def build(**options: Any) -> Trainer:
    model = nn.Linear(2, 1)
    return Trainer(model, nn.MSELoss(), optim.SGD(model.parameters(), lr=0.1), device="cpu", **options)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"execution": "graphs"}, "execution='graphs' is unknown; did you mean 'graph'?"),
    "unknown": (
        {"execution": "fast"},
        "execution='fast' is unknown; use one of ('eager', 'compile', 'graph', 'auto')",
    ),
    "graph on a CPU": (
        {"execution": "graph"},
        "execution='graph' records the step on a CUDA device, and this run is on cpu; use execution='compile' here, or "
        "'auto' to record wherever it is possible",
    ),
    "misspelt mode": ({"compile": "max-autotun"}, "compile: the mode 'max-autotun' is unknown; did you mean 'max-au"),
    "no mode": ({"compile": 3}, "compile=3; pass True, a mode of torch.compile, or treadle.Compile(...)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_when_the_trainer_is_built(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Asking torch for its modes takes seconds.
    monkeypatch.setattr("treadle.execution.compiled._modes_of_torch", dict)
    options, message = MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        build(**options)
    assert str(caught.value).startswith(message)


def test_a_mode_that_only_this_version_of_torch_has_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.execution.compiled._modes_of_torch", lambda: {"lite": {}})
    assert Compile(mode="lite").describe() == "lite"


def test_a_mode_and_options_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="mode='default' and options= are both given; a mode is a set of options"):
        Compile(mode="default", options={"max_autotune": True})


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_mode_that_records_by_itself_is_refused_inside_of_a_recording(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"compile='{mode}' records CUDA graphs of its own, .* use compile=True or"):
        check_execution("graph", torch.device("cuda"), Compile(mode=mode))
    check_execution("compile", torch.device("cuda"), Compile(mode=mode))


def test_auto_is_eager_on_a_cpu_in_a_run_too_short_for_the_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    ends = []
    for execution in ("auto", "eager"):
        torch.manual_seed(0)
        trainer = build(execution=execution, callbacks=(), seed=0)
        trainer.train(data, num_epochs=6)
        assert type(trainer.this_run.execution) is Execution
        assert trainer.progress.step == 6
        ends.append(trainer.model.weight)
    assert torch.equal(*ends)
    assert "execution=" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "compiled"), [({}, False), ({"compile": True}, True), ({"execution": "compile"}, True)]
)
def test_a_trainer_says_whether_it_compiles(options: dict[str, Any], compiled: bool) -> None:
    assert build(**options).is_compiled is compiled
