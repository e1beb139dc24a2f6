"""A config with domains in it, from the file and from the command line."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from treadle.config import ConfigDict, LazyConfig
from treadle.config.overrides import parse_override
from treadle.errors import ConfigError
from treadle.search.domains import Choice, Domain, Range
from treadle.search.grammar import is_domain, parse_domain

SEARCH = "search"
CHOICES = "choices"


def config_with_domains(config: ConfigDict, changes: Sequence[str]) -> tuple[ConfigDict, dict[str, Any]]:
    """Return a config with domains in the place of values, and the settings of its search.

    Domains stand in the config itself, in its `search.choices` by key, or in the changes.

    Args:
        config: The config, as it was loaded.
        changes: Overrides, of which some are domains: `optim.lr=log(1e-4,1e-2)`.

    Raises:
        ConfigError: A key is not there, or a domain cannot be read.
    """
    domains = [_split(text) for text in changes if is_domain(text.partition("=")[2])]
    LazyConfig.apply_overrides(config, [text for text in changes if not is_domain(text.partition("=")[2])])
    settings = _settings(config)
    choices = settings.pop(CHOICES, None) or {}
    if not isinstance(choices, Mapping):
        raise ConfigError(f"search.choices is {choices!r}; it holds domains by key: {{'optim.lr': 'log(1e-4, 1e-2)'}}")
    for key, given in (*choices.items(), *domains):
        _put(config, str(key), _domain(str(key), given))
    return config, settings


def opened(config: DictConfig, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a config that was changed."""
    copied = copy.deepcopy(config)
    OmegaConf.set_readonly(copied, False)
    with open_dict(copied):
        change(copied)
    return copied


def _settings(config: ConfigDict) -> dict[str, Any]:
    """Return what the config says of its search, as plain data; objects stay what they are."""
    if SEARCH not in config:
        return {}
    found = config[SEARCH]
    if not isinstance(found, DictConfig):
        raise ConfigError(f"search in the config is {found!r}; it holds settings of the search, such as trials")
    return {str(key): _plain(found[key]) for key in found}


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _split(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.strip(), value


def _domain(key: str, given: Any) -> Domain:
    if isinstance(given, (Choice, Range)):
        return given
    if isinstance(given, (list, tuple)):
        return Choice(tuple(given))
    if isinstance(given, str):
        return parse_domain(given)
    raise ConfigError(f"search.choices: {key} is {given!r}; write a domain, such as 'log(1e-4, 1e-2)', or a list")


def _put(config: ConfigDict, key: str, domain: Domain) -> None:
    """Put a domain where a value stands; a key that is not there is added if it begins with a plus."""
    # The override says whether the key is there, and names the nearest if it is not.
    LazyConfig.apply_overrides(config, [f"{key}=null"])
    *way, last = parse_override(f"{key}=null").parts
    holder: Any = config
    for part in way:
        holder = holder[int(part) if OmegaConf.is_list(holder) else part]
    if OmegaConf.is_list(holder):
        holder[int(last)] = domain
        return
    with open_dict(holder):
        holder[last] = domain
