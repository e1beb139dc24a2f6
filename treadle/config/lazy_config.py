"""`LazyConfig`: read, change, check, show and write configs."""

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from treadle.config.files import load, save
from treadle.config.nodes import TARGET, ConfigDict, as_node, children, location, read
from treadle.config.overrides import apply_overrides
from treadle.config.pseudo_code import to_py
from treadle.config.python_files import is_running
from treadle.config.signatures import check_tree
from treadle.errors import ConfigError

# `LazyCall`: a call written down, to be made later


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


class LazyConfig:
    """What can be done with a config; all of it is static."""

    @staticmethod
    def load(path: str | Path, keys: str | Iterable[str] | None = None) -> Any:
        """Read a config file, Python or YAML.

        A `.py` file is a program, and reading it means to run it: read only those that you would run. What it says
        are its names that begin with no underscore and hold data: mappings, lists, tuples, scalars, paths, None.
        It may import from other config files with relative imports, `from .other import train`; no folder needs to
        be a package for that. Each file that is imported is run anew, so no change reaches another file or a later
        load. A `.yaml` or `.yml` file is data: nothing in it is run or imported before `instantiate`.

        The keys of the mappings are fixed: assigning one that is not there is an error. The arguments of lazy calls
        are checked instead against the signature of their target, if its module is loaded.

        Args:
            path: the file.
            keys: return only the value of this key, or a tuple of the values of these.

        Returns:
            A config with the names as its keys, or what `keys` asks for.

        Raises:
            ConfigError: the file is not there, fails, has no such key, or gives a target a wrong argument.
        """
        return load(path, keys)

    @staticmethod
    def load_rel(path: str | Path, keys: str | Iterable[str] | None = None) -> Any:
        """Read a config file whose path starts at the folder of the file that calls this.

        Args:
            path: the file, from there.
            keys: as for `load`.

        Raises:
            ConfigError: as for `load`, or where the caller is no file.
        """
        caller = Path(sys._getframe(1).f_code.co_filename)
        if not caller.is_file():
            raise ConfigError(f"load_rel({str(path)!r}) starts at the caller's file, and {caller} is none; use load")
        return load(caller.parent / path, keys)

    @staticmethod
    def save(config: Any, path: str | Path) -> None:
        """Write a config as YAML that `load` reads back, and that then builds the same.

        Targets are written by name, classes and functions that a config file defines by its path and their name, and
        tuples with the tag `!tuple`. Interpolations are kept; save `LazyConfig.resolved(config)` to have the values.
        The file is complete or not there.

        Args:
            config: what to write.
            path: where to; folders are made.

        Raises:
            ConfigError: a value cannot be written, such as a model or a lambda; the message says where it stands.
        """
        save(config, path)

    @staticmethod
    def apply_overrides(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """Change a config by overrides as they are given on a command line: all of them or, on an error, none.

        `key=value` changes a key that is there, `+key=value` adds one, `++key=value` does either, `~key` removes one.
        Values are written as in Hydra (`3e-4`, `true`, `null`, `[1,2]`, `{a:1}`, `"text"`, `${other.key}`), and tuples
        as in Python (`(0.9,0.95)`). A mapping changes only the keys that it names.

        >>> LazyConfig.apply_overrides(ConfigDict({"optim": {"lr": 0.1, "betas": [0, 0]}}), ["optim.betas=(0.9,0.95)"])
        {'optim': {'lr': 0.1, 'betas': (0.9, 0.95)}}

        Args:
            config: what to change.
            overrides: the overrides, in order.

        Returns:
            The same config.

        Raises:
            ConfigError: a key is not there (the message names the nearest), or a target takes no such argument.
        """
        return apply_overrides(config, overrides)

    @staticmethod
    def to_py(config: Any, prefix: str = "cfg.") -> str:
        """Return a config as lines of Python, one assignment for each leaf, to read or to compare.

        >>> print(LazyConfig.to_py({"optim": {"_target_": "torch.optim.SGD", "lr": 0.1}, "train": {"seed": 1}}), end="")
        cfg.optim = torch.optim.SGD(lr=0.1)
        cfg.train.seed = 1

        Args:
            config: what to show.
            prefix: what each line starts with.
        """
        return to_py(config, prefix)

    @staticmethod
    def check(config: Any) -> None:
        """Find every target and check its arguments, without calling any; modules of targets are imported for it.

        Raises:
            ConfigError: a target cannot be found or called, or takes no such argument.
        """
        check_tree(as_node(config), load_targets=True)

    @staticmethod
    def resolved(config: DictConfig) -> ConfigDict:
        """Return a copy in which every interpolation is replaced by its value, and that cannot be changed.

        Make it once all overrides are applied, and let everything read from it.

        Raises:
            ConfigError: a value is still to be given, or an interpolation refers to nothing.
        """
        copied: Any = copy.deepcopy(as_node(config))
        OmegaConf.set_readonly(copied, False)
        _require_values(copied)
        OmegaConf.resolve(copied)
        missing = sorted(OmegaConf.missing_keys(copied))
        if missing:
            raise ConfigError(f"{location(copied)} has no value yet ('???') for {', '.join(missing)}; give each one")
        OmegaConf.set_readonly(copied, True)
        return copied  # type: ignore[no-any-return]


def _require_values(node: Any) -> None:
    for key, child in children(node):
        if child._is_interpolation():
            read(node, key)
        _require_values(child)
