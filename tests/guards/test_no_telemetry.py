"""Nothing is sent anywhere: a run, its report and the command line speak to this machine alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
LISTENER = '''
import json, sys

asked = []


def listen(event, arguments):
    """Note every address that anybody wants to reach, or to be reached at."""
    if event in ("socket.connect", "socket.bind", "socket.sendto"):
        asked.append(str(arguments[1]))
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        asked.append(str(arguments[0]))


sys.addaudithook(listen)
sys.unraisablehook = lambda found: None
'''
PROGRAM = """
import torch
from torch import nn

import treadle
from treadle import Trainer

model = nn.Linear(2, 1)
data = [(torch.ones(2), torch.zeros(1))] * 8
trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), run_dir="runs/one")
trainer.train(data, num_epochs=2, per_device_batch_size=4, eval_dataset=data)

from typer.testing import CliRunner
from treadle.cli import app

for line in (["--help"], ["runs"], ["report", "runs/one"], ["demo"], ["init", "project"], ["doctor", "--help"]):
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, (line, result.output)
"""
ANSWER = """
print("\\n" + json.dumps(asked))
"""
HERE = ("127.0.0.1", "localhost", "::1")


def addresses(program: str, folder: Path) -> list[str]:
    """Return the addresses that a program asked for."""
    file = folder / "program.py"
    file.write_text(LISTENER + program + ANSWER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(file)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_training_and_the_command_line_reach_no_address_but_this_machine(tmp_path: Path) -> None:
    assert [one for one in addresses(PROGRAM, tmp_path) if not any(name in one for name in HERE)] == []


def test_an_address_elsewhere_would_be_noticed(tmp_path: Path) -> None:
    program = (
        "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 9), timeout=0.01)\nexcept OSError:\n    pass\n"
    )
    assert any("192.0.2.1" in one for one in addresses(program, tmp_path))
