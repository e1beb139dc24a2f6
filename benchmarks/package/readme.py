"""The commands that the README and the first page of the documentation show, run where nothing else is there."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from benchmarks.package.environments import ROOT, clean_environment

PAGES = ("README.md", "docs/index.md")
SKIPPED = {
    "make demo": "runs in a clone of the repository: the tests of CONTRIBUTING.md's commands cover it",
    "make test": "runs in a clone of the repository",
    "pip install -c constraints.txt -e '.[demo]'": "installs from a clone; here the wheel is installed",
    "kill -9 $!": "tests/crash kills programs at every moment",
}
"""Commands that are not run here, with the reason."""
OLD = '''"""A program for pytorch-accelerated."""

import torch
from pytorch_accelerated import Trainer
from torch import nn

model = nn.Linear(2, 1)
trainer = Trainer(model, loss_func=nn.MSELoss(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(train_dataset=[(torch.ones(2), torch.zeros(1))] * 8, num_epochs=1)
'''


class Command(NamedTuple):
    """A line of a page.

    Attributes:
        page: The page.
        text: The command, without the comment behind it.
    """

    page: str
    text: str


def commands() -> list[Command]:
    """Return all commands of the pages, in their order, each once."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            lines = [re.split(r"\s+#\s|^#", line)[0].strip() for line in block.splitlines()]
            found += [Command(page, line) for line in lines if line]
        inline = re.findall(r"`(treadle [a-z][^`]*)`", text)
        # `treadle migrate` in a sentence is the name of a command.
        found += [Command(page, one) for one in inline if one == "treadle demo" or one.count(" ") > 1]
    return list({one.text: one for one in found}.values())


def example() -> str:
    """Return the first program of the README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]


def prepare(folder: Path) -> None:
    """Write what a reader of the README has: its example as `train.py`, and a program for another system."""
    (folder / "train.py").write_text(example(), encoding="utf-8")
    (folder / "old_train.py").write_text(OLD, encoding="utf-8")


def run_command(text: str, folder: Path, python: Path, seconds: float = 400.0) -> tuple[int, str, float]:
    """Run a command as a shell does; return its status, what it printed, and how long it took."""
    env = clean_environment(python, OMP_NUM_THREADS="1", COLUMNS="120", NO_COLOR="1")
    env["XDG_STATE_HOME"] = str(folder / ".state")
    began = time.monotonic()
    if "--serve" in text:
        status, said = _serve(text, folder, env)
    else:
        options: Any = {"env": env, "capture_output": True, "text": True, "timeout": seconds}
        try:
            done = subprocess.run(text.removesuffix("&"), shell=True, cwd=folder_for(text, folder), **options)
            status, said = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            status, said = 124, f"took longer than {seconds:g} s: {error.output!r}"
    return status, said, time.monotonic() - began


def folder_for(text: str, folder: Path) -> Path:
    """Return where a command of the pages is run: in the project that an earlier one began, or in the folder itself."""
    in_project = "configs/" in text or text.endswith("runs/train") or text == "treadle runs"
    return folder / "my_project" if in_project and not text.startswith("cd ") else folder


def _serve(text: str, folder: Path, env: dict[str, str]) -> tuple[int, str]:
    """Start a server, fetch its page, and end it by Ctrl-C."""
    process = subprocess.Popen(
        f"exec {text}", shell=True, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said, found = "", None
    assert process.stdout is not None
    while found is None and (line := process.stdout.readline()):
        said += line
        found = re.search(r"http://127\.0\.0\.1:\d+\S*", said)
    page = b""
    if found is not None:
        with urlopen(found[0], timeout=30) as answer:
            page = answer.read()
    os.kill(process.pid, signal.SIGINT)
    said += process.communicate(timeout=60)[0]
    return (0 if b"<html" in page.lower() and process.returncode in (0, 130) else 1), said
