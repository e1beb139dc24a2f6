"""The trainer of LightGBM."""

from typing import Any

from treadle.recsys.boosting import Boosting, LightGBMBoosting
from treadle.recsys.trainers.decision_tree_trainer import DecisionTreeTrainer


class LightGBMTrainer(DecisionTreeTrainer):
    """Has LightGBM boost; its settings begin with `lgb_`."""

    prefix = "lgb"

    def _boosting(self, **arguments: Any) -> Boosting:
        first = self.config["lgb_first_metric_only"]
        return LightGBMBoosting(self._params, first_metric_only=first is not False, **arguments)
