"""Words that stand for True and False, as YAML has them."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def truth_of(value: object) -> object:
    """Return the truth value that a text stands for, and anything else as it is.

    >>> truth_of("off"), truth_of("False"), truth_of(" Yes"), truth_of("maybe")
    (False, False, True, 'maybe')
    """
    return _WORDS.get(value.strip().lower(), value) if isinstance(value, str) else value
