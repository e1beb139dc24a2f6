"""Packages that the recommender door needs and the core does not: loaded on first use, and missed in plain words."""

from typing import Any

from treadle.errors import MissingDependencyError


def pyarrow() -> Any:
    """Return the module `pyarrow`, with its readers.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("reading data sets needs pyarrow; pip install 'treadle[recsys]'") from error
    return pyarrow


def scipy_sparse() -> Any:
    """Return the module `scipy.sparse`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import scipy.sparse
    except ImportError as error:
        raise MissingDependencyError("a sparse matrix needs scipy; pip install 'treadle[recsys]'") from error
    return scipy.sparse


def lightgbm() -> Any:
    """Return the module `lightgbm`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise MissingDependencyError("the model LightGBM needs lightgbm; pip install 'treadle[trees]'") from error
    return lightgbm


def xgboost() -> Any:
    """Return the module `xgboost`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import xgboost
    except ImportError as error:
        raise MissingDependencyError("the model XGBoost needs xgboost-cpu; pip install 'treadle[trees]'") from error
    return xgboost
