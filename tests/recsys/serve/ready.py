"""Every model of the door ready to be asked, as small as it can be: with weights, but without a training."""

from functools import cache
from pathlib import Path
from typing import Any

from tests.recsys.models.building import fill
from tests.recsys.suites.every_model import make
from tests.recsys.trainer.runs import Run
from treadle.recsys import Recommender


@cache
def ready(name: str, **given: Any) -> tuple[Run, Recommender]:
    """Return a model with weights that show, in evaluation mode, and what recommends with it."""
    run = make(Path("unused"), name, **given)
    if hasattr(run.model, "fit"):
        run.model.fit(run.train.dataset)
    else:
        fill(run.model)
    run.model.eval()
    return run, run.trainer.recommender(run.train)
