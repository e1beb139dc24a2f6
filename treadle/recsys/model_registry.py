"""Models by name."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from treadle.errors import ConfigError, did_you_mean

Model = TypeVar("Model", bound=type)
Source = Callable[[], Mapping[str, type]]
"""Loads models, and returns them by name."""
Resolver = Callable[[str], Any]
"""Returns the class that a text stands for, or None if the text is nothing that it knows."""
Hint = Callable[[str], str]
"""Returns what to write for a name that is no model here, or nothing."""
_models: dict[str, type] = {}
_hints: list[Hint] = []
_resolvers: list[Resolver] = []
_sources: list[Source] = []


def register_model(model: Model) -> Model:
    """Make a model class known by its name, so that settings and the command line can ask for it.

    >>> @register_model
    ... class Nothing: ...
    >>> get_model("Nothing").__name__
    'Nothing'
    """
    _models[model.__name__] = model
    return model


def register_source(source: Source) -> None:
    """Make further models known, which `source` loads when somebody first asks for a model by name."""
    _sources.append(source)


def register_resolver(resolver: Resolver) -> None:
    """Make texts that are more than names known, such as `my_model.py:MyModel`."""
    _resolvers.append(resolver)


def register_hint(hint: Hint) -> None:
    """Let the error about a model that does not exist say where there is one of its name."""
    _hints.append(hint)


def _known() -> Mapping[str, type]:
    while _sources:
        # A model that somebody has registered goes before one of the same name that comes from a source.
        for name, model in _sources[0]().items():
            _models.setdefault(name, model)
        del _sources[0]
    return _models


def get_model(name: Any) -> Any:
    """Return the model class called `name`; a class is returned as it is.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    if isinstance(name, type):
        return name
    if name not in _known() and isinstance(name, str) and (found := _resolved(name)) is not None:
        return found
    return registered_model(name)


def registered_model(name: Any) -> Any:
    """Return the model class that was registered as `name`: no file, no package and no full name is looked into.

    What a file says goes through here, so that who wrote the file does not decide what is run.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    models = _known()
    if not isinstance(name, str) or name not in models:
        same = [known for known in models if known.lower() == str(name).lower()]
        near = f"; did you mean {same[0]!r}?" if same else "".join(hint(str(name)) for hint in _hints)
        near = near or did_you_mean(str(name), models)
        raise ConfigError(f"there is no model {name!r}{near or f'; there are {sorted(models)}'}")
    return models[name]


def locate_model(name: str) -> Any:
    """Return the model class that a text of the command line stands for.

    Args:
        name: The name of a model, the full name of a class, or what a resolver knows, such as `my_model.py:MyModel`.

    Raises:
        ConfigError: There is no such class.
    """
    found = _resolved(name)
    if found is not None:
        return found
    if "." not in name:
        return get_model(name)
    # Reading Python files as configs needs omegaconf, which a name of a model does not.
    from treadle.config.targets import locate

    return locate(name)


def _resolved(name: str) -> Any:
    return next((found for resolver in _resolvers if (found := resolver(name)) is not None), None)


def model_names() -> list[str]:
    """Return the names of all models."""
    return sorted(_known())
