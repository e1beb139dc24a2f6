"""One examination, or timing, in a process of its own; the result goes into a file, for the program may print."""

import json
import sys
from pathlib import Path

from treadle.errors import TreadleError
from treadle.tools.doctor.examination import examine
from treadle.tools.doctor.processes import TIME, describe_failure, measure_step_ms, to_json

if __name__ == "__main__":
    program, asked, output, arguments = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
    # As `python program.py` does.
    sys.path.insert(0, str(program.resolve().parent))
    try:
        if asked.startswith(TIME):
            result = {"milliseconds": measure_step_ms(program, asked.removeprefix(TIME) or None, arguments)}
        else:
            result = to_json(examine(program, int(asked), arguments))
        output.write_text(json.dumps(result), encoding="utf-8")
    except TreadleError as error:
        sys.exit(str(error))
    except Exception as error:
        sys.exit(describe_failure(error, program))
