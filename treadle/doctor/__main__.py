"""One examination, in a process of its own; the result goes into a file, for the program may print."""

import json
import sys
from pathlib import Path

from treadle.doctor.examining import examine
from treadle.doctor.repeating import saved
from treadle.errors import TreadleError

if __name__ == "__main__":
    program, steps, output = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    # As `python program.py` does.
    sys.path.insert(0, str(program.resolve().parent))
    try:
        output.write_text(json.dumps(saved(examine(program, steps))), encoding="utf-8")
    except TreadleError as error:
        sys.exit(str(error))
