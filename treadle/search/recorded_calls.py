"""The call that made an object, kept so that another process can make it again."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from treadle.errors import ConfigError, did_you_mean
from treadle.search.encoding import RECORD, RecordedNames, build, decode, encode

FORMAT = "treadle-record-1"
VERSION = "record_version"
"""The attribute of a class that counts the changes to the arguments of its constructor."""
MIGRATE = "migrate_record"
"""The class method that brings the arguments of an earlier version up to date."""

Kind = TypeVar("Kind", bound=type)


@dataclass(frozen=True)
class Record:
    """A class, and the arguments that an object of it was made with.

    Attributes:
        kind: The class, or its name where it was read from data.
        arguments: The arguments as JSON, by name; those of `*args` are a list, those of `**kwargs` a mapping.
        version: The version of the class then.
    """

    kind: Any
    arguments: dict[str, Any]
    version: int

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON.

        Raises:
            ConfigError: The class cannot be found by another process.
        """
        from treadle.config.targets import target_name

        try:
            name = self.kind if isinstance(self.kind, str) else target_name(self.kind)
        except ConfigError as error:
            raise ConfigError(f"{self.kind.__qualname__} cannot be made again in another process: {error}") from error
        return {"format": FORMAT, "target": name, "version": self.version, "arguments": self.arguments}

    @staticmethod
    def decoded(data: Any) -> "Record":
        """Return the record that `encoded` wrote.

        Raises:
            ConfigError: It is none, or of another version of Treadle.
        """
        found = data.get("format") if isinstance(data, Mapping) else None
        if found != FORMAT:
            raise ConfigError(f"this is no record of a trainer: its format is {found!r}, not {FORMAT!r}")
        return Record(data["target"], dict(data["arguments"]), int(data["version"]))

    def make(self, names: RecordedNames, *model: Any) -> Any:
        """Make the object again.

        Args:
            names: How names are looked up.
            model: What comes first and was not recorded.

        Raises:
            ConfigError: The class has gone, or takes other arguments now.
        """
        kind = names.find(self.kind) if isinstance(self.kind, str) else self.kind
        if not is_recorded(kind):
            raise ConfigError(f"{self.kind!r} is neither @nas.register_trainer nor @nas.recorded, and is not made")
        arguments = self._present_arguments(kind, names)
        bound = inspect.BoundArguments(inspect.signature(kind), {})
        values = {name: decode(value, names) for name, value in arguments.items()}
        first = list(bound.signature.parameters)[: len(model)]
        bound.arguments = {**dict(zip(first, model, strict=True)), **values}
        return kind(*bound.args, **bound.kwargs)

    def _present_arguments(self, kind: Any, names: RecordedNames) -> dict[str, Any]:
        """Return the arguments under the names that the class has for them now."""
        arguments, now = dict(self.arguments), record_version_number(kind)
        if self.version != now and hasattr(kind, MIGRATE):
            arguments = getattr(kind, MIGRATE)(arguments, self.version)
        known = list(inspect.signature(kind).parameters)
        unknown = [name for name in arguments if name not in known]
        if unknown:
            when = "" if self.version == now else f" It was version {self.version}, and is {now} now."
            raise ConfigError(
                f"{kind.__qualname__} was recorded with {unknown[0]!r}, which it does not take any more"
                f"{did_you_mean(unknown[0], known) or f'; it takes {known}'}.{when} Count {VERSION} up and write a "
                f"class method {MIGRATE}(arguments, version) that returns the arguments of today"
            )
        return arguments


def record_version_number(kind: Any) -> int:
    """Return the version of a class: its `record_version`, else 1."""
    return int(getattr(kind, VERSION, 1))


def is_recorded(kind: Any) -> bool:
    """Whether objects of this very class keep the call that made them."""
    return isinstance(kind, type) and RECORD in vars(kind)


def find_record(made: Any) -> Record | None:
    """Return the record of an object; None if it keeps none."""
    found = getattr(made, "__dict__", {}).get(RECORD)
    return found if isinstance(found, Record) else None


