"""One-shot search on a GPU: the same call works, recorded steps too, and they find what steps one by one find."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.nas.small import make, small
from treadle import nas

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]
KINDS = [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.ProxylessTrainer, nas.EnasTrainer, nas.SposTrainer]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_darts_10_every_search_runs_on_a_gpu(kind: Any, precision: str) -> None:
    trainer = make(kind, device="cuda", precision=precision)
    trainer.fit()
    assert trainer.export()["layer"] in ("deep", "flat", "none")
    assert {value.device.type for value in trainer.supernet.state_dict().values()} == {"cuda"}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nas.DartsTrainer, {}),
        (nas.DartsTrainer, {"unrolled": True}),
        (nas.DartsTrainer, {"precision": "bf16"}),
        (nas.GumbelDartsTrainer, {}),
    ],
    ids=["darts", "second order", "bf16", "gumbel"],
)
def test_a_recorded_search_finds_what_steps_one_by_one_find(kind: Any, options: dict[str, Any]) -> None:
    found = []
    for execution in ("eager", "graph"):
        trainer = make(kind, small(dropout=0.0), num_epochs=6, device="cuda", execution=execution, **options)
        trainer.fit()
        found.append(trainer.supernet.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(
            found[1][name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture
def double() -> Iterator[None]:
    """Has everything calculated in double precision: what is rounded otherwise draws other paths in the end."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kind", [nas.ProxylessTrainer, nas.SposTrainer], ids=lambda kind: kind.__name__)
def test_paths_that_are_drawn_are_those_of_the_cpu(kind: Any) -> None:
    found = []
    for device in ("cpu", "cuda"):
        trainer = make(kind, small(dropout=0.0), device=device)
        trainer.fit()
        found.append(trainer.supernet.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name].cpu(), value, rtol=1e-9, atol=1e-9)
