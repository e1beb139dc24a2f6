"""Packages that the recommender door needs and the core does not: loaded on first use, and missed in plain words."""

from typing import Any

from treadle.errors import importing


def pyarrow() -> Any:
    """Return the module `pyarrow`, with its readers.

    Raises:
        MissingDependencyError: It is not installed.
    """
    with importing("pyarrow", extra="recsys", user="reading data sets"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.parquet
    return pyarrow


def pandas(user: str) -> Any:
    """Return the module `pandas`, which no extra brings.

    Args:
        user: What needs it, for the message.

    Raises:
        MissingDependencyError: It is not installed.
    """
    with importing("pandas", extra=None, user=user):
        import pandas  # type: ignore[import-untyped]
    return pandas


def scipy_sparse() -> Any:
    """Return the module `scipy.sparse`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    with importing("scipy", extra="recsys", user="a sparse matrix"):
        import scipy.sparse
    return scipy.sparse


def lightgbm() -> Any:
    """Return the module `lightgbm`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    with importing("lightgbm", extra="trees", user="the model LightGBM"):
        import lightgbm
    return lightgbm


def xgboost() -> Any:
    """Return the module `xgboost`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    with importing("xgboost-cpu", extra="trees", user="the model XGBoost"):
        import xgboost
    return xgboost
