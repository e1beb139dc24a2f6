"""`LazyCall`: a call written down, to be made later."""

from collections.abc import Callable, Mapping
from typing import Any

from treadle.config.nodes import TARGET, ConfigDict
from treadle.config.running import is_running
from treadle.config.signatures import check_tree
from treadle.errors import ConfigError


class LazyCall:
    """A call that is written down as a config instead of being made.

    `LazyCall(target)(**arguments)` returns a mapping of the target, under `_target_`, and its arguments, which can be
    changed like any other config. `instantiate` makes the call. Arguments that the target does not take are refused:
    at once or, inside a config file, when the file has been read, with the place in the config.

    >>> from treadle.config import LazyCall as L, instantiate
    >>> call = L(range)(3, 10)
    >>> instantiate(call)
    range(3, 10)
    >>> call = L(dict)(rate=0.1, nested=[L(complex)(real=1.0, imag=2.0)])
    >>> call.rate = 0.2
    >>> instantiate(call)
    {'rate': 0.2, 'nested': [(1+2j)]}

    Args:
        target: a class or function, its full name as text, or a lazy call that builds one.
    """

    def __init__(self, target: Callable[..., Any] | str | Mapping[str, Any]) -> None:
        if not (callable(target) or isinstance(target, (str, Mapping))):
            raise ConfigError(
                f"LazyCall({target!r}): the target must be a class, a function, its name as text, or a lazy call"
            )
        self.target = target

    def __call__(self, *positional: Any, **arguments: Any) -> ConfigDict:
        """Return the call as a config.

        Args:
            positional: arguments without a name, kept under `_args_`.
            arguments: all others.
        """
        if TARGET in arguments:
            raise ConfigError(f"LazyCall got {TARGET!r} as an argument; the target is what LazyCall is made with")
        unnamed = {"_args_": list(positional)} if positional else {}
        call = ConfigDict({TARGET: self.target, **unnamed, **arguments})
        if not is_running():
            check_tree(call, load_targets=False)
        return call
