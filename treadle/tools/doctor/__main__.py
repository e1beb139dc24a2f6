"""Examinations, or a timing, in a process of its own; the result goes into a file, for the program may print."""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from treadle.errors import TreadleError
from treadle.tools.doctor.processes import ONCE, TIME, describe_failure, to_json

program, asked, output, arguments = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]


def examine_twice(steps: int) -> dict[str, Any]:
    """Examine the program here, and in a fork that has loaded the same and knows nothing of what is drawn here."""
    # What each step needs is loaded before: an optimizer of torch's loads this with its first step.
    import torch._dynamo  # noqa: F401

    from treadle.tools.doctor.examination import examine

    again, told = output.with_suffix(".again"), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told[1])
        status = 1
        try:
            if os.read(told[0], 1):
                _draw_anew()
                again.write_text(json.dumps(to_json(examine(program, steps, arguments))), encoding="utf-8")
            status = 0
        finally:
            os._exit(status)
    os.close(told[0])
    with os.fdopen(told[1], "wb") as go:
        first = examine(program, steps, arguments)
        if first.seeded:
            go.write(b"1")
    os.waitpid(child, 0)
    second = [json.loads(again.read_text(encoding="utf-8"))] if again.exists() else []
    return {"examinations": [to_json(first), *second], "files": _own_files()}


def _draw_anew() -> None:
    """Give generators that nobody seeds another state than in the process that this one was forked from."""
    import torch

    torch.default_generator.seed()
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _own_files() -> list[str]:
    """Return the files of the program: not those of Python, of packages that are installed, and of Treadle."""
    from treadle.tools.doctor.detectors.base import TREADLE

    loaded = {str(program.resolve())} | {str(getattr(one, "__file__", None) or "") for one in [*sys.modules.values()]}
    others = (sys.prefix, sys.base_prefix, TREADLE)
    return sorted(file for file in loaded if file.endswith(".py") and not file.startswith(others))


def run() -> dict[str, Any]:
    """Do what was asked for."""
    if asked.startswith(TIME):
        from treadle.tools.doctor.step_time import measure_step_ms

        return {"milliseconds": measure_step_ms(program, asked.removeprefix(TIME) or None, arguments)}
    steps = int(asked.removeprefix(ONCE))
    # Elsewhere it is not safe to fork once torch is loaded; the program is then run in processes of their own.
    if sys.platform == "linux" and not asked.startswith(ONCE):
        return examine_twice(steps)
    from treadle.tools.doctor.examination import examine

    return {"examinations": [to_json(examine(program, steps, arguments))], "files": []}


if __name__ == "__main__":
    # As `python program.py` does.
    sys.path.insert(0, str(program.resolve().parent))
    try:
        output.write_text(json.dumps(run()), encoding="utf-8")
    except TreadleError as error:
        sys.exit(str(error))
    except Exception as error:
        sys.exit(describe_failure(error, program))
