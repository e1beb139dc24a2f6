"""What the settings of sampling and evaluation come down to, and whether they go together."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from treadle.errors import ConfigError, UnknownMetricError, check_choice, did_you_mean
from treadle.recsys.data.sampling.evaluation_negatives import EvaluationMode
from treadle.recsys.enums import EvaluatorType, InputType, ModelType
from treadle.recsys.evaluation.metrics import find_metric
from treadle.recsys.evaluation.plan import Measure

NO_NEGATIVES = {"distribution": "none", "sample_num": "none", "alpha": "none", "dynamic": False, "candidate_num": 0}
NEGATIVES = {
    "distribution": "uniform",
    "sample_num": 1,
    "alpha": 1.0,
    "dynamic": False,
    "candidate_num": 0,
    "layout": "matrix",
}
EVAL_ARGS = {"split": {"RS": [0.8, 0.1, 0.1]}, "order": "RO", "group_by": "user", "mode": "full"}
SPLITS = ("RS", "LS", "TS", "TP", "CU", "CI")
"""By shares, the last ones of each user, shares of time, moments, and whole users or items held out."""
LEAVE_ONE_OUT = ("valid_and_test", "valid_only", "test_only")
COLD_USERS = ("error", "drop", "keep")
MEASURED = (
    "eval_args",
    "metrics",
    "topk",
    "valid_metric",
    "repeatable",
    "cold_users",
    "tail_ratio",
    "gauc_weight",
    "relevance_field",
    "item_category_field",
    "first_stage_topk",
    "user_groups",
    "item_groups",
)
"""Settings that decide what is measured, and how: scores compare only where these are the same."""
JUDGED = (
    "split_seed",
    "threshold",
    "val_interval",
    "rm_dup_inter",
    "filter_inter_by_user_or_item",
    "user_inter_num_interval",
    "item_inter_num_interval",
    "kg_unlinked_items",
    "benchmark_filename",
)
"""Settings that decide which rows are judged, and their labels."""


RANKS = ("ranking", "catalogue", "user_groups", "item_groups", "collected")
"""The kinds of metrics that look at ranked lists."""
NEEDED = (
    (
        "item_category_field",
        ("item_categories", "item_vectors"),
        "name the field of items that has their categories, such as item_category_field: genre",
    ),
    ("user_groups", ("user_groups",), "name what divides users, such as user_groups: [activity]"),
    ("item_groups", ("item_groups",), "name what divides items, such as item_groups: [popularity]"),
)
"""Settings without which metrics with some requirements cannot be calculated, and what to do."""


def decided_by(name: str) -> str:
    """Return, in words, what a setting of `MEASURED` or `JUDGED` decides."""
    return "what is measured" if name in MEASURED else "which rows are judged"


def resolve_training(settings: dict[str, Any], model: Any, given: Mapping[str, Any]) -> None:
    """Find the kind of training batches and the negatives in them, in place.

    Args:
        settings: All settings.
        model: The model class, or None.
        given: The settings that somebody gave, without the defaults.

    Raises:
        ConfigError: The settings do not go together.
    """
    settings["MODEL_INPUT_TYPE"] = _input_type(settings, model)
    sampled = settings.get("train_neg_sample_args")
    if _takes_whole_sequences(settings, model):
        if given.get("train_neg_sample_args") is not None:
            raise ConfigError(
                f"train_neg_sample_args={given['train_neg_sample_args']!r} has no use: {model.__name__} samples items "
                "by itself; set n_negatives and negative_distribution"
            )
        settings["train_neg_sample_args"] = dict(NO_NEGATIVES)
        return
    softmax = getattr(model, "input_type", None) is None and settings.get("loss_type") == "CE"
    if softmax and given.get("train_neg_sample_args") is not None:
        raise ConfigError(
            f"train_neg_sample_args={given['train_neg_sample_args']!r} has no use: with loss_type='CE' every item is "
            "scored and none is sampled; leave it out, or set it to None"
        )
    settings["train_neg_sample_args"] = dict(NO_NEGATIVES) if softmax else _negatives(sampled)
    _check_pairs(settings, model, given)
    if "train_all_positions" not in given and _has_custom_training(model):
        settings["train_all_positions"] = False


def _takes_whole_sequences(settings: Mapping[str, Any], model: Any) -> bool:
    """Return whether a model is trained on whole sequences, and make sure that `sequence_layout` goes with that."""
    layout, takes = settings.get("sequence_layout"), bool(getattr(model, "takes_whole_sequences", False))
    if takes and layout is None:
        raise ConfigError(f"sequence_layout=None: {model.__name__} is trained on whole sequences; set packed or padded")
    if layout is not None and not takes and model is not None:
        raise ConfigError(
            f"sequence_layout={layout!r}: {model.__name__} is not trained on whole sequences as gSASRec, eSASRec and "
            "HSTU are; leave it out"
        )
    for name in ("train_all_positions", "transform"):
        if takes and settings.get(name):
            raise ConfigError(
                f"{name}={settings[name]!r} has no use: {model.__name__} goes by sequence_layout; leave it out"
            )
    return takes


def _check_pairs(settings: Mapping[str, Any], model: Any, given: Mapping[str, Any]) -> None:
    """Make sure that nobody takes the negatives away from a model that learns from pairs."""
    sampled = settings["train_neg_sample_args"]["distribution"] != "none"
    if sampled or model is None or "train_neg_sample_args" not in given:
        return
    if settings["MODEL_INPUT_TYPE"] is InputType.PAIRWISE and settings["MODEL_TYPE"] is not ModelType.TRADITIONAL:
        raise ConfigError(
            f"train_neg_sample_args={given['train_neg_sample_args']!r}: {model.__name__} learns from pairs of an item "
            "and a sampled one; leave it out, or give a distribution"
        )


def _has_custom_training(model: Any) -> bool:
    """Return whether a model is made from one that trains on all positions, and has a loss or output of its own.

    It was written for rows with one target, as all of RecBole's are, unless it says again that it trains so.
    """
    kinds: tuple[type, ...] = getattr(model, "__mro__", ())
    stating = next((place for place, kind in enumerate(kinds) if "trains_all_positions" in vars(kind)), 0)
    return any(name in vars(kind) for kind in kinds[:stating] for name in ("calculate_loss", "forward"))


def _input_type(settings: Mapping[str, Any], model: Any) -> InputType:
    if model is None:
        return InputType.PAIRWISE
    own = getattr(model, "input_type", None)
    if isinstance(own, InputType):
        return own
    loss = settings.get("loss_type")
    by_loss = {"CE": InputType.POINTWISE, "BPR": InputType.PAIRWISE, "BCE": InputType.PAIRWISE}
    if loss not in by_loss:
        raise ConfigError(
            f"{model.__name__} does not say what its batches look like: give the class an input_type, or set loss_type "
            f"to one of {list(by_loss)}, not to {loss!r}"
        )
    return by_loss[loss]


def _negatives(given: Any) -> dict[str, Any]:
    if given is None or given == "None":
        return dict(NO_NEGATIVES)
    if not isinstance(given, Mapping):
        raise ConfigError(f"train_neg_sample_args={given!r} must be a dict, such as {{'distribution': 'uniform'}}")
    _check_keys("train_neg_sample_args", given, NEGATIVES)
    args = {**NEGATIVES, **given}
    if args["distribution"] in (None, "None", "none"):
        return dict(NO_NEGATIVES)
    where = "train_neg_sample_args"
    check_choice(f"{where}.distribution", args["distribution"], ("uniform", "popularity"))
    check_choice(f"{where}.layout", args["layout"], ("matrix", "flat"))
    _check_count(f"{where}.sample_num", args["sample_num"], 1)
    _check_count(f"{where}.candidate_num", args["candidate_num"], 1 if args["dynamic"] else 0)
    if not isinstance(args["alpha"], (int, float)) or not 0 <= args["alpha"] < math.inf:
        raise ConfigError(f"{where}.alpha={args['alpha']!r} must be a number from 0")
    return args


def resolve_evaluation(settings: dict[str, Any]) -> None:
    """Bring metrics, cut-offs and `eval_args` into one form, in place.

    Raises:
        ConfigError: They cannot be meant, or do not go together.
        UnknownMetricError: `valid_metric` is not among what is calculated.
    """
    for name in ("topk", "first_stage_topk"):
        settings[name] = _cutoffs(name, settings[name])
    for name in ("user_groups", "item_groups"):
        settings[name] = _names(name, settings[name], "[activity]" if name == "user_groups" else "[popularity]")
    settings["metrics"] = _metric_names(settings["metrics"])
    measures = _measures(settings)
    settings["eval_args"] = _eval_args(settings["eval_args"], split_already=settings["benchmark_filename"] is not None)
    check_choice("cold_users", settings["cold_users"], COLD_USERS)
    _check_cold_start(settings)
    _check_facts(settings, measures)
    if settings["predicts_logits"] not in (None, True, False):
        raise ConfigError(f"predicts_logits={settings['predicts_logits']!r} must be True, False or None")
    values = [one.metric.name for one in measures if one.metric.kind == "labelled"]
    ranks = [one.metric.name for one in measures if one.metric.kind in RANKS]
    for phase, text in settings["eval_args"]["mode"].items():
        mode = EvaluationMode.parse(text)
        if mode.kind == "full" and values:
            raise ConfigError(
                f"eval_args.mode is 'full' for {phase}, and metrics has {values}, which need labels; rank among "
                "sampled items ('uni100') or use 'labeled'"
            )
        if mode.kind == "labeled" and ranks:
            raise ConfigError(
                f"eval_args.mode is 'labeled' for {phase}, and metrics has {list(dict.fromkeys(ranks))}, which rank "
                "items; use 'full' or 'uni100', or metrics such as AUC"
            )
        settings[f"{phase}_neg_sample_args"] = _evaluation_negatives(mode)
    settings["eval_type"] = EvaluatorType.RANKING if ranks or not values else EvaluatorType.VALUE


def _evaluation_negatives(mode: EvaluationMode) -> dict[str, Any]:
    if mode.kind in ("full", "labeled"):
        return {"distribution": "uniform" if mode.kind == "full" else "none", "sample_num": "none"}
    return {"distribution": mode.kind, "sample_num": mode.negatives}


def _measures(settings: dict[str, Any]) -> list[Measure]:
    """Return what is calculated, and note whether a bigger value of `valid_metric` is better."""
    metrics = list(dict.fromkeys(find_metric(name) for name in settings["metrics"]))
    if not metrics:
        raise ConfigError("metrics is empty; name at least one, such as 'NDCG'")
    lengths = (settings["topk"], settings["first_stage_topk"])
    measures = [Measure(one, k) for one in metrics for k in one.cutoffs(*lengths)]
    watched = str(settings["valid_metric"]).lower().replace(" ", "")
    found = [one for one in measures if one.key == watched]
    if not found:
        keys = [one.key for one in measures]
        name, _, k = watched.partition("@")
        same = [one for one in measures if one.metric.key == name and one.k]
        missing = k.isdecimal() and bool(same)
        where = "first_stage_topk" if same and same[0].metric.first_stage else "topk"
        remedy = f"; add {k} to {where}" if missing else did_you_mean(watched, keys) or "; choose one of these"
        raise UnknownMetricError(f"valid_metric={settings['valid_metric']!r} is not calculated, but {keys} are{remedy}")
    settings["valid_metric_bigger"] = not found[0].metric.smaller
    return measures


def _cutoffs(name: str, lengths: Any) -> list[int]:
    given = [lengths] if isinstance(lengths, int) else lengths
    if not isinstance(given, (list, tuple)) or not given:
        raise ConfigError(f"{name}={lengths!r} must be a whole number from 1, or a list of them")
    for k in given:
        if type(k) is not int or k < 1:
            raise ConfigError(f"{name}={lengths!r}: {k!r} is no length of a list; give whole numbers from 1 on")
    return list(given)


def _names(name: str, given: Any, example: str) -> list[str] | None:
    if given is None or given == []:
        return None
    named = [given] if isinstance(given, str) else given
    if not isinstance(named, (list, tuple)) or not all(isinstance(one, str) for one in named):
        raise ConfigError(f"{name}={given!r} must be names of divisions or of fields, such as {example}")
    return list(dict.fromkeys(named))


def _check_cold_start(settings: Mapping[str, Any]) -> None:
    """Make sure that users whom nothing is trained on are evaluated where the split is made for that."""
    policy = settings["cold_users"]
    if "CU" in settings["eval_args"]["split"] and settings["benchmark_filename"] is None and policy != "keep":
        raise ConfigError(
            f"eval_args.split.CU holds out whole users, who have no training row, and cold_users={policy!r} would "
            "leave none of them; set cold_users: keep"
        )


def _check_facts(settings: Mapping[str, Any], measures: Sequence[Measure]) -> None:
    """Make sure that metrics which look at categories or groups are told which."""
    for setting, requirements, remedy in NEEDED:
        wanted = [one.metric.name for one in measures if set(requirements) & set(one.metric.requires)]
        if wanted and not settings[setting]:
            raise ConfigError(f"metrics has {list(dict.fromkeys(wanted))}, and {setting} is not set; {remedy}")


def _metric_names(given: Any) -> list[str]:
    if given is not None and not isinstance(given, (str, list, tuple)):
        raise ConfigError(f"metrics={given!r} must be names of metrics, such as ['NDCG', 'Recall']")
    return _as_list(given)


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _eval_args(given: Any, *, split_already: bool) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"eval_args={given!r} must be a dict with the keys {list(EVAL_ARGS)}")
    _check_keys("eval_args", given, EVAL_ARGS)
    args: dict[str, Any] = {**EVAL_ARGS, **given}
    if split_already and args["split"] is None:
        args["split"] = EVAL_ARGS["split"]
    args["group_by"] = "none" if args["group_by"] is None else str(args["group_by"]).lower()
    check_choice("eval_args.group_by", args["group_by"], ("user", "none"))
    check_choice("eval_args.order", args["order"], ("RO", "TO"))
    _check_split(args["split"])
    args["mode"] = _modes(args["mode"])
    return args


def _modes(given: Any) -> dict[str, str]:
    """Return the mode of each phase; one that is not given is the other's."""
    if isinstance(given, str):
        given = {"valid": given, "test": given}
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"eval_args.mode={given!r} must be text, or a dict with the keys valid and test")
    _check_keys("eval_args.mode", given, ("valid", "test"))
    other = next(iter(given.values()))
    modes = {phase: str(given.get(phase, other)) for phase in ("valid", "test")}
    for mode in modes.values():
        EvaluationMode.parse(mode)
    return modes


