"""In what two configs differ, key by key."""

from dataclasses import dataclass
from typing import Any

from treadle.nested import leaves

ADDED, REMOVED, CHANGED = "added", "removed", "changed"


@dataclass(frozen=True)
class Difference:
    """One key in which two configs differ.

    Attributes:
        kind: "added", "removed" or "changed".
        key: Where it is.
        before: The value in the first config, as text; empty if it has none.
        after: The value in the second config, as text; empty if it has none.
    """

    kind: str
    key: str
    before: str = ""
    after: str = ""


def differences(first: Any, second: Any) -> list[Difference]:
    """Return in what plain data `second` differs from `first`, in the order of their keys.

    >>> differences({"lr": 0.1, "name": "a"}, {"lr": 0.2, "betas": (0.9,)})
    [Difference(kind='changed', key='lr', before='0.1', after='0.2'), \
Difference(kind='removed', key='name', before="'a'", after=''), \
Difference(kind='added', key='betas', before='', after='(0.9,)')]
    """
    old, new = ({key: repr(value) for key, value in leaves(config).items()} for config in (first, second))
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key, ""), new.get(key, "")
        if before != after:
            kind = ADDED if key not in old else REMOVED if key not in new else CHANGED
            found.append(Difference(kind, key, before, after))
    return found
