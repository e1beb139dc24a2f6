"""The guide from interactions to a service, as a stranger takes it; the server at a port that is free."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, TITLED, blocks_of
from tests.docs.test_tutorial import environment, run

PAGE = DOCS / "recsys-serving.md"
PORT = "8124"


@contextmanager
def served(command: str, folder: Path) -> Iterator[str]:
    """Run the server that a command starts, but at a free port; yield the port."""
    words = command.replace(PORT, "0").split()
    with subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(":")[2].split()[0]
        finally:
            process.terminate()


@pytest.mark.slow
def test_the_guide_works_command_by_command(tmp_path: Path) -> None:
    answers, server = [], ""
    assert not os.listdir(tmp_path)
    for block in blocks_of(PAGE.read_text()):
        if TITLED.fullmatch(block.info):
            (tmp_path / block.info.split('"')[1]).write_text(block.text)
        elif block.info == "sh" and " serve " in block.text:
            server = block.text
        elif block.info == "sh" and block.text.startswith("curl"):
            with served(server, tmp_path) as port:
                answers.append(json.loads(run(block.text.replace(PORT, port), tmp_path)))
        elif block.info == "sh":
            run(block.text, tmp_path)
    (found,) = answers
    assert len(found["items"]) == 5
    assert all(20 <= int(one["item"][1:]) < 40 for one in found["items"])
