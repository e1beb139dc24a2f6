"""Words that stand for True and False, as YAML has them."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse_bool(value: object) -> object:
    """Return the truth value that a text stands for, and anything else as it is.

    >>> parse_bool("off"), parse_bool("False"), parse_bool(" Yes"), parse_bool("maybe")
    (False, False, True, 'maybe')
    """
    return _WORDS.get(value.strip().lower(), value) if isinstance(value, str) else value
