"""Processes that choose how their updates are made do it together."""

import pytest
import torch

from tests.parallel.conftest import Launch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", ["measured", "ragged", "hindered"])
def test_processes_choose_the_same_in_the_same_update(launched: Launch, scenario: str) -> None:
    first, second = launched("choosing", processes=2)(scenario)
    for name in ("chosen", "step", "milliseconds"):
        assert first[name] == second[name]
    assert torch.equal(first["weights"], second["weights"])
    assert first["step"] == 3


def test_what_is_measured_is_that_of_the_slowest_and_leaves_no_trace(launched: Launch) -> None:
    reports = launched("choosing", processes=2)
    first, _ = reports("measured")
    # One of them waits 4 ms in each step, eager or compiled, and the other for its gradients.
    assert len(first["milliseconds"]) == 2
    assert min(first["milliseconds"]) >= 4
    torch.testing.assert_close(first["weights"], reports("eager")[0]["weights"], rtol=1e-12, atol=1e-12)


def test_what_the_data_of_one_process_rules_out_the_other_does_not_do(launched: Launch) -> None:
    first, second = launched("choosing", processes=2)("hindered")
    assert first["chosen"] == "eager"
    assert first["reason"] == "the data of another process rules other ways out"
    assert second["reason"].startswith("a batch holds a object; give")


@pytest.mark.parametrize("plan", ["DDP", "FSDP2"])
def test_updates_of_several_processes_are_not_recorded_and_the_reason_is_said(launched: Launch, plan: str) -> None:
    reason = "with several processes gradients are exchanged inside of the step; use one process"
    for report in launched("choosing", processes=2)("unrecorded"):
        asked, tried = report[f"{plan} True"], report[f"{plan} False"]
        assert asked == {"refused": f"execution='graph' cannot record this step: {reason}", "steps": 0}
        assert tried == {"refused": reason, "steps": 8}


def test_nothing_is_tried_where_weights_are_sharded(launched: Launch) -> None:
    for report in launched("choosing", processes=2)("sharded"):
        assert report["chosen"] == "eager"
        assert report["reason"].startswith("weights are shared out over processes; execution='compile' compiles where")
