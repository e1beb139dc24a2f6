"""Makes the fixtures: each run killed in the middle, and how it ends undisturbed. Not to be run again."""

import json
import re
import shutil
import tempfile
from pathlib import Path

from tests.forking.starting import run as start
from tests.golden.recording import bits_of_this_machine
from tests.old_runs.programs import CUT, OUTCOME, PROCESSES, PROGRAMS, RUN

HERE = Path(__file__).parent
FIXTURES, EXPECTED = HERE / "runs", HERE / "expected.json"
NOT_KEPT = (".lock", "config.yaml", "status.json", "heartbeat.json", "log.txt", "manifest.json", "events.out.*")
"""What of the folder of a run is of no use to a run that goes on, or names the machine."""


def in_processes(name: str, folder: Path, *cut: str) -> dict[str, object] | None:
    """Run a program by itself, or on several processes; return what it found, None if it died."""
    count = PROCESSES.get(name, 1)
    launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m") if count > 1 else ()
    done = start("-m", *launcher, "tests.old_runs.programs", name, str(folder), *cut, launches=count > 1)
    outcome = folder / OUTCOME
    if not outcome.exists():
        assert cut, done.stdout + done.stderr
        return None
    assert not cut, f"{name} came to its end"
    found: dict[str, object] = json.loads(outcome.read_text())
    outcome.unlink()
    return found


def resumed_at(run: Path) -> int:
    """Return the step that a run goes on from: that of its newest checkpoint; of a search, the trial it died in."""
    newest = run / "checkpoints" / "last"
    return int(newest.read_text().removeprefix("step_")) if newest.exists() else CUT


def main() -> None:
    """Make every run twice: undisturbed, and killed."""
    expected: dict[str, dict[str, object]] = {}
    for name in PROGRAMS:
        with tempfile.TemporaryDirectory() as temporary:
            whole, killed = Path(temporary, "whole"), Path(temporary, "killed")
            whole.mkdir()
            killed.mkdir()
            expected[name] = in_processes(name, whole) or {}
            assert in_processes(name, killed, str(CUT)) is None
            kept = FIXTURES / name.replace(" ", "_")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(killed / RUN, kept)
            for unwanted in [path for pattern in NOT_KEPT for path in kept.glob(pattern)]:
                unwanted.unlink()
            for older in sorted((kept / "checkpoints").glob("step_*"))[:-1]:
                shutil.rmtree(older)
            for journal in kept.glob("*.journal"):
                text = re.sub(r'"machine":"[^"]*"', '"machine":"another:1"', journal.read_text())
                journal.write_text(text)
            expected[name]["resumed"] = resumed_at(kept)
        print(name, expected[name])
    contents = {"machine": bits_of_this_machine(), "runs": expected}
    EXPECTED.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
