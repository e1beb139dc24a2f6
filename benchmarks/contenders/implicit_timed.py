"""Alternating least squares of `implicit`, timed: run by its own interpreter, answers in one line of JSON.

`python implicit_timed.py '{"file": "gowalla/train.txt.gz", "factors": 64, "iterations": 5}'`
"""

import gzip
import json
import os
import sys
from typing import Any

ANSWER = "ANSWER "


def main() -> None:
    task = json.loads(sys.argv[1])
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    from time import process_time

    import implicit
    import numpy as np
    from scipy.sparse import csr_matrix

    users, items = [], []
    with gzip.open(task["file"], "rt", encoding="utf-8") as lines:
        for line in lines:
            user, *own = map(int, line.split())
            users += [user] * len(own)
            items += own
    matrix = csr_matrix((np.ones(len(users), np.float32), (users, items)))
    seconds: list[float] = []
    began = process_time()

    def note(*_: Any) -> None:
        nonlocal began
        seconds.append(process_time() - began)
        began = process_time()

    fixed = {"use_gpu": False, "num_threads": 1, "random_state": 1, "iterations": task["iterations"]}
    model = implicit.als.AlternatingLeastSquares(factors=task["factors"], **fixed)
    model.fit(matrix, show_progress=False, callback=note)
    # The first has what comes before it.
    print(ANSWER + json.dumps({"seconds": seconds[1:], "version": implicit.__version__}), flush=True)


if __name__ == "__main__":
    main()
