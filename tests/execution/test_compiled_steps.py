"""Whole runs with compiled steps: the numbers of ordinary ones, and the same bits after a resume."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.execution.quick_compiler import quick_compiler
from tests.execution.taped import data
from tests.interrupting import starts_of
from treadle import Compile, Trainer
from treadle.phase import Phase

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),  # torch's own, where it loads its compiler
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch's own, where it looks at its inputs
]


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    # A bias before a batch norm would have a gradient of nothing but rounding, which AdamW makes as large as any other.
    return nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 3)
    )


def train(execution: str, *, dropout: float = 0.0, trainer: Any = None, kind: Any = Trainer, **run: Any) -> Trainer:
    model = network(dropout)
    optimizer = optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    built: Trainer = kind(
        model, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=3, execution=execution, **(trainer or {})
    )
    built.train(data(), **{"num_epochs": 2, "per_device_batch_size": 16, **run})
    return built


def assert_close(one: Trainer, other: Trainer, tolerance: float) -> None:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture
def quick() -> Iterator[Any]:
    """The compiler that generates no code; what it counts."""
    with quick_compiler() as counts:
        yield counts


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation and clipping": {"gradient_accumulation_steps": 2, "clip_norm": 0.1},
    "schedule": {"create_scheduler_fn": lambda o: optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step))},
    "bf16": {"trainer": {"precision": "bf16"}},
    "fp16": {"trainer": {"precision": "fp16"}},
    "skipping": {"trainer": {"on_nonfinite": "skip"}},
    "module by module": {"trainer": {"compile": Compile(modules=["0", "1", "4"])}},
}


@pytest.mark.parametrize("case", CASES)
def test_compiled_steps_give_the_numbers_of_ordinary_ones(case: str, quick: Any) -> None:
    compiled = train("compile", **CASES[case])
    assert quick["unique_graphs"] > 0
    options = {name: value for name, value in CASES[case].get("trainer", {}).items() if name != "compile"}
    eager = train("eager", **{**CASES[case], "trainer": options})
    assert_close(eager, compiled, 1e-5 if "precision" not in options else 1e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_run_that_is_stopped_and_resumed_ends_in_the_same_bits(
    precision: str, quick: Any, tmp_path: Path
) -> None:
    options = {"precision": precision}
    whole = train("compile", dropout=0.5, trainer=options)
    options["run_dir"] = str(tmp_path / "run")
    train("compile", dropout=0.5, trainer=options, max_steps=4, save_every="1 step")
    resumed = train("compile", dropout=0.5, trainer=options, resume="auto")
    assert starts_of(tmp_path / "run") == [0, 4]
    for mine, theirs in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.slow
def test_the_real_compiler_resumes_in_the_same_bits(tmp_path: Path) -> None:
    torch._dynamo.reset()
    run = {"per_device_batch_size": 20}  # one shape: each takes the compiler seconds
    whole, eager = train("compile", **run), train("eager", **run)
    assert_close(eager, whole, 1e-4)
    folder = {"run_dir": tmp_path / "run"}
    train("compile", trainer=folder, max_steps=3, save_every="1 step", **run)
    resumed = train("compile", trainer=folder, resume="auto", **run)
    assert starts_of(tmp_path / "run") == [0, 3]
    for mine, theirs in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_every_phase_has_a_compilation_of_its_own(quick: Any) -> None:
    class Alternating(Trainer):
        def phases(self, epoch: int) -> Any:
            verb = self.first_loss if epoch % 2 == 0 else self.second_loss
            yield Phase(verb.__name__, self.streams["train"], verb, self.optimizer)

        def first_loss(self, batch: Any) -> dict[str, Any]:
            return self.calculate_train_batch_loss(batch)

        def second_loss(self, batch: Any) -> dict[str, Any]:
            output = self.calculate_train_batch_loss(batch)
            return {**output, "loss": output["loss"] + 0.1 * output["model_outputs"].square().mean()}

    compiled = train("compile", kind=Alternating, per_device_batch_size=20)
    assert quick["unique_graphs"] == 2
    assert_close(train("eager", kind=Alternating, per_device_batch_size=20), compiled, 1e-5)
