"""Plans of one and two processes that go on with what the plans of more saved."""

import os
import sys
from functools import partial
from pathlib import Path

from tests.parallel.programs import plans
from tests.parallel.programs.plans import RESHARDED, Run, gone_on_with
from tests.parallel.programs.scenarios import Program

program = Program("resharded_back")
plans.program = program


def add_all(world: int) -> None:
    """Add a scenario for each plan of so many processes and each plan of more."""
    for name, parallel in RESHARDED[world].items():
        for other in (other for count, others in RESHARDED.items() if count > world for other in others):
            program.add(f"{name} from {other}", partial(gone_on_with, Run(name, parallel), other))


if __name__ == "__main__":
    add_all(int(os.environ.get("WORLD_SIZE", "1")))
    program.run(Path(sys.argv[1]))
