"""The benchmarks of architecture search run, in tiny sizes, and write what they find."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.nas import darts as nas_darts
from benchmarks.nas import digits as nas_digits
from benchmarks.nas.darts_hand import HandSupernet, make_step
from treadle import nas
from treadle.nas.zoo import DartsSpace
from treadle.precision.tf32 import SinglePrecision


@pytest.fixture(autouse=True)
def rounding() -> Iterator[None]:
    """Leave the rounding of products, which a benchmark sets for its process, to the next test as it was."""
    with SinglePrecision("highest", "highest"):
        yield


def test_the_space_of_digits_has_625_networks() -> None:
    assert nas.size(nas_digits.DigitsSpace()) == 625


def test_networks_are_ranked_and_equal_ones_share_a_rank() -> None:
    first, second, third = (nas.key_of({"a": place}) for place in range(3))
    networks = {first: 90.0, second: 99.0, third: 90.0}
    assert nas_digits.rank_of({"a": 1}, networks) == (1, 99.0)
    assert nas_digits.rank_of({"a": 0}, networks) == nas_digits.rank_of({"a": 2}, networks) == (2, 90.0)


@pytest.mark.slow
def test_the_table_goes_on_where_it_stopped_and_searches_are_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nas_digits, "TRAINED", 128)
    table = tmp_path / "table.json"
    threads = torch.get_num_threads()
    for limit in ("1", "2"):
        nas_digits.main(["table", "--table", str(table), "--epochs", "1", "--limit", limit])
    assert len(json.loads(table.read_text())["networks"]) == 2
    every = {nas.key_of(architecture): 50.0 for architecture in nas.enumerate(nas_digits.DigitsSpace())}
    table.write_text(json.dumps({"epochs": 1, "networks": every}))
    found = [str(tmp_path / f"{name}.json") for name in ("proxyless", "darts")]
    for name, path in zip(("ProxylessTrainer", "DartsTrainer"), found, strict=True):
        nas_digits.main(["search", "--found", path, "--epochs", "1", "--seeds", "1", "--only", name])
    nas_digits.main(["report", "--table", str(table), "--found", *found])
    output = capsys.readouterr().out
    assert "| DartsTrainer | 1 | 1 | 50.00 |" in output
    assert "| a random network | | 1 | 50.00 | 0 | 91.7 |" in output
    torch.set_num_threads(threads)


def test_the_loop_by_hand_has_the_space_of_ours() -> None:
    ours, by_hand = DartsSpace(4, 3, in_channels=1, affine=False), HandSupernet(4, 3)
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert sum(parameter.numel() for parameter in by_hand.weights()) == count
    step = make_step(by_hand, half=False)
    before = by_hand.normal.detach().clone()
    batch = (torch.randn(2, 1, 8, 8), torch.tensor([1, 2]))
    step(batch, batch)
    assert not torch.equal(by_hand.normal, before)


@pytest.mark.slow
def test_the_benchmark_of_the_darts_space_runs_and_keeps_its_findings(tmp_path: Path) -> None:
    nas_darts.main(["--smoke", "--out", str(tmp_path), "--only", "hand-written", "graph, TF32"])
    found: dict[str, Any] = json.loads((tmp_path / "nas_darts.json").read_text())
    assert found["missing"] == {}
    assert set(found) >= {"parity", "steps", "search", "train", "times as fast"}
    assert found["parity"]["eager"]["agree"]
    assert found["parity"]["eager"]["moved"] > 10 * found["parity"]["eager"]["architecture"]
    assert (
        found["search"]["architecture"]["normal/op_2_0"]
        in nas.Space(DartsSpace(4, 3)).decisions["normal/op_2_0"].candidates
    )
    assert 0 <= found["train"]["test_accuracy"] <= 100