def _check_split(split: Any) -> None:
    if not isinstance(split, Mapping) or len(split) != 1 or next(iter(split)) not in SPLITS:
        raise ConfigError(
            f"eval_args.split={split!r} must be one of {{'RS': [0.8, 0.1, 0.1]}}, {{'LS': 'valid_and_test'}}, "
            "{'TS': [0.8, 0.1, 0.1]}, {'TP': ['2001-01-01', '2001-07-01']}, {'CU': [0.8, 0.1, 0.1]} and "
            "{'CI': [0.8, 0.1, 0.1]}"
        )
    ((how, value),) = split.items()
    if how == "LS":
        check_choice("eval_args.split.LS", value, LEAVE_ONE_OUT)
        return
    if how == "TP":
        time_points(value)
        return
    numbers = value if isinstance(value, (list, tuple)) else []
    good = len(numbers) == 3 and all(isinstance(one, (int, float)) and one >= 0 for one in numbers)
    if not good or numbers[0] == 0 or (how == "TS" and numbers[2] == 0):
        raise ConfigError(f"eval_args.split.{how}={value!r} must be three shares, for train, valid and test")


def time_points(given: Any) -> tuple[float, float]:
    """Return the two moments that a data set is divided at: numbers as in TIME_FIELD, or dates as seconds since 1970.

    >>> time_points(["1970-01-02", "1970-01-03T12:00:00"])
    (86400.0, 216000.0)

    Raises:
        ConfigError: They are no moments, or the second comes before the first.
    """
    moments = [_moment(one) for one in given] if isinstance(given, (list, tuple)) else []
    if len(moments) != 2 or None in moments or moments[0] > moments[1]:  # type: ignore[operator]
        raise ConfigError(
            f"eval_args.split.TP={given!r} must be two moments in order, the first of validation and the first of the "
            "test: numbers as in TIME_FIELD, or dates such as '2001-01-31'"
        )
    first, second = (float(one) for one in moments if one is not None)
    return first, second


def _moment(given: Any) -> float | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, (int, float)):
        return float(given) if math.isfinite(given) else None
    try:
        # YAML makes dates of what looks like one.
        found = given if isinstance(given, date) else datetime.fromisoformat(str(given))
    except ValueError:
        return None
    moment = found if isinstance(found, datetime) else datetime(found.year, found.month, found.day)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def check_model_type(settings: Mapping[str, Any]) -> None:
    """Make sure that the evaluation is one that the kind of model can have.

    Raises:
        ConfigError: A sequential model is to be evaluated in random order.
    """
    if settings["MODEL_TYPE"] is not ModelType.SEQUENTIAL or settings.get("benchmark_filename") is not None:
        return
    order = settings["eval_args"]["order"]
    if order != "TO":
        raise ConfigError(f"eval_args.order={order!r}: a sequential model needs the order of time, 'TO'")


def _check_keys(name: str, given: Mapping[Any, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            near = did_you_mean(str(key), known) or f"; there are {list(known)}"
            raise ConfigError(f"{name} has no {key!r}{near}")


def _check_count(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number from {least}")
