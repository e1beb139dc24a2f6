"""Runs several programs in one launch, since starting the processes takes longer than the scenarios.

The command line gives the folder for the reports and the programs' names.
"""

import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Run what the command line asks for; first what surely ends."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    programs = [import_module(f"tests.parallel.programs.{name}").program for name in names]
    for fragile in (False, True):
        for program in programs:
            program.run(folder, fragile=fragile)


if __name__ == "__main__":
    main()
