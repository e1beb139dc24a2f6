"""Which attributes of a trainer Treadle itself sets."""

import dis
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any


@cache
def own_names(kind: Any) -> frozenset[str]:
    """Return the attributes that the methods of Treadle's own classes among the bases of `kind` assign.

    >>> from treadle.trainer import Trainer
    >>> "model" in own_names(Trainer), "seen" in own_names(Trainer)
    (True, False)
    """
    ours = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "treadle"]
    functions = [value for base in ours for value in vars(base).values() if isinstance(value, FunctionType)]
    return frozenset(name for function in functions for name in _assigned(function.__code__))


def _assigned(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _assigned(constant)
