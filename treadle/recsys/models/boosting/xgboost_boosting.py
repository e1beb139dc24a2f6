"""XGBoost, round by round."""

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.errors import ConfigError, DataError
from treadle.recsys.models.boosting.base import VALID, Boosting, Evaluation, SavedBooster
from treadle.recsys.models.boosting.features import Matrix, TreeRows
from treadle.recsys.models.boosting.lightgbm_boosting import check_params
from treadle.recsys.optional import xgboost

RESERVED = {
    "num_boost_round": "xgb_num_boost_round",
    "n_estimators": "xgb_num_boost_round",
    "early_stopping_rounds": "xgb_early_stopping_rounds",
    "xgb_model": "xgb_model",
}
SHARES = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")
"""Parameters that have something drawn if they are below 1."""
FORMAT = "json"


class XGBoostBoosting(Boosting):
    """A boosting run of XGBoost; its arguments are those of `Boosting`.

    Raises:
        ConfigError: A parameter has a setting of its own, or asks for several scores a row.
    """

    suffix = ".json"

    def __init__(self, params: Mapping[str, Any], **rest: Any) -> None:
        check_params("xgb_params", params, RESERVED)
        self._library = xgboost()
        super().__init__(params, **rest)
        self._offset = 0 if self.start is None else SavedXGBoost(self.start).rounds()
        self._train: Any = None
        self._valid: Any = None
        self._stopper: Any = None
        self._log: dict[str, dict[str, list[float]]] = {}

    def _samples(self) -> bool:
        shares = any(float(self.params.get(name, 1.0)) < 1.0 for name in SHARES)
        return shares or self.params.get("booster") == "dart" or self.params.get("process_type") == "update"

    def _data(self, rows: TreeRows) -> Any:
        return _matrix(self._library, rows.features, self.names, self.categories, rows.labels)

    def begin(self, text: bytes | None, restart: int) -> None:
        """Get ready for the next round."""
        if self._train is None:
            self._train = self._data(self.train)
            self._valid = None if self.valid is None else self._data(self.valid)
        params = {**self.params, **self.seeds(("seed",), restart)}
        cached = [self._train] if self._valid is None else [self._train, self._valid]
        text = self.start if text is None else text
        try:
            self.booster = self._library.Booster(params, cached, None if text is None else bytearray(text))
        except self._library.core.XGBoostError as error:
            raise ConfigError(f"XGBoost does not take these parameters: {_first_line(error)}") from error

    def add_round(self, number: int) -> list[Evaluation]:
        """Add the round of this number, from 0, and return what XGBoost says of it."""
        place = self._offset + number
        try:
            self.booster.update(self._train, place)
        except self._library.core.XGBoostError as error:
            raise ConfigError(f"XGBoost does not take these parameters or rows: {_first_line(error)}") from error
        if self._valid is None:
            return []
        words = self.booster.eval_set([(self._valid, VALID)], place).split()[1:]
        pairs = (word.removeprefix(f"{VALID}-").rpartition(":") for word in words)
        return [Evaluation(name, float(value), None) for name, _, value in pairs]

    def is_over(self, number: int, evaluations: Sequence[Evaluation]) -> bool:
        """Show XGBoost's early stopping the evaluations of a round; whether it ends the run."""
        if self.stopping_rounds is None or not evaluations:
            return False
        if number == 0:
            self._stopper = self._library.callback.EarlyStopping(rounds=self.stopping_rounds)
            self._log = {VALID: {one.metric: [] for one in evaluations}}
        for one in evaluations:
            self._log[VALID][one.metric].append(one.value)
        return bool(self._stopper.after_iteration(self.booster, self._offset + number, self._log))

    def best_round(self) -> int | None:
        """Return how many rounds the best booster has, by XGBoost's early stopping."""
        return None if self._stopper is None else int(self.booster.best_iteration) + 1

    def text(self) -> bytes:
        """Return the booster as XGBoost's JSON, all of its rounds."""
        return bytes(self.booster.save_raw(FORMAT))


class SavedXGBoost(SavedBooster):
    """A booster of XGBoost, from its JSON.

    Raises:
        DataError: The text is not XGBoost's.
    """

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self._library = xgboost()
        self._booster = self._library.Booster()
        try:
            self._booster.load_model(bytearray(text))
        except self._library.core.XGBoostError as error:
            raise DataError(f"this is no booster of XGBoost: {_first_line(error)}") from error

    def predict(self, features: Matrix) -> Matrix:
        """Return the prediction for each row."""
        kinds = self._booster.feature_types or []
        categories = [place for place, kind in enumerate(kinds) if kind == "c"]
        names = self._booster.feature_names or [f"f{place}" for place in range(features.shape[1])]
        rows = _matrix(self._library, features, names, categories)
        found: Matrix = self._booster.predict(rows)
        return found

    def rounds(self) -> int:
        """Return how many rounds it has."""
        return int(self._booster.num_boosted_rounds())

    def first_rounds(self, number: int) -> bytes:
        """Return the booster of its first rounds, as XGBoost's JSON."""
        return bytes(self._booster[:number].save_raw(FORMAT))


def _matrix(
    library: Any, features: Matrix, names: Sequence[str], categories: Sequence[int], labels: Matrix | None = None
) -> Any:
    kinds = ["c" if place in set(categories) else "q" for place in range(features.shape[1])]
    return library.DMatrix(
        features, labels, feature_names=list(names), feature_types=kinds, enable_categorical=bool(categories)
    )


def _first_line(error: Exception) -> str:
    """Return what an error of XGBoost says, without the addresses that follow."""
    return str(error).split("\n", 1)[0]
