"""LightGBM, round by round."""

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.errors import ConfigError, DataError
from treadle.recsys.models.boosting.base import VALID, Boosting, Evaluation, SavedBooster
from treadle.recsys.models.boosting.features import Matrix, TreeRows
from treadle.recsys.optional import lightgbm

RESERVED = {
    **dict.fromkeys(
        ("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees", "num_round", "num_rounds", "nrounds"),
        "lgb_num_boost_round",
    ),
    **dict.fromkeys(("num_boost_round", "n_estimators", "max_iter"), "lgb_num_boost_round"),
    **dict.fromkeys(
        ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change"),
        "lgb_early_stopping_rounds",
    ),
    **dict.fromkeys(("input_model", "model_input", "model_in"), "lgb_model"),
}
"""Parameters that the trainer has settings for."""
SHARES = (
    ("bagging_fraction", "sub_row", "subsample", "bagging"),
    ("pos_bagging_fraction", "pos_sub_row", "pos_subsample", "pos_bagging"),
    ("neg_bagging_fraction", "neg_sub_row", "neg_subsample", "neg_bagging"),
    ("feature_fraction", "sub_feature", "colsample_bytree"),
    ("feature_fraction_bynode", "sub_feature_bynode", "colsample_bynode"),
)
"""Parameters, each by all of its names, that have something drawn if they are below 1."""
SWITCHES = (("extra_trees", "extra_tree"), ("use_quantized_grad",))
BOOSTING = ("boosting", "boosting_type", "boost")
SEEDS = ("bagging_seed", "feature_fraction_seed", "extra_seed", "drop_seed", "objective_seed")
ALL_ROUNDS = -1


class LightGBMBoosting(Boosting):
    """A boosting run of LightGBM; its arguments are those of `Boosting`.

    Args:
        params: LightGBM's parameters.
        first_metric_only: Whether early stopping looks at the first metric alone.
        rest: As for `Boosting`.

    Raises:
        ConfigError: A parameter has a setting of its own, or asks for several scores a row.
    """

    suffix = ".txt"

    def __init__(self, params: Mapping[str, Any], *, first_metric_only: bool = True, **rest: Any) -> None:
        check_params("lgb_params", params, RESERVED)
        self._library = lightgbm()
        super().__init__(params, **rest)
        self.can_go_on = self._kind() not in ("rf", "random_forest")
        if self.start is not None and not self.can_go_on:
            raise ConfigError(f"lgb_model: LightGBM adds no rounds to a saved booster with boosting={self._kind()!r}")
        self._offset = 0 if self.start is None else SavedLightGBM(self.start).rounds()
        self._first_metric_only = first_metric_only
        self._best: int | None = None
        self._stopper = self._new_stopper()

    def _new_stopper(self) -> Any:
        if self.stopping_rounds is None or self.valid is None or self._kind() == "dart":
            return None
        library = self._library
        return library.early_stopping(self.stopping_rounds, first_metric_only=self._first_metric_only, verbose=False)

    def _kind(self) -> str:
        return str(_given(self.params, BOOSTING, "gbdt"))

    def _samples(self) -> bool:
        shares = any(float(_given(self.params, names, 1.0)) < 1.0 for names in SHARES)
        switches = any(bool(_given(self.params, names, False)) for names in SWITCHES)
        goss = "goss" in (self._kind(), self.params.get("data_sample_strategy"))
        return shares or switches or goss or self._kind() == "dart"

    def begin(self, text: bytes | None, restart: int) -> None:
        """Get ready for the next round; data sets are made anew, for a booster leaves its scores in them."""
        self._text = self.start if text is None else text
        self._restart_params = {**self.params, **self.seeds(SEEDS, restart)}
        self.booster = None

    def _data(self, rows: TreeRows, reference: Any = None) -> Any:
        return self._library.Dataset(
            rows.features,
            rows.labels,
            reference=reference,
            feature_name=self.names,
            categorical_feature=self.categories,
            params=dict(self._restart_params),
            free_raw_data=False,
        )

    def add_round(self, number: int) -> list[Evaluation]:
        """Add the round of this number, from 0, and return what LightGBM says of it."""
        if self.booster is None:
            self._train_first()
        else:
            self.booster.update()
        found = [] if self.valid is None else self.booster.eval_valid()
        return [Evaluation(str(one[1]), float(one[2]), bool(one[3])) for one in found]

    def _train_first(self) -> None:
        train = self._data(self.train)
        valid = [] if self.valid is None else [self._data(self.valid, train)]
        known = None if self._text is None else self._library.Booster(model_str=self._text.decode())
        try:
            self.booster = self._library.train(
                dict(self._restart_params),
                train,
                1,
                valid_sets=valid,
                valid_names=[VALID] * len(valid),
                init_model=known,
                keep_training_booster=True,
            )
        except self._library.basic.LightGBMError as error:
            raise ConfigError(f"LightGBM does not take these parameters or rows: {error}") from error

    def is_over(self, number: int, evaluations: Sequence[Evaluation]) -> bool:
        """Show LightGBM's early stopping the evaluations of a round; whether it ends the run."""
        if self._stopper is None or not evaluations:
            return False
        if number == 0:
            self._stopper, self._best = self._new_stopper(), None
        library = self._library
        results = [library.EvalResult(VALID, one.metric, one.value, one.bigger) for one in evaluations]
        place = {"iteration": number, "begin_iteration": 0, "end_iteration": self.rounds}
        state = library.callback.CallbackEnv(
            model=self.booster, params=self.params, evaluation_result_list=results, **place
        )
        try:
            self._stopper(state)
        except library.callback.EarlyStopException as stop:
            self._best = int(stop.best_iteration) + 1
            return True
        return False

    def best_round(self) -> int | None:
        """Return how many rounds the best booster has, by LightGBM's early stopping."""
        return None if self._best is None else self._offset + self._best

    def text(self) -> bytes:
        """Return the booster as LightGBM's text, all of its rounds."""
        if self.booster is None:
            assert self._text is not None, "there is a round"
            return self._text
        text: str = self.booster.model_to_string(num_iteration=ALL_ROUNDS)
        return text.encode()


class SavedLightGBM(SavedBooster):
    """A booster of LightGBM, from its text.

    Raises:
        DataError: The text is not LightGBM's.
    """

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        library = lightgbm()
        try:
            self._booster = library.Booster(model_str=text.decode())
        except (library.basic.LightGBMError, UnicodeDecodeError) as error:
            raise DataError(f"this is no booster of LightGBM: {error}") from error

    def predict(self, features: Matrix) -> Matrix:
        """Return the prediction for each row."""
        found: Matrix = self._booster.predict(features)
        return found

    def rounds(self) -> int:
        """Return how many rounds it has."""
        return int(self._booster.current_iteration())

    def first_rounds(self, number: int) -> bytes:
        """Return the booster of its first rounds, as LightGBM's text."""
        text: str = self._booster.model_to_string(num_iteration=number)
        return text.encode()


def check_params(name: str, params: Mapping[str, Any], reserved: Mapping[str, str]) -> None:
    """Refuse parameters that are settings of the trainer, and those that make several scores of a row.

    Raises:
        ConfigError: There is one.
    """
    for key in params:
        if key in reserved:
            raise ConfigError(f"{name} has {key!r}; set {reserved[key]} instead")
    classes = _given(params, ("num_class", "num_classes"), 1)
    if int(classes) > 1:
        raise ConfigError(f"{name} has num_class={classes}; a recommender has one score a row")


def _given(params: Mapping[str, Any], names: Sequence[str], default: Any) -> Any:
    return next((params[name] for name in names if params.get(name) is not None), default)
