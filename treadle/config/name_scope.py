"""Whether a name lies within another, and so does what it leads to."""

import sys
from types import ModuleType
from typing import Any

from treadle.config.locating import locate
from treadle.errors import ConfigError


def begins(name: str, start: str) -> bool:
    """Whether a name is another, or lies below it.

    >>> begins("torch.nn.Linear", "torch.nn"), begins("torch.nnx", "torch.nn")
    (True, False)
    """
    return name == start or name.startswith((f"{start}.", f"{start}:"))


def stays_within(name: str, start: str) -> bool:
    """Whether the way from `start` to what `name` stands for leads through no module of elsewhere.

    >>> stays_within("torch.nn.Linear", "torch"), stays_within("torch.os.system", "torch")
    (True, False)
    """
    try:
        locate(name)
    except ConfigError:
        return True
    if ":" in name:
        return True  # a file, and a name in it
    parts = name.split(".")
    found: Any = sys.modules.get(parts[0])
    for place, part in enumerate(parts[1:], start=2):
        found = getattr(found, part, None)
        so_far = ".".join(parts[:place])
        if isinstance(found, ModuleType) and not begins(start, so_far) and not begins(found.__name__, start):
            return False
    return True
