"""Names in recorded data, and what they stand for when it is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.errors import ConfigError


class Names:
    """From a name to what it stands for, under the rules of one load.

    Args:
        renamed: New names for old ones: a whole name, or the beginning of one up to a dot.
        allow: Beginnings of the names that may be imported, such as `("mine", "torch")`; None allows all.
        make: How an object is made from its record.
    """

    def __init__(
        self,
        renamed: Mapping[str, str] | None = None,
        allow: Sequence[str] | None = None,
        *,
        make: Callable[[Any, "Names"], Any],
    ) -> None:
        self.renamed = dict(renamed or {})
        self.allow = allow
        self.make = make

    def find(self, name: str) -> Any:
        """Return what `name` stands for.

        Raises:
            ConfigError: It is not there any more, or may not be imported.
        """
        from treadle.config import locate
        from treadle.config.name_scope import begins, stays_within

        name = self.present(name)
        # A name counts by what it leads to: torch.os.system is none of torch.
        if self.allow is not None and not any(begins(name, one) and stays_within(name, one) for one in self.allow):
            raise ConfigError(f"{name!r} may not be imported: only {list(self.allow)} may")
        try:
            return locate(name)
        except ConfigError as error:
            raise ConfigError(f"{error}; if it has moved, give its new place: renamed={{{name!r}: '...'}}") from error

    def present(self, name: str) -> str:
        """Return the name that an old name has now."""
        for old, new in self.renamed.items():
            if name == old or name.startswith((f"{old}.", f"{old}:")):
                return new + name[len(old) :]
        return name
