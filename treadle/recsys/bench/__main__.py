"""A training of a benchmark in a process of its own: `python -m treadle.recsys.bench FILE`."""

import sys

from treadle.recsys.bench.worker import main

if __name__ == "__main__":
    main(sys.argv[1])
