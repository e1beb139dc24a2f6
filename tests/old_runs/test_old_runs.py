"""Runs that an earlier version wrote go on here exactly: from where they were, to the end they would have had."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.golden.recording import bits_of_this_machine
from tests.old_runs.__main__ import EXPECTED, FIXTURES, in_processes, resumed_at
from tests.old_runs.programs import PROCESSES, PROGRAMS, RUN, run

KNOWN = json.loads(EXPECTED.read_text(encoding="utf-8"))
SAME_BITS = KNOWN["machine"] == bits_of_this_machine()
"""Whether this processor rounds as the one that wrote the runs; otherwise numbers are compared closely."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_of_an_earlier_version_goes_on_exactly(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name.replace(" ", "_"), tmp_path / RUN)
    threads = torch.get_num_threads()
    found = in_processes(name, tmp_path) if name in PROCESSES else run(name, tmp_path, None)
    torch.set_num_threads(threads)
    expected = KNOWN["runs"][name]
    assert found is not None
    assert found["began"] == expected["resumed"] == resumed_at(FIXTURES / name.replace(" ", "_"))
    assert found["made"] == expected["made"] - expected["resumed"]
    assert found["norm"] == pytest.approx(expected["norm"], rel=2e-2)
    if SAME_BITS:
        assert found["bits"] == expected["bits"]