def recorded(kind: Kind) -> Kind:
    """Let objects of a class remember the arguments they are made with, so that another process can make them again.

    Decorate a class of your own, a data set or a transform; it stays the class it is. For classes of others, pass a
    lazy call. What an object becomes after it was made is not recorded.

    >>> @recorded
    ... class Scale:
    ...     def __init__(self, factor, offset=0.0):
    ...         self.factor = factor
    >>> find_record(Scale(2)).arguments
    {'factor': 2, 'offset': 0.0}

    Args:
        kind: The class.

    Raises:
        ConfigError: It is no class.
    """
    if not isinstance(kind, type):
        raise ConfigError(f"@nas.recorded is for classes, got {kind!r}")
    remember_calls(kind, skip=0)
    return kind


def remember_calls(kind: type, *, skip: int) -> None:
    """Have the constructor of `kind` record its arguments, all but the first `skip`."""
    constructor: Any = kind.__init__  # type: ignore[misc]
    signature = inspect.signature(constructor)

    @wraps(constructor)
    def recording(self: Any, *positional: Any, **arguments: Any) -> None:
        if type(self) is not kind:  # a subclass records its own arguments, or none
            constructor(self, *positional, **arguments)
            return
        bound = signature.bind(self, *positional, **arguments)
        record = Record(kind, _encoded(kind, bound, skip), record_version_number(kind))
        constructor(*map(build, bound.args), **build(bound.kwargs))
        object.__setattr__(self, RECORD, record)

    # It takes what the constructor takes and no more, which a check of arguments by name can rely on.
    recording.__signature__ = signature  # type: ignore[attr-defined]
    kind.__init__ = recording  # type: ignore[misc]
    setattr(kind, RECORD, None)


def _encoded(kind: type, bound: inspect.BoundArguments, skip: int) -> dict[str, Any]:
    complete = inspect.BoundArguments(bound.signature, dict(bound.arguments))
    complete.apply_defaults()
    found = list(complete.arguments.items())[1 + skip :]
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    plain = {name: list(value) if kinds[name] is inspect.Parameter.VAR_POSITIONAL else value for name, value in found}
    return {name: encode(value, f"{kind.__qualname__}: argument {name!r}") for name, value in plain.items()}


def dump_trainer(trainer: Any) -> dict[str, Any]:
    """Return, as plain JSON data, the call that made a registered trainer, without its model.

    Raises:
        ConfigError: Its class is not registered, or another process could not find it.
    """
    record = find_record(trainer)
    if record is None:
        raise ConfigError(
            f"{type(trainer).__qualname__} does not know its arguments; decorate the class itself with "
            "@nas.register_trainer (a subclass needs its own)"
        )
    return record.encoded()


def load_trainer(
    data: str | Mapping[str, Any],
    model: Any,
    *,
    renamed: Mapping[str, str] | None = None,
    allow: Sequence[str] | None = None,
) -> Any:
    """Make a trainer from what `dump_trainer` returned, with another model.

    The classes and functions that the data name are imported, and the calls that it describes are made; nothing is
    unpickled. Data of unknown origin can still name any function: say with `allow` what may be imported.

    Args:
        data: The data, or its JSON text.
        model: The first argument of the trainer.
        renamed: New names of what has moved: `{"old.module.Name": "new.module.Name"}`, or beginnings of names.
        allow: Beginnings of the names that may be imported, such as `["mine", "torch"]`; None allows all.

    Raises:
        ConfigError: The data are of another kind, or something in them is not there any more.
    """
    try:
        parsed = json.loads(data) if isinstance(data, str) else data
    except ValueError as error:
        raise ConfigError(f"this is no record of a trainer: it is no JSON ({error})") from error
    return Record.decoded(parsed).make(reader(renamed, allow), model)


def reader(renamed: Mapping[str, str] | None = None, allow: Sequence[str] | None = None) -> RecordedNames:
    """Return how the names of one load are looked up."""
    return RecordedNames(renamed, allow, make=lambda data, names: Record.decoded(data).make(names))
