"""Passwords in addresses, which nobody else is to read."""

import re

_PASSWORD = re.compile(r"(?P<before>\b[a-zA-Z][\w+.-]*://[^\s/:@?#]*:)(?:[^\s/]*|(?!\d+/)[^\s@]*)(?=@)")
_PARAMETER = re.compile(r"(?P<before>[?&](?:password|passwd|pwd|token|secret|api_key)=)[^\s&#]+", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Return a text in which the password of every URL is hidden; for whatever is printed, logged or kept.

    >>> without_passwords("mysql+pymysql://user:secret@host:3306/trials is not there")
    'mysql+pymysql://user:***@host:3306/trials is not there'
    >>> without_passwords("postgresql://user:se/cret@host/trials")
    'postgresql://user:***@host/trials'
    >>> without_passwords("http://host:8080/a@b")
    'http://host:8080/a@b'
    """
    return _PARAMETER.sub(r"\g<before>***", _PASSWORD.sub(r"\g<before>***", text))
