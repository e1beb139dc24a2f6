"""Promotion by name: successive halving, its asynchronous kind, Hyperband, and population-based training."""

import ast
from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.search.promotion.asha import Asha
from treadle.search.promotion.base import Promotion
from treadle.search.promotion.hyperband import Halving, Hyperband
from treadle.search.promotion.population import Pbt

__all__ = ["PROMOTIONS", "Asha", "Halving", "Hyperband", "Pbt", "Promotion", "make_promotion"]

PROMOTIONS: dict[str, type[Promotion]] = {"halving": Halving, "asha": Asha, "hyperband": Hyperband, "pbt": Pbt}


def make_promotion(given: Any) -> Promotion:
    """Return what promotes trials.

    >>> make_promotion("asha(1, 27, reduction=3)").budgets
    (1, 3, 9, 27)

    Args:
        given: It, or its name with numbers in brackets.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(given, Promotion):
        return given
    name = given.partition("(")[0].strip() if isinstance(given, str) else str(given)
    if name not in PROMOTIONS or not isinstance(given, str):
        near = did_you_mean(name, PROMOTIONS) or f"; write one of {list(PROMOTIONS)} with its budgets: 'asha(1, 27)'"
        raise ConfigError(f"promotion={given!r} is unknown{near}")
    try:
        call = ast.parse(given.strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        numbers = [ast.literal_eval(one) for one in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        return PROMOTIONS[name](*numbers, **named)
    except (SyntaxError, AssertionError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"promotion={given!r} cannot be read; write its budgets: '{name}(1, 27)'") from error
