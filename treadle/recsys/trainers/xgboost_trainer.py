"""The trainer of XGBoost."""

from typing import Any

from treadle.recsys.boosting import Boosting, XGBoostBoosting
from treadle.recsys.models.settings import whole_or_none
from treadle.recsys.trainers.decision_tree_trainer import DecisionTreeTrainer


class XGBoostTrainer(DecisionTreeTrainer):
    """Has XGBoost boost; its settings begin with `xgb_`."""

    prefix = "xgb"

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        threads = whole_or_none(config, "xgb_nthread")
        if threads is not None:
            self._params["nthread"] = threads

    def _boosting(self, **arguments: Any) -> Boosting:
        return XGBoostBoosting(self._params, **arguments)
