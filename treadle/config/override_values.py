"""The value of an override, as written on a command line: Hydra's grammar, and tuples."""

from typing import Any

from treadle.errors import ConfigError

_TUPLE = "__tuple__"
_QUOTES = "\"'"


def parse_value(text: str, override: str) -> Any:
    """Return what the text to the right of `=` stands for.

    >>> parse_value("[1, 2.5, null, true, abc]", "a=...")
    [1, 2.5, None, True, 'abc']
    >>> parse_value("{betas: (0.9, 0.95)}", "a=...")
    {'betas': (0.9, 0.95)}
    >>> parse_value("x=y", "a=...")
    'x=y'

    Args:
        text: the value.
        override: the whole override, for messages.

    Raises:
        ConfigError: it is no value, or a sweep over several.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={_with_tuples_marked(text)}")
    except HydraException as error:
        if "=" in text and text[0] not in f"[{{({_QUOTES}":
            return text  # Hydra has no rule for key=a=b; only text can be meant
        raise ConfigError(f"{override!r} cannot be read; put quotes around text: {_quoted(override, text)}") from error
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{override!r} lists several values; write [...] for a list, (...) for a tuple, or quotes for text: "
            f"{_quoted(override, text)}"
        )
    return _with_tuples_made(parsed.value())


def _quoted(override: str, text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f"""'{override.removesuffix(text)}"{escaped}"'"""


def _with_tuples_marked(text: str) -> str:
    """Return the text with `(1, 2)` written as `{__tuple__:[1, 2]}`, which Hydra's grammar has a rule for."""
    written: list[str] = []
    closings: list[str] = []
    position = 0
    while position < len(text):
        length = _literal_length(text, position)
        if length:
            written.append(text[position : position + length])
            position += length
            continue
        character = text[position]
        if character == "(":
            is_function = "".join(written).rstrip()[-1:].replace("_", "a").isalnum()
            written.append("(" if is_function else "{" + _TUPLE + ":[")
            closings.append(")" if is_function else "]}")
        elif character == ")" and closings:
            inner = "".join(written).rstrip()
            written = [inner.removesuffix(",") if closings[-1] == "]}" else inner, closings.pop()]
        else:
            written.append(character)
        position += 1
    return "".join(written)


def _literal_length(text: str, position: int) -> int:
    """Return how many characters from here on are to be taken as they are: quoted, escaped, or `${...}`."""
    if text[position] == "\\":
        return 2
    if text.startswith("${", position):
        return max(0, text.find("}", position) + 1 - position)
    if text[position] not in _QUOTES:
        return 0
    end = position + 1
    while end < len(text) and text[end] != text[position]:
        end += 2 if text[end] == "\\" else 1
    return end + 1 - position


def _with_tuples_made(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == [_TUPLE]:
            return tuple(_with_tuples_made(item) for item in value[_TUPLE])
        return {key: _with_tuples_made(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tuples_made(item) for item in value]
    return value
