"""A program that is forked for a test is like one that was started: streams, folder, environment, signals, end."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.forking.starting import ROOT, run, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere programs are started as usual")

TELLS = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["OWN"], "HOME" in os.environ, __name__, sys.path[0]]))
print("an error", file=sys.stderr)
"""


def test_a_program_has_streams_a_folder_an_environment_and_arguments_of_its_own(tmp_path: Path) -> None:
    done = run("-c", TELLS, "one", "two", cwd=tmp_path, env={"OWN": "x"})
    assert json.loads(done.stdout) == [["one", "two"], str(tmp_path), "x", False, "__main__", ""]
    assert (done.returncode, done.stderr) == (0, "an error\n")


def test_a_script_and_a_module_find_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 3\n")
    (tmp_path / "program.py").write_text("import sys\nfrom beside import VALUE\nprint(VALUE, sys.argv[1:])\n")
    script = run(str(tmp_path / "program.py"), "x")
    module = run("-m", "program", "x", cwd=tmp_path)
    assert script.stdout == module.stdout == "3 ['x']\n"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('a message')", 1),
        ("raise ValueError('wrong')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("pass", 0),
    ],
)
def test_a_program_ends_as_an_interpreter_does(ending: str, status: int) -> None:
    done = run("-c", f"import atexit, os, signal, sys\natexit.register(print, 'at the end')\n{ending}")
    assert done.returncode == status
    assert done.stdout == ("" if status == -signal.SIGKILL else "at the end\n")


def test_unseeded_generators_are_not_those_of_another_program() -> None:
    program = "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.initial_seed())"
    first, second = (run("-c", program).stdout.split() for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one != other


def test_a_signal_reaches_a_program_in_a_session_of_its_own(tmp_path: Path) -> None:
    program = "import os, sys, time\nos.symlink(str(os.getsid(0)), sys.argv[1])\ntime.sleep(600)"
    with (tmp_path / "output.txt").open("w") as output:
        process = start("-c", program, str(tmp_path / "session"), stdout=output, new_session=True)
    while not (tmp_path / "session").is_symlink():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == process.poll() == -signal.SIGTERM
    assert os.readlink(tmp_path / "session") == str(process.pid)


WORKER = """
import os
from pathlib import Path
facts = (os.getppid(), os.getsid(0) == os.getpid(), os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"])
with Path(__file__).with_name("facts").open("a") as file:
    print(*facts, file=file)
if facts[2:] == ("1", "0"):
    os.abort()
"""


def test_the_workers_of_a_launcher_are_its_children_and_are_started_again(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1")
    done = run(*launcher, str(tmp_path / "worker.py"), launches=True)
    assert done.returncode == 0, done.stderr
    facts = [line.split() for line in (tmp_path / "facts").read_text().splitlines()]
    assert len({parent for parent, *_ in facts}) == 1
    assert {leads for _, leads, *_ in facts} == {"True"}
    assert {(rank, restart) for *_, rank, restart in facts} >= {("1", "0"), ("0", "1"), ("1", "1")}


PACKED = """
from tests.forking.pages import keep_freed_memory, use_large_pages
before = bytes(range(256)) * (64 << 10)
copied = bytearray(before)
keep_freed_memory()
use_large_pages()
print(copied == before)
"""


def test_memory_is_the_same_in_large_pages() -> None:
    done = run("-c", PACKED, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("True\n", "")
